//! Limits that are measured: of files where no file system enforces them, and of processes.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use cantle_backends_local::{LocalBackend, Mechanism};
use cantle_core::ids::RunId;
use cantle_core::policy::{Policy, PolicyField, Strictness};
use cantle_core::sandbox::{
    Backend as _, Background, EnforcedBy, ExitStatus, Sandbox, SandboxContext, SandboxErrorKind,
    SandboxExt as _, SpawnRequest, WriteOptions,
};
use futures_util::{StreamExt as _, stream};

use crate::support::{path, ran_as_ordinary_user, run, soon, stdout};

const MIB: u64 = 1 << 20;

fn limited(limits: &[&str]) -> Policy {
    let mut policy = Policy::workspace();
    for limit in limits {
        policy.limits.set(limit).unwrap();
    }
    policy
}

/// Opens a sandbox whose files can be kept, and so are neither in memory nor, without images, in a file system of
/// their own.
async fn open_durable(limits: &[&str]) -> Arc<dyn Sandbox> {
    let cx = SandboxContext::new(RunId::new(), limited(limits)).durable();
    let backend = LocalBackend::new().without(Mechanism::DiskImages);
    let sandbox = backend.open(cx).await.unwrap();
    let report = &sandbox.info().enforcement;
    let files = [PolicyField::Disk, PolicyField::Inodes];
    let is_polled = |field| {
        let mut report = report.iter();
        report.all(|it| it.field != field || it.by == EnforcedBy::Polled)
    };
    assert!(files.into_iter().all(is_polled), "{report:?}");
    sandbox
}

/// Returns the allocated bytes below the sandbox's directory on the host.
async fn allocated(sandbox: &dyn Sandbox) -> u64 {
    let handle = sandbox.persist().await.unwrap();
    let token: serde_json::Value = serde_json::from_str(&handle.token).unwrap();
    allocated_below(Path::new(token.get("directory").unwrap().as_str().unwrap()))
}

fn allocated_below(directory: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;

    let Ok(entries) = fs::read_dir(directory) else {
        return 0;
    };
    let sizes = entries.map(|entry| {
        let entry = entry.unwrap();
        let found = entry.metadata().unwrap();
        let below = if found.is_dir() {
            allocated_below(&entry.path())
        } else {
            0
        };
        found.blocks() * 512 + below
    });
    sizes.sum()
}

const DISK_EXCEEDED: ExitStatus = ExitStatus::LimitReached {
    field: PolicyField::Disk,
    limit: 8 * MIB,
};

#[tokio::test]
async fn short_commands_together_stay_within_the_disk_limit() {
    let sandbox = open_durable(&["disk=8M"]).await;
    let mut statuses = Vec::new();
    for number in 0..8 {
        let line = format!("head -c 3M /dev/zero > {number}");
        statuses.push(run(&*sandbox, &line).await.exit.status);
    }
    let mut expected = vec![ExitStatus::Code(0); 2];
    expected.push(DISK_EXCEEDED);
    expected.resize(8, ExitStatus::Code(1));
    assert_eq!(statuses, expected);
    assert!(allocated(&*sandbox).await < 10 * MIB);
    // Everything but removing is refused, in every directory.
    let line = "ls | wc -l; echo x >> 0; mkdir d; : > $TMPDIR/f; ln 0 1; cp 0 9; mv 0 9; echo y > /dev/null && rm 0";
    let output = run(&*sandbox, line).await;
    assert_eq!(output.stdout.text(), "3\n", "{output:?}");
    let notes = output.exit.notes.join("\n");
    assert!(notes.is_empty(), "it is within the limit again: {notes}");
    assert_eq!(
        stdout(&*sandbox, "ls; echo z > 9; cat 9").await,
        "1\n2\nz\n"
    );
    sandbox.close().await.unwrap();
}

#[test]
fn unreadable_directories_hide_nothing() {
    // Root can read them.
    if ran_as_ordinary_user("measured::unreadable_directories_hide_nothing") {
        return;
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let sandbox = open_durable(&["disk=8M"]).await;
        for number in 0..8 {
            let line = format!(
                "mkdir -p d/e && chmod 700 d && head -c 3M /dev/zero > d/e/{number}; chmod 300 d/e; chmod 600 d"
            );
            run(&*sandbox, &line).await;
        }
        run(&*sandbox, "chmod 700 d d/e").await;
        assert!(allocated(&*sandbox).await < 10 * MIB);
        // While a command runs, a directory that can't be read exceeds the limit.
        run(&*sandbox, "rm -rf d").await;
        let request = SpawnRequest::shell("mkdir d && chmod 300 d && sleep 60");
        let exit = soon(sandbox.run(request)).await.unwrap().exit;
        assert_eq!(exit.status, DISK_EXCEEDED);
        sandbox.close().await.unwrap();
    });
}

