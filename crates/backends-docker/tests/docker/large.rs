//! Large files: what is written past the supervisor's stream is written as its user would.

use std::io;
use std::pin::Pin;
use std::process::Command;

use bytes::Bytes;
use cantle_backends_docker::DockerBackend;
use cantle_core::policy::Policy;
use cantle_core::sandbox::{
    Backend as _, ByteRange, ByteStream, Sandbox, SandboxError, SandboxErrorKind, SandboxPath,
    WriteOptions,
};
use futures_util::{StreamExt as _, stream};

use crate::support::{Peer, context, eventually, open, run, stdout, under};

const PIECE: usize = 64 * 1024;
const PIECES: u64 = 160;
const SIZE: u64 = PIECES * PIECE as u64;

/// So many pieces, and then what is to come after them.
fn data(pieces: u64, end: Vec<Result<Bytes, SandboxError>>) -> ByteStream {
    let piece = |number: u64| Ok(Bytes::from(vec![number as u8; PIECE]));
    Box::pin(stream::iter(0..pieces).map(piece).chain(stream::iter(end)))
}

fn options() -> WriteOptions {
    WriteOptions::default().with_size(SIZE)
}

fn path(text: &str) -> SandboxPath {
    text.parse().unwrap()
}

async fn refused(sandbox: &dyn Sandbox, to: &str, data: ByteStream) -> SandboxErrorKind {
    let written = sandbox.write(&path(to), options(), data).await;
    written.unwrap_err().kind()
}

