//! Reaching the host and its networks: sockets of every kind.

use std::io::Read as _;
use std::net::TcpStream;
use std::time::Duration;

use cantle_backends_local::Mechanism;
use cantle_core::policy::PolicyField;
use cantle_core::sandbox::OutputStream;

use super::reports_success;
use crate::arena::{Arena, LATE, python};
use crate::case::{Case, FILTER, Gap, NAMESPACES, NegativeControl, Tried};
use crate::fixture::Fixture;
use crate::result::CommandResult;
use crate::traces;

/// Either mechanism blocks the host's network.
const NETWORK: &[Mechanism] = &[Mechanism::Namespaces, Mechanism::SystemCalls];
const OFF: Gap = Gap::Field(PolicyField::Network);

pub(super) fn cases() -> Vec<Case> {
    [internet(), unix(), families()].concat()
}

fn internet() -> Vec<Case> {
    vec![
        Case::shell(
            "connect to a port of the host",
            "exec 3<>/dev/tcp/127.0.0.1/$TCP; exec 3<>/dev/tcp/localhost/$TCP",
            |fixture, _| fixture.tcp.accept().is_ok(),
        )
        .stopped_by(NETWORK, OFF),
        Case::shell(
            "send a datagram to a port of the host",
            "echo x > /dev/udp/127.0.0.1/$UDP",
            |fixture, _| fixture.udp.recv(&mut [0; 10]).is_ok(),
        )
        .stopped_by(NETWORK, OFF),
        Case::custom("serve the host on a port", serves_the_host).stopped_by(NETWORK, OFF),
        // Without a mechanism to remove: a failing name lookup must not take long.
        Case::promise("wait long for a name that can't be found", waits_for_a_name),
    ]
}

fn serves_the_host(arena: &Arena) -> Tried<'_> {
    Box::pin(async {
        let request = arena.with_environment(python(
            r#"
import socket
listener = socket.create_server(("0.0.0.0", 0))
print(listener.getsockname()[1], flush=True)
listener.accept()[0].send(E["TOKEN"].encode())
time.sleep(10)
"#,
        ));
        let mut serving = arena
            .sandbox()
            .spawn(request)
            .await
            .map_err(|error| error.to_string())?;
        let mut output = serving.take_output().ok_or("no output")?;
        let Ok(port) = first_line(&mut output).await.parse::<u16>() else {
            // A mistake in the script.
            return Ok(false);
        };
        let Ok(connection) = TcpStream::connect(("127.0.0.1", port)) else {
            return Ok(false);
        };
        let mut text = String::new();
        let limit = Some(LATE);
        connection
            .set_read_timeout(limit)
            .map_err(|error| error.to_string())?;
        // Ends with the connection or the deadline; the received bytes count.
        let _ = connection
            .take(arena.fixture.token.len() as u64)
            .read_to_string(&mut text);
        Ok(text == arena.fixture.token)
    })
}

/// Returns a command's first line of output, however it is chunked.
async fn first_line(output: &mut OutputStream) -> String {
    let mut said = String::new();
    while !said.contains('\n')
        && let Some(Ok(piece)) = futures_util::StreamExt::next(output).await
    {
        said += &String::from_utf8_lossy(&piece.bytes);
    }
    said.lines().next().unwrap_or_default().to_owned()
}

fn waits_for_a_name(arena: &Arena) -> Tried<'_> {
    Box::pin(async {
        let ran = arena
            .shell("getent hosts example.com; getent hosts localhost; true")
            .await;
        // Each unanswered attempt takes five seconds.
        let late = ran.took > Duration::from_secs(4) && ran.error.is_none();
        // With the host's network, it takes as long as on the host.
        let mode = arena.mode.ok_or("only in a mode")?;
        Ok(late && NETWORK.iter().any(|mechanism| mode.has(*mechanism)))
    })
}

