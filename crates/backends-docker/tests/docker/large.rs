//! Large files.

use std::io;
use std::pin::Pin;
use std::process::Command;

use bytes::Bytes;
use cantle_core::policy::Policy;
use cantle_core::sandbox::{
    Backend as _, ByteRange, ByteStream, Sandbox, SandboxError, SandboxErrorKind, SandboxPath,
    WriteOptions,
};
use futures_util::{StreamExt as _, stream};

use crate::support::{TestEngine, context_with, open, stdout};

const CHUNK_BYTES: usize = 64 * 1024;
const CHUNKS: u64 = 160;
const SIZE: u64 = CHUNKS * CHUNK_BYTES as u64;

/// A stream of `chunks` chunks, followed by `end`.
fn data(chunks: u64, end: Vec<Result<Bytes, SandboxError>>) -> ByteStream {
    let chunk = |number: u64| Ok(Bytes::from(vec![number as u8; CHUNK_BYTES]));
    Box::pin(stream::iter(0..chunks).map(chunk).chain(stream::iter(end)))
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

#[tokio::test(flavor = "multi_thread")]
async fn large_file_is_complete_and_belongs_to_the_user() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    let sandbox = open(&engine.backend()).await;
    stdout(&*sandbox, "mkdir there; echo old > old").await;
    for to in ["new", "old", "a/b/new", "/dev/shm/other"] {
        let (name, options) = (path(to), options().with_mode(0o640));
        let written = sandbox.write(&name, options, data(CHUNKS, vec![])).await;
        written.unwrap();
        let output = stdout(
            &*sandbox,
            &format!(
                "stat -c '%u:%g %a %s %h' {to}; head -c 131073 {to} | tail -c 2 | od -An -tu1"
            ),
        )
        .await;
        let output: Vec<_> = output.split_whitespace().collect();
        let size = SIZE.to_string();
        assert_eq!(output, ["1000:1000", "640", &size, "1", "1", "2"], "{to}");
    }
    sandbox.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_write_of_a_large_file_leaves_nothing() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    let sandbox = open(&engine.backend()).await;
    stdout(&*sandbox, "mkdir there; ln -s /etc out").await;
    let all = || data(CHUNKS, vec![]);
    let broken = || {
        Err(SandboxError::io(
            "the source is broken",
            io::ErrorKind::Other.into(),
        ))
    };
    let fewer = data(CHUNKS - 1, vec![]);
    let more = data(CHUNKS, vec![Ok(Bytes::from_static(b"x"))]);
    for (to, data, kind) in [
        ("there", all(), SandboxErrorKind::NotAFile),
        ("/etc/new", all(), SandboxErrorKind::PermissionDenied),
        ("out/new", all(), SandboxErrorKind::PermissionDenied),
        ("new", fewer, SandboxErrorKind::InvalidInput),
        ("new", more, SandboxErrorKind::InvalidInput),
        ("new", data(100, vec![broken()]), SandboxErrorKind::Io),
    ] {
        assert_eq!(refused(&*sandbox, to, data).await, kind, "{to}");
    }
    // An aborted write.
    let (sender, mut waiting) = tokio::sync::mpsc::unbounded_channel();
    let endless: ByteStream = Box::pin(data(100, vec![]).chain(stream::poll_fn(move |_| {
        let _ = sender.send(());
        std::task::Poll::Pending
    })));
    let name = path("new");
    let mut writing: Pin<Box<_>> = Box::pin(sandbox.write(&name, options(), endless));
    tokio::select! {
        _ = &mut writing => panic!("the endless write completed"),
        () = async { waiting.recv().await.unwrap() } => {}
    }
    drop(writing);
    assert_eq!(stdout(&*sandbox, "ls -A; ls -A there").await, "out\nthere");
    sandbox.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn file_size_limit_applies_to_large_files() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    let mut policy = Policy::unconfined();
    policy.limits.file_size_bytes = Some(SIZE - 1);
    let sandbox = engine.backend().open(context_with(policy)).await.unwrap();
    let refusal = refused(&*sandbox, "new", data(CHUNKS, vec![])).await;
    assert_eq!(refusal, SandboxErrorKind::StorageFull);
    assert_eq!(stdout(&*sandbox, "ls -A").await, "");
    sandbox.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn stalled_transfer_of_a_large_file_does_not_block_the_engine() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    let sandbox = open(&engine.backend()).await;
    let container = engine.container(&*sandbox);
    // The engine responds during a transfer.
    let check_engine = || {
        let output = Command::new("timeout")
            .args([
                "60",
                "docker",
                "--host",
                &engine.host,
                "inspect",
                &container,
            ])
            .output()
            .unwrap();
        assert!(output.status.success(), "the engine did not answer");
    };
    let whole: Vec<u8> = (0..3 * CHUNKS)
        .flat_map(|it| vec![it as u8; CHUNK_BYTES])
        .collect();
    let (name, options) = (path("new"), WriteOptions::default().with_size(3 * SIZE));
    for until in [10, 2 * CHUNKS, 3 * CHUNKS] {
        let (resume, resumed) = tokio::sync::oneshot::channel::<()>();
        let (stalled, on_stall) = tokio::sync::oneshot::channel();
        let stall = stream::once(async move {
            stalled.send(()).unwrap();
            resumed.await.unwrap();
            Ok(Bytes::new())
        });
        let chunk = |number: u64| Ok(Bytes::from(vec![number as u8; CHUNK_BYTES]));
        let data: ByteStream = Box::pin(
            stream::iter((0..until).map(chunk))
                .chain(stall)
                .chain(stream::iter((until..3 * CHUNKS).map(chunk))),
        );
        let checking = async {
            on_stall.await.unwrap();
            tokio::task::block_in_place(check_engine);
            resume.send(()).unwrap();
        };
        let (written, ()) = tokio::join!(sandbox.write(&name, options, data), checking);
        written.unwrap();
        let output = stdout(&*sandbox, "stat -c '%u:%g %a %h' new; ls -A").await;
        assert_eq!(output, "1000:1000 644 1\nnew", "{until}");

        let mut read = sandbox.read(&name, ByteRange::all()).await.unwrap();
        let mut bytes = Vec::new();
        while let Some(chunk) = read.next().await {
            bytes.extend_from_slice(&chunk.unwrap());
            if bytes.len() < 100_000 {
                tokio::task::block_in_place(check_engine);
            }
        }
        assert!(bytes == whole, "{until}: {} bytes", bytes.len());
    }
    sandbox.close().await.unwrap();
}
