//! Sandboxes without the supervisor, whose commands are execs of the engine.

use std::time::{Duration, Instant};

use bytes::Bytes;
use cantle_core::sandbox::{
    Background, ByteRange, ExitStatus, FileKind, PtySize, SandboxError, SandboxErrorKind,
    SandboxExt as _, SandboxPath, SpawnRequest, Stdin, WriteOptions,
};
use cantle_testkit::conformance::{SandboxOptions, sandbox_with};
use futures_util::{StreamExt as _, stream};
use tokio::time::sleep;

use crate::support::{DEADLINE, TestEngine, eventually, open, stdout};

fn path(path: &str) -> SandboxPath {
    SandboxPath::new(path).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_and_files_work_without_a_supervisor() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    for backend in [
        engine.backend().without_supervisor(),
        engine.busybox().without_supervisor(),
    ] {
        let sandbox = open(&backend).await;
        let mechanisms = sandbox.info().mechanisms.join("; ");
        assert!(mechanisms.contains("without supervisor"), "{mechanisms}");
        assert_eq!(stdout(&*sandbox, "pwd; id -u").await, "/workspace\n1000");
        let echoed = SpawnRequest::argv(["cat"]).with_stdin(Stdin::Bytes("input".into()));
        let output = sandbox.run(echoed).await.unwrap();
        assert_eq!(output.stdout.text(), "input");
        let output = sandbox
            .run(SpawnRequest::shell("echo bad >&2; exit 3"))
            .await
            .unwrap();
        assert_eq!(
            (output.exit.status, output.stderr.text()),
            (ExitStatus::Code(3), "bad\n".to_owned())
        );

        sandbox
            .write_bytes(&path("a/b/c d\n'"), "text".into())
            .await
            .unwrap();
        assert_eq!(
            sandbox.read_bytes(&path("a/b/c d\n'"), 100).await.unwrap(),
            "text"
        );
        let names: Vec<_> = sandbox.list(&path("a/b")).await.unwrap();
        assert_eq!(names.len(), 1);
        let info = sandbox.stat(&path("a/b")).await.unwrap();
        assert_eq!((info.kind, info.mode), (FileKind::Directory, Some(0o755)));
        sandbox
            .rename(&path("a/b"), &path("moved/here"))
            .await
            .unwrap();
        sandbox.mkdir(&path("new/dir")).await.unwrap();
        sandbox.remove(&path("moved")).await.unwrap();
        assert_eq!(
            stdout(&*sandbox, "find . | sort").await,
            ".\n./a\n./new\n./new/dir"
        );

        let kind = |error: SandboxError| error.kind();
        let missing = sandbox
            .read(&path("missing"), ByteRange::all())
            .await
            .map(drop);
        assert_eq!(missing.map_err(kind), Err(SandboxErrorKind::NotFound));
        let directory = sandbox.read(&path("a"), ByteRange::all()).await.map(drop);
        assert_eq!(directory.map_err(kind), Err(SandboxErrorKind::NotAFile));
        let outside = sandbox
            .read(&path("/etc/passwd"), ByteRange::all())
            .await
            .map(drop);
        assert!(matches!(
            outside.map_err(kind),
            Err(SandboxErrorKind::OutsideSandbox | SandboxErrorKind::NotFound)
        ));
        let short = WriteOptions::default().with_size(10);
        let data = Box::pin(stream::iter([Ok("short".into())]));
        let written = sandbox.write(&path("short"), short, data).await;
        assert_eq!(written.map_err(kind), Err(SandboxErrorKind::InvalidInput));
        assert_eq!(stdout(&*sandbox, "ls -A").await, "a\nnew");
        sandbox.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn abandoned_and_failed_writes_leave_no_file() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    for backend in [
        engine.backend().without_supervisor(),
        engine.busybox().without_supervisor(),
    ] {
        let sandbox = open(&backend).await;
        let container = engine.container(&*sandbox);
        let begin = || stream::iter([Ok::<_, SandboxError>(Bytes::from("part"))]);
        let target = path("file");
        let data = Box::pin(begin().chain(stream::pending()));
        let write = sandbox.write(&target, WriteOptions::default(), data);
        let begun = async { while !stdout(&*sandbox, "ls -A").await.starts_with(".cantle-") {} };
        tokio::select! {
            written = write => panic!("{written:?}"),
            () = begun => {}
            () = sleep(DEADLINE) => panic!("no temporary file"),
        }
        let files = || engine.docker(["exec", &container, "ls", "-A", "/workspace"]);
        eventually("its end", || files().is_empty());

        let failure = stream::iter([Err(SandboxError::invalid_input("broken"))]);
        let data = Box::pin(begin().chain(failure));
        let began = Instant::now();
        let written = sandbox.write(&target, WriteOptions::default(), data).await;
        assert_eq!(written.unwrap_err().kind(), SandboxErrorKind::InvalidInput);
        assert!(began.elapsed() < DEADLINE / 2, "{:?}", began.elapsed());
        assert_eq!(files(), "");
        sandbox.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn timeout_kills_the_process_tree() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    let sandbox = open(&engine.backend().without_supervisor()).await;
    let container = engine.container(&*sandbox);
    let began = Instant::now();
    // Long enough for a slow engine to start the command.
    let limit = Duration::from_secs(8);
    let request =
        SpawnRequest::shell("echo begun; setsid sleep 4000 & sleep 4000").with_timeout(limit);
    let output = sandbox.run(request).await.unwrap();
    assert_eq!(output.exit.status, ExitStatus::TimedOut { limit });
    assert_eq!(output.stdout.text(), "begun\n");
    assert!(began.elapsed() < limit + DEADLINE, "{:?}", began.elapsed());
    let processes = || engine.docker(["top", &container, "-o", "pid,args"]);
    assert!(!processes().contains("sleep 4000"), "{}", processes());

    // Background processes are also killed after a normal exit.
    let left = sandbox
        .run(SpawnRequest::shell("setsid sleep 5000 & true"))
        .await
        .unwrap();
    assert_eq!(left.exit.status, ExitStatus::Code(0));
    assert!(!processes().contains("sleep 5000"), "{}", processes());

    let process = sandbox
        .spawn(SpawnRequest::shell("sleep 6000"))
        .await
        .unwrap();
    eventually("the command", || processes().contains("sleep 6000"));
    drop(process);
    eventually("its end", || !processes().contains("sleep 6000"));
    sandbox.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn unsupported_requests_are_refused() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    let sandbox = open(&engine.busybox().without_supervisor()).await;
    let mut terminal = SpawnRequest::shell("true");
    terminal.pty = Some(PtySize {
        rows: 24,
        columns: 80,
    });
    let background = SpawnRequest::shell("true").with_background(Background::Keep);
    for request in [terminal, background] {
        let error = sandbox.spawn(request).await.map(drop).unwrap_err();
        assert_eq!(error.kind(), SandboxErrorKind::Unsupported);
    }
    let error = sandbox
        .spawn(SpawnRequest::argv(["nosuchprogram"]))
        .await
        .map(drop)
        .unwrap_err();
    assert_eq!(error.kind(), SandboxErrorKind::NotFound);
    sandbox.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn range_is_read_to_its_end_or_that_of_the_file() {
    const LARGE: u64 = 64 << 20;
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    for backend in [
        engine.backend().without_supervisor(),
        engine.busybox().without_supervisor(),
    ] {
        let sandbox = open(&backend).await;
        let line =
            "dd if=/dev/zero of=large bs=1048576 count=64 2>/dev/null; printf 0123456789 > small";
        stdout(&*sandbox, line).await;
        for offset in [0, 1] {
            // A range within the file ends before `tail` does.
            let range = ByteRange::new(offset, LARGE / 2);
            let read = sandbox.read(&path("large"), range).await.unwrap();
            let pieces: Vec<_> = read
                .map(|piece| piece.unwrap().len() as u64)
                .collect()
                .await;
            assert_eq!(pieces.iter().sum::<u64>(), LARGE / 2);
            let range = ByteRange::new(offset, 100);
            let read = sandbox.read(&path("small"), range).await.unwrap();
            let pieces: Vec<_> = read
                .map(|piece| piece.unwrap().len() as u64)
                .collect()
                .await;
            assert_eq!(pieces.iter().sum::<u64>(), 10 - offset);
        }
        sandbox.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn interrupted_read_of_a_range_does_not_look_complete() {
    const LARGE: u64 = 200 << 20;
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    let sandbox = open(&engine.backend().without_supervisor()).await;
    stdout(&*sandbox, "truncate -s 200M large").await;
    for offset in [0, 1] {
        let range = ByteRange::new(offset, LARGE - 10);
        let mut read = sandbox.read(&path("large"), range).await.unwrap();
        read.next().await.unwrap().unwrap();
        let line = "for process in /proc/[0-9]*; do case $(cat $process/comm 2>/dev/null) in \
                    head|tail) kill -KILL ${process#/proc/} ;; esac; done; true";
        // Slowly, so that the file doesn't end first; some engines end nothing while output is not read.
        let reading = async {
            let mut last = Ok(());
            while let Some(piece) = read.next().await {
                last = piece.map(drop);
                sleep(Duration::from_millis(5)).await;
            }
            last
        };
        let (last, _) = tokio::join!(reading, stdout(&*sandbox, line));
        assert_eq!(last.unwrap_err().kind(), SandboxErrorKind::Io, "{offset}");
    }
    sandbox.close().await.unwrap();
}

/// Runs the cases that need no supervisor.
#[tokio::test(flavor = "multi_thread")]
async fn applicable_cases_conform() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    let cases = [
        "sandbox_info_is_complete",
        "two_sandboxes_share_nothing",
        "closing_twice_is_a_no_op",
        "a_closed_sandbox_reports_closed",
        "a_link_is_reported_as_a_link",
        "a_path_outside_is_refused",
        "nothing_is_read_through_an_escaping_link",
    ];
    let options = SandboxOptions::new().only(&cases);
    sandbox_with(&engine.backend().without_supervisor(), options)
        .await
        .assert();
}
