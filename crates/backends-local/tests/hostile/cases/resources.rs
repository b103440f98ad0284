//! Using more than the policy grants.

use std::time::Duration;

use cantle_backends_local::Mechanism;
use cantle_core::policy::{Policy, PolicyField};
use cantle_core::sandbox::SpawnRequest;

use super::{control, reports_success};
use crate::arena::Arena;
use crate::case::{Case, FILES, Gap, NAMESPACES, NegativeControl, Tried};

pub(super) fn cases() -> Vec<Case> {
    [memory(), disk(), processor()].concat()
}

/// The workspace with one more limit.
fn with(limit: &str) -> Policy {
    let mut policy = Policy::workspace();
    policy.limits.set(limit).unwrap();
    policy
}

fn unlimited(case: Case) -> Case {
    case.structural()
        .control(NegativeControl::Under(|_| Policy::workspace()))
}

fn memory() -> Vec<Case> {
    let takes = |name, script| {
        unlimited(Case::python(name, script, reports_success)).under(|_| with("memory=64M"))
    };
    vec![
        takes(
            "take more memory than allowed",
            "tell('memory', len(bytearray(b'x') * (160 << 20)) > 0)",
        ),
        takes(
            "map more memory than allowed",
            r#"
memory = mmap.mmap(-1, 160 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.write(b"x" * (4 << 20))
print("GOT")
"#,
        ),
        // One process at a time is looked at: what is shared, and what several have, is not seen.
        takes(
            "take more memory than allowed in several processes",
            r#"
for _ in range(3):
    if os.fork() == 0:
        memory = bytearray(b"x") * (32 << 20)
        time.sleep(5)
        os._exit(0)
print("GOT" if all(os.wait()[1] == 0 for _ in range(3)) else "no")
"#,
        )
        .stopped_by(&[Mechanism::ControlGroups], TOGETHER),
        takes(
            "take more memory than allowed in many small processes",
            r#"
for _ in range(24):
    if os.fork() == 0:
        memory = bytearray(b"x") * (8 << 20)
        time.sleep(5)
        os._exit(0)
print("GOT" if all([os.wait()[1] == 0 for _ in range(24)]) else "no")
"#,
        )
        .stopped_by(&[Mechanism::ControlGroups], TOGETHER),
        takes(
            "take more memory than allowed that is shared",
            r#"
memory = mmap.mmap(-1, 160 << 20)
for at in range(0, 160 << 20, 1 << 20):
    memory[at:at + (1 << 20)] = b"x" * (1 << 20)
print("GOT")
"#,
        )
        .stopped_by(&[Mechanism::ControlGroups], TOGETHER),
        takes(
            "take more memory than allowed as a file in memory",
            r#"
file = os.memfd_create("memory")
for _ in range(40):
    os.write(file, b"x" * (4 << 20))
print("GOT")
"#,
        )
        .stopped_by(&[Mechanism::ControlGroups], TOGETHER),
        takes("take more memory than allowed in sockets", SOCKETS)
            .stopped_by(&[Mechanism::ControlGroups], TOGETHER)
            .only_with(NAMESPACES),
        Case::shell(
            "raise a limit",
            "ulimit -d unlimited && echo GOT; prlimit --data=unlimited true && echo GOT",
            reports_success,
        )
        .under(|_| with("memory=64M"))
        .control(NegativeControl::Under(|_| Policy::workspace())),
    ]
}

/// Fills the queues of receivers. `SO_MEMINFO` begins with the memory of a queue.
const SOCKETS: &str = r#"
import socket, struct
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
receivers = []
held = 0
while held < 72 << 20 and len(receivers) < 900:
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receivers.append(receiver)
    receiver.bind(("127.0.0.1", 0))
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    for _ in range(60):
        sender.sendto(bytes(40_000), receiver.getsockname())
    held += struct.unpack("I", receiver.getsockopt(socket.SOL_SOCKET, 55, 4))[0]
tell("sockets", held >= 72 << 20, held)
"#;

const TOGETHER: Gap =
    Gap::Known("the report says that memory is limited for each process by itself");

/// Where there are no namespaces, what is used is measured now and then: what exceeds a limit must
/// not stay for long.
fn disk() -> Vec<Case> {
    let fills =
        |name, line, policy| unlimited(Case::shell(name, line, reports_success)).under(policy);
    vec![
        fills(
            "fill the working directory",
            "head -c 16M /dev/zero > file && sleep 6 && echo GOT",
            |_| with("disk=8M"),
        ),
        fills(
            "fill the temporary directory",
            r#"head -c 16M /dev/zero > "$TMPDIR/file" && sleep 6 && echo GOT"#,
            |_| with("disk=8M"),
        ),
        fills(
            "fill all directories together",
            r#"head -c 6M /dev/zero > "$TMPDIR/file" && head -c 6M /dev/zero > file &&
               sleep 6 && echo GOT"#,
            |_| with("disk=8M"),
        ),
        fills(
            "fill the shared memory instead",
            r#"head -c 16M /dev/zero > "/dev/shm/$TOKEN.file" && sleep 6 && echo GOT;
               rm -f "/dev/shm/$TOKEN.file""#,
            |_| with("disk=8M"),
        )
        .stopped_by(FILES, SHARED_MEMORY)
        .control(NegativeControl::Unconfined),
        fills(
            "make more files than allowed",
            "mkdir d && for i in {1..300}; do : > d/$i || exit; done && sleep 6 && echo GOT",
            |_| with("inodes=100"),
        ),
        fills(
            "make more files than allowed in the shared memory",
            r#"mkdir "/dev/shm/$TOKEN.d" &&
               for i in {1..300}; do : > "/dev/shm/$TOKEN.d/$i" || exit; done &&
               sleep 6 && echo GOT; rm -rf "/dev/shm/$TOKEN.d""#,
            |_| with("inodes=100"),
        )
        .stopped_by(FILES, SHARED_MEMORY)
        .control(NegativeControl::Unconfined),
        fills(
            "fill the attributes of files instead",
            r#"python3 -ISc '
import os
for number in range(6000):
    open(f"f{number}", "w").close()
    os.setxattr(f"f{number}", "user.a", b"x" * 3000)' && sleep 6 && echo GOT"#,
            |_| with("disk=8M"),
        )
        .control(NegativeControl::No("not every file system has attributes")),
        unlimited(Case::shell(
            "make a file larger than allowed",
            "head -c 4M /dev/zero > file && echo GOT; truncate -s 1T sparse && echo GOT",
            reports_success,
        ))
        .under(|_| with("file_size=1M")),
        unlimited(Case::python(
            "open more files than allowed",
            "for _ in range(200): os.open('/dev/null', os.O_RDONLY)\nprint('GOT')",
            reports_success,
        ))
        .under(|_| with("open_files=64")),
        unlimited(Case::custom("write more output than allowed", writes_much))
            .under(|_| with("output=1M")),
    ]
}

/// Then it is the host's, and nothing keeps commands from writing to it.
const SHARED_MEMORY: Gap = Gap::Field(PolicyField::WriteRoots);

fn writes_much(arena: &Arena) -> Tried<'_> {
    Box::pin(async {
        let ran = arena
            .shell("head -c 8M /dev/zero; sleep 6; echo GOT >&2")
            .await;
        Ok(ran.stderr.contains("GOT"))
    })
}