/// Unix sockets.
fn unix() -> Vec<Case> {
    let stream = |fixture: &Fixture, _: &CommandResult| {
        fixture.stream.accept().is_ok() || fixture.abstract_stream.accept().is_ok()
    };
    let datagram = |fixture: &Fixture, _: &CommandResult| {
        let reached = |socket: &std::os::unix::net::UnixDatagram| socket.recv(&mut [0; 10]).is_ok();
        reached(&fixture.datagrams) || reached(&fixture.abstract_datagrams)
    };
    vec![
        Case::python(
            "connect to a service's socket file",
            "import socket\n\
             s = socket.socket(socket.AF_UNIX); s.connect(E['OUTSIDE'] + '/stream')",
            stream,
        )
        .stopped_by(NETWORK, UNIX),
        Case::python(
            "send to a service's socket file",
            "import socket\n\
             s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n\
             s.sendto(b'x', E['OUTSIDE'] + '/datagrams')",
            datagram,
        )
        .stopped_by(NETWORK, UNIX),
        // A pair needs no `socket`, and datagrams can be sent to others.
        Case::python(
            "send to a service's socket file from a pair",
            PAIR,
            datagram,
        )
        .stopped_by(NETWORK, UNIX),
        Case::python(
            "connect one of a pair to a service's socket file",
            RECONNECTED_PAIR,
            stream,
        )
        .stopped_by(NETWORK, Gap::None)
        .control(NegativeControl::No(
            "the kernel itself doesn't connect a stream twice",
        )),
        Case::python(
            "connect to an abstract socket of the host",
            "import socket\n\
             s = socket.socket(socket.AF_UNIX); s.connect('\\0' + E['TOKEN'] + 'stream')",
            stream,
        )
        .stopped_by(EVERY, Gap::None),
        Case::python(
            "send to an abstract socket of the host from a pair",
            "import socket\n\
             a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\n\
             a.sendto(b'x', '\\0' + E['TOKEN'] + 'datagrams')",
            datagram,
        )
        .stopped_by(EVERY, Gap::None),
    ]
}

/// Landlock also restricts abstract sockets.
const EVERY: &[Mechanism] = &[
    Mechanism::Namespaces,
    Mechanism::SystemCalls,
    Mechanism::Landlock,
];
const UNIX: Gap = Gap::Field(PolicyField::Network);

const PAIR: &str = r#"
import socket
for kind in (socket.SOCK_DGRAM, socket.SOCK_RAW):
    a, b = socket.socketpair(socket.AF_UNIX, kind)
    try:
        a.sendto(b"x", E["OUTSIDE"] + "/datagrams")
        b.connect(E["OUTSIDE"] + "/datagrams")
        b.send(b"x")
    except OSError as error:
        print(error)
"#;

const RECONNECTED_PAIR: &str = r#"
import socket
for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
    a, b = socket.socketpair(socket.AF_UNIX, kind)
    for again in (lambda: None, lambda: a.shutdown(2), b.close):
        again()
        try:
            a.connect(E["OUTSIDE"] + "/stream")
        except OSError as error:
            print(error)
"#;

/// Other kinds of sockets, each a part of the kernel that few programs need.
fn families() -> Vec<Case> {
    vec![
        Case::python(
            "make a socket of an unusual family",
            UNUSUAL,
            reports_success,
        )
        .stopped_by(FILTER, Gap::Mechanism)
        .control(NegativeControl::Without(&[Mechanism::SystemCalls])),
        Case::python(
            "make a raw socket",
            "import socket\n\
             attempt('raw', lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))\n\
             attempt('packet', lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))",
            reports_success,
        )
        .takes_root(),
        Case::custom("reach another sandbox", reaches_another_sandbox)
            .stopped_by(NETWORK, OFF)
            .control(NegativeControl::Unconfined),
        Case::shell(
            "see the host's network interfaces",
            "grep -v -e lo: -e '|' /proc/net/dev && echo GOT",
            reports_success,
        )
        .stopped_by(
            NAMESPACES,
            Gap::Known("without namespaces `/proc/net` is the host's"),
        ),
    ]
}

/// vsock, RDS, netlink other than routing; with bits that the kernel ignores.
const UNUSUAL: &str = r#"
reaches("vsock", 41, 40, 1, 0)
reaches("vsock with high bits", 41, 40 | 1 << 32, 1, 0)
reaches("alg", 41, 38, 5, 0)
reaches("netlink audit", 41, 16, 3, 9)
reaches("netlink generic", 41, 16, 3, 16)
reaches("netlink uevent", 41, 16, 3, 15)
reaches("tipc", 41, 30, 5, 0)
reaches("vsock pair", 53, 40, 1, 0, ctypes.byref((ctypes.c_int * 2)()))
"#;

fn reaches_another_sandbox(arena: &Arena) -> Tried<'_> {
    Box::pin(async {
        let other = arena.another().await.map_err(|error| error.to_string())?;
        let request = arena.with_environment(python(
            r#"
import socket
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
listener.accept()
print("GOT", flush=True)
time.sleep(10)
"#,
        ));
        let mut serving = other
            .spawn(request)
            .await
            .map_err(|error| error.to_string())?;
        let mut output = serving.take_output().ok_or("no output")?;
        let said = first_line(&mut output).await;
        let line = format!("exec 3<>/dev/tcp/127.0.0.1/{said} && echo GOT");
        let reached = match said.parse::<u16>() {
            Ok(_) => arena.shell(&line).await.stdout.contains("GOT"),
            Err(_) => false,
        };
        drop(serving);
        other.close().await.map_err(|error| error.to_string())?;
        let gone = traces::soon(LATE, || traces::marked(&arena.fixture.token).is_empty());
        if gone.await {
            Ok(reached)
        } else {
            Err("the other sandbox stays".to_owned())
        }
    })
}