#[tokio::test]
async fn background_processes_are_killed_when_the_files_exceed_the_limit() {
    let sandbox = open_durable(&["disk=8M"]).await;
    let request = SpawnRequest::shell("head -c 9M /dev/zero > f; sleep 60 & true")
        .with_background(Background::Keep);
    let exit = sandbox.run(request).await.unwrap().exit;
    assert_eq!((exit.status, exit.background), (DISK_EXCEEDED, Vec::new()));
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn files_written_through_the_sandbox_stay_within_the_limits() {
    let sandbox = open_durable(&["disk=8M", "inodes=20", "file_size=5M"]).await;
    let data = |mib: u64| Bytes::from(vec![1_u8; usize::try_from(mib * MIB).unwrap()]);
    let write = async |name: &str, mib| sandbox.write_bytes(&path(name), data(mib)).await;
    let full = |result: Result<(), cantle_core::sandbox::SandboxError>| {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), SandboxErrorKind::StorageFull, "{error}");
        assert!(error.advice().is_some(), "{error}");
        error.to_string()
    };
    let names = async || {
        let listed = sandbox.list(&path(".")).await.unwrap();
        listed
            .iter()
            .map(|it| it.path.to_string())
            .collect::<Vec<_>>()
    };
    write("a", 4).await.unwrap();
    assert!(full(write("b", 5).await).contains("`disk`"));
    assert!(full(write("b", 6).await).contains("`file_size`"));
    // A stream without end.
    let endless = stream::repeat_with(move || Ok(data(1))).boxed();
    full(
        sandbox
            .write(&path("b"), WriteOptions::default(), endless)
            .await,
    );
    assert_eq!(names().await, ["a"]);
    assert!(allocated(&*sandbox).await < 5 * MIB);
    // Several at once, of which each alone would fit.
    let names_at_once: Vec<String> = (0..8).map(|number| format!("c{number}")).collect();
    let all = names_at_once.iter().map(|name| write(name, 1));
    let written = futures_util::future::join_all(all).await;
    let complete = written.iter().filter(|it| it.is_ok()).count();
    assert_eq!((complete, names().await.len()), (4, 5));
    // Replacing a file needs room for both until the old one is gone; what was removed can be used again.
    full(write("a", 1).await);
    sandbox.remove(&path("a")).await.unwrap();
    write("d", 3).await.unwrap();

    for number in 0..15 {
        sandbox.mkdir(&path(&format!("e{number}"))).await.unwrap();
    }
    assert!(full(sandbox.mkdir(&path("f/g/h")).await).contains("`inodes`"));
    assert!(full(write("f/g", 0).await).contains("`inodes`"));
    assert!(!names().await.contains(&"f".to_owned()));
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn processes_of_all_commands_are_counted() {
    let mut policy = limited(&["processes=160"]);
    policy.strictness = Strictness::BestEffort;
    let backend = LocalBackend::new()
        .without(Mechanism::Namespaces)
        .without(Mechanism::ControlGroups);
    let cx = SandboxContext::new(RunId::new(), policy);
    let sandbox = backend.open(cx).await.unwrap();
    let exceeded = ExitStatus::LimitReached {
        field: PolicyField::Processes,
        limit: 160,
    };
    // Their command lines together are longer than a pipe.
    let start = |count: u32| {
        let line = format!(
            "long=$(printf 'x%.0s' {{1..500}}); for i in $(seq {count}); do sleep 20 $long & done 2>/dev/null; wait"
        );
        SpawnRequest::shell(line.replace("sleep 20 $long", "(exec -a $long sleep 20)"))
    };
    let one = soon(sandbox.run(start(200))).await.unwrap();
    assert_eq!(one.exit.status, exceeded);
    // Of two commands together.
    let (one, other) = soon(async {
        futures_util::future::join(sandbox.run(start(100)), sandbox.run(start(100))).await
    })
    .await;
    let statuses = [one.unwrap().exit.status, other.unwrap().exit.status];
    assert!(statuses.contains(&exceeded), "{statuses:?}");
    sandbox.close().await.unwrap();
}