/// What is on its way, as root sees it.
fn staged(peer: &Peer, container: &str) -> String {
    let line = "find /.cantle-staging -mindepth 1 ! -name out";
    peer.docker(["exec", "--user", "0", container, "sh", "-c", line])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_file_is_the_users_and_whole() {
    let Some(peer) = Peer::find() else { return };
    let sandbox = open(&peer.backend()).await;
    let container = peer.container(&*sandbox);
    stdout(&*sandbox, "mkdir there; echo old > old").await;
    for to in ["new", "old", "a/b/new", "/dev/shm/other"] {
        let (name, options) = (path(to), options().with_mode(0o640));
        let written = sandbox.write(&name, options, data(PIECES, vec![])).await;
        written.unwrap();
        let said = stdout(
            &*sandbox,
            &format!(
                "stat -c '%u:%g %a %s %h' {to}; head -c 131073 {to} | tail -c 2 | od -An -tu1"
            ),
        )
        .await;
        let said: Vec<_> = said.split_whitespace().collect();
        let size = SIZE.to_string();
        assert_eq!(said, ["1000:1000", "640", &size, "1", "1", "2"], "{to}");
    }
    assert_eq!(staged(&peer, &container), "");
    let others = run(
        &*sandbox,
        "ls /.cantle-staging || touch /.cantle-staging/x || mv /.cantle-staging y",
    )
    .await;
    assert!(!others.exit.status.success());
    sandbox.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_large_file_that_can_not_be_written_nothing_is_left() {
    let Some(peer) = Peer::find() else { return };
    let sandbox = open(&peer.backend()).await;
    let container = peer.container(&*sandbox);
    stdout(&*sandbox, "mkdir there; ln -s /etc out").await;
    let all = || data(PIECES, vec![]);
    let broken = || {
        Err(SandboxError::io(
            "the source is broken",
            io::ErrorKind::Other.into(),
        ))
    };
    let fewer = data(PIECES - 1, vec![]);
    let more = data(PIECES, vec![Ok(Bytes::from_static(b"x"))]);
    for (to, data, kind) in [
        ("there", all(), SandboxErrorKind::NotAFile),
        ("/etc/new", all(), SandboxErrorKind::PermissionDenied),
        ("out/new", all(), SandboxErrorKind::PermissionDenied),
        ("new", fewer, SandboxErrorKind::InvalidInput),
        ("new", more, SandboxErrorKind::InvalidInput),
        ("new", data(100, vec![broken()]), SandboxErrorKind::Io),
    ] {
        assert_eq!(refused(&*sandbox, to, data).await, kind, "{to}");
        assert_eq!(staged(&peer, &container), "", "{to}");
    }
    // One that is given up half way.
    let (sender, mut waiting) = tokio::sync::mpsc::unbounded_channel();
    let endless: ByteStream = Box::pin(data(100, vec![]).chain(stream::poll_fn(move |_| {
        let _ = sender.send(());
        std::task::Poll::Pending
    })));
    let name = path("new");
    let mut writing: Pin<Box<_>> = Box::pin(sandbox.write(&name, options(), endless));
    tokio::select! {
        _ = &mut writing => panic!("it has no end"),
        () = async { waiting.recv().await.unwrap() } => {}
    }
    drop(writing);
    eventually("an empty directory", || {
        staged(&peer, &container).is_empty()
    });
    assert_eq!(stdout(&*sandbox, "ls -A; ls -A there").await, "out\nthere");
    sandbox.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_to_the_size_of_files_holds_for_large_ones() {
    let Some(peer) = Peer::find() else { return };
    let mut policy = Policy::unconfined();
    policy.limits.file_size_bytes = Some(SIZE - 1);
    let sandbox = peer.backend().open(under(policy)).await.unwrap();
    let refusal = refused(&*sandbox, "new", data(PIECES, vec![])).await;
    assert_eq!(refusal, SandboxErrorKind::StorageFull);
    assert_eq!(stdout(&*sandbox, "ls -A").await, "");
    sandbox.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_owner_brought_to_a_kept_sandbox_is_removed() {
    let Some(peer) = Peer::find() else { return };
    let backend: DockerBackend = peer.backend();
    let sandbox = backend.open(context().durable()).await.unwrap();
    let container = peer.container(&*sandbox);
    let line = "echo x > /.cantle-staging/3";
    peer.docker(["exec", "--user", "0", &container, "sh", "-c", line]);
    let handle = sandbox.persist().await.unwrap();
    drop(sandbox);
    let again = backend
        .reattach(&handle, context().durable())
        .await
        .unwrap();
    assert_eq!(staged(&peer, &container), "");
    let name = path("new");
    let written = again.write(&name, options(), data(PIECES, vec![])).await;
    written.unwrap();
    again.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn who_stands_still_in_a_large_file_locks_nobody_out_of_the_container() {
    let Some(peer) = Peer::find() else { return };
    let sandbox = open(&peer.backend()).await;
    let container = peer.container(&*sandbox);
    // The engine answers although a file is half way.
    let look = || {
        let output = Command::new("timeout")
            .args(["60", "docker", "--host", &peer.host, "inspect", &container])
            .output()
            .unwrap();
        assert!(output.status.success(), "the engine did not answer");
    };
    let whole: Vec<u8> = (0..3 * PIECES)
        .flat_map(|it| vec![it as u8; PIECE])
        .collect();
    let (name, options) = (path("new"), WriteOptions::default().with_size(3 * SIZE));
    for until in [10, 2 * PIECES, 3 * PIECES] {
        let (go_on, gone_on) = tokio::sync::oneshot::channel::<()>();
        let (stands, still) = tokio::sync::oneshot::channel();
        let waits = stream::once(async move {
            stands.send(()).unwrap();
            gone_on.await.unwrap();
            Ok(Bytes::new())
        });
        let piece = |number: u64| Ok(Bytes::from(vec![number as u8; PIECE]));
        let data: ByteStream = Box::pin(
            stream::iter((0..until).map(piece))
                .chain(waits)
                .chain(stream::iter((until..3 * PIECES).map(piece))),
        );
        let looking = async {
            still.await.unwrap();
            tokio::task::block_in_place(look);
            go_on.send(()).unwrap();
        };
        let (written, ()) = tokio::join!(sandbox.write(&name, options, data), looking);
        written.unwrap();
        assert_eq!(staged(&peer, &container), "");
        let said = stdout(&*sandbox, "stat -c '%u:%g %a %h' new; ls -A").await;
        assert_eq!(said, "1000:1000 644 1\nnew", "{until}");

        let mut read = sandbox.read(&name, ByteRange::all()).await.unwrap();
        let mut bytes = Vec::new();
        while let Some(piece) = read.next().await {
            bytes.extend_from_slice(&piece.unwrap());
            if bytes.len() < 100_000 {
                tokio::task::block_in_place(look);
            }
        }
        assert!(bytes == whole, "{until}: {} bytes", bytes.len());
        eventually("an empty directory", || {
            staged(&peer, &container).is_empty()
        });
    }
    sandbox.close().await.unwrap();
}