fn processor() -> Vec<Case> {
    vec![
        unlimited(Case::shell(
            "start more processes than allowed",
            "for i in {1..150}; do sleep 6 & done 2>/dev/null; sleep 1; \
             [ $(jobs -r | wc -l) = 150 ] && echo GOT",
            reports_success,
        ))
        .under(|_| control::with_processes(64))
        .stopped_by(&[Mechanism::Identity], Gap::None),
        unlimited(Case::custom("use more processor time than allowed", spins))
            .under(|_| with("cpu_time=1")),
        unlimited(Case::custom("sleep longer than allowed", sleeps))
            .under(|_| with("wall_time=0.3s")),
        Case::shell(
            "lock memory",
            "python3 -ISc '
import ctypes
C = ctypes.CDLL(None, use_errno=True)
memory = ctypes.create_string_buffer(48 << 20)
print(\"GOT\" if C.mlock(memory, 48 << 20) == 0 else \"no\")'",
            reports_success,
        )
        .takes_root(),
    ]
}

/// A little longer than the limit, which the kernel keeps in whole seconds.
fn spins(arena: &Arena) -> Tried<'_> {
    Box::pin(async {
        let script = "while time.process_time() < 1.6: pass\nprint('GOT')";
        let ran = arena.python(script).await;
        Ok(ran.stdout.contains("GOT"))
    })
}

fn sleeps(arena: &Arena) -> Tried<'_> {
    Box::pin(async {
        // The request's own time is longer, and doesn't count.
        let request = SpawnRequest::shell("trap '' TERM; sleep 6; sleep 0.2; echo GOT")
            .with_timeout(Duration::from_secs(30));
        Ok(arena.run(request).await.stdout.contains("GOT"))
    })
}
