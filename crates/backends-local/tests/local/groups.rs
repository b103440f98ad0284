//! Limits for all processes of a sandbox together, if control groups can be created.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cantle_backends_local::{LocalBackend, Mechanism};
use cantle_core::ids::RunId;
use cantle_core::policy::{Policy, PolicyField};
use cantle_core::sandbox::{
    Backend as _, EnforcedBy, ExitStatus, Sandbox, SandboxContext, SandboxExt as _, SpawnRequest,
};

use crate::support::{
    Owner, Token, eventually, new_runtime, path, read_until, rerun, run, say, stdout,
};

const MEMORY: u64 = 64 << 20;

fn limited() -> Policy {
    let mut policy = Policy::workspace();
    policy.limits.memory_bytes = Some(MEMORY);
    policy
}

fn by(sandbox: &dyn Sandbox, field: PolicyField) -> EnforcedBy {
    let report = &sandbox.info().enforcement;
    report.iter().find(|it| it.field == field).unwrap().by
}

/// Opens a sandbox whose memory is limited by a group; `None` if none can be created.
async fn open_grouped(backend: LocalBackend) -> Option<Arc<dyn Sandbox>> {
    let cx = SandboxContext::new(RunId::new(), limited());
    let sandbox = backend.open(cx).await.unwrap();
    if by(&*sandbox, PolicyField::Memory) == EnforcedBy::Kernel {
        return Some(sandbox);
    }
    assert_eq!(by(&*sandbox, PolicyField::Memory), EnforcedBy::PerProcess);
    sandbox.close().await.unwrap();
    None
}

/// Returns the groups of a sandbox's run in all hierarchies.
pub(crate) fn groups_of(sandbox: &str) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let (run, _) = sandbox.rsplit_once('-').unwrap();
    look_for(run, Path::new("/sys/fs/cgroup"), &mut found);
    found
}

fn look_for(name: &str, below: &Path, found: &mut BTreeSet<PathBuf>) {
    let Ok(entries) = fs::read_dir(below) else {
        return;
    };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            if entry.file_name().to_string_lossy().contains(name) {
                found.insert(entry.path());
            }
            look_for(name, &entry.path(), found);
        }
    }
}

#[tokio::test]
async fn memory_limit_creates_a_group_that_ends_with_the_sandbox() {
    let Some(sandbox) = open_grouped(LocalBackend::new()).await else {
        return;
    };
    let walls = &sandbox.info().mechanisms;
    assert!(
        walls.contains(&"control groups (memory)".to_owned()),
        "{walls:?}"
    );
    let name = sandbox.info().id.clone();
    let groups = groups_of(&name);
    assert_eq!(groups.len(), 1, "{groups:?}");
    let group = groups.first().unwrap();
    let inside = fs::read_to_string(group.join("cgroup.procs")).unwrap();
    assert_eq!(inside.lines().count(), 1, "init alone");
    assert_eq!(stdout(&*sandbox, "echo $((6 * 7))").await, "42\n");
    sandbox.close().await.unwrap();
    assert_eq!(groups_of(&name), BTreeSet::new());

    let sandbox = open_grouped(LocalBackend::new()).await.unwrap();
    let name = sandbox.info().id.clone();
    drop(sandbox);
    eventually("its groups are gone", || groups_of(&name).is_empty()).await;
}

#[tokio::test]
async fn without_groups_memory_is_limited_per_process() {
    let backend = LocalBackend::new().without(Mechanism::ControlGroups);
    assert!(open_grouped(backend).await.is_none());
}

#[tokio::test]
async fn policy_without_group_limits_creates_no_group() {
    let mut policy = Policy::workspace();
    policy.limits.set("memory=none").unwrap();
    let cx = SandboxContext::new(RunId::new(), policy);
    let sandbox = LocalBackend::new().open(cx).await.unwrap();
    assert_eq!(groups_of(&sandbox.info().id), BTreeSet::new());
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn total_memory_limit_ends_the_command() {
    let Some(sandbox) = open_grouped(LocalBackend::new()).await else {
        return;
    };
    // Shared memory: only a group counts it.
    let hog = "python3 -ISc '
import mmap
memory = mmap.mmap(-1, 160 << 20)
for at in range(0, 160 << 20, 4096): memory[at] = 1
print(\"GOT\")'";
    let reached = ExitStatus::LimitReached {
        field: PolicyField::Memory,
        limit: MEMORY,
    };
    let alone = run(&*sandbox, hog).await;
    assert_eq!(
        (alone.exit.status, alone.stdout.text()),
        (reached, "".into())
    );
    // The shell's exit code is that of its last program.
    let last = run(&*sandbox, &format!("echo first; {hog}")).await;
    assert_eq!(
        (last.exit.status, last.stdout.text()),
        (reached, "first\n".into())
    );
    let gone_on = run(&*sandbox, &format!("{hog}; echo on")).await;
    assert_eq!(gone_on.exit.status, ExitStatus::Code(0));
    assert_eq!(gone_on.stdout.text(), "on\n");
    assert_eq!(gone_on.exit.notes.len(), 1, "{:?}", gone_on.exit.notes);
    assert!(gone_on.exit.notes[0].contains("limit of memory"));
    // The next command starts afresh.
    let fine = run(&*sandbox, "echo fine").await;
    assert_eq!(fine.exit.notes, [""; 0]);
    assert_eq!(fine.stdout.text(), "fine\n");
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn page_cache_does_not_count_as_memory() {
    let Some(sandbox) = open_grouped(LocalBackend::new()).await else {
        return;
    };
    let line = "head -c 200M /dev/zero > file && wc -c < file && rm file";
    let output = run(&*sandbox, line).await;
    assert_eq!(output.stdout.text(), "209715200\n", "{output:?}");
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn group_limits_processes_without_user_namespace() {
    let mut policy = Policy::workspace();
    policy.limits.processes = Some(20);
    let backend = LocalBackend::new().without(Mechanism::Namespaces);
    let cx = SandboxContext::new(RunId::new(), policy);
    let sandbox = backend.open(cx).await.unwrap();
    if by(&*sandbox, PolicyField::Processes) != EnforcedBy::Kernel {
        return sandbox.close().await.unwrap();
    }
    let name = sandbox.info().id.clone();
    let line = "for i in {1..40}; do sleep 5 & done 2>/dev/null; jobs -r | wc -l";
    let request = SpawnRequest::shell(line).with_timeout(Duration::from_secs(20));
    let output = sandbox.run(request).await.unwrap();
    assert!(
        output
            .exit
            .notes
            .iter()
            .any(|note| note.contains("limit of processes (20)")),
        "{output:?}"
    );
    assert_eq!(stdout(&*sandbox, "echo fine").await, "fine\n");
    sandbox.close().await.unwrap();
    assert_eq!(groups_of(&name), BTreeSet::new());
}

/// A process that replaces itself as fast as possible is stopped by preventing forks.
#[tokio::test]
async fn self_replacing_processes_are_killed() {
    let token = Token::new();
    let backend = LocalBackend::new().without(Mechanism::Namespaces);
    let cx = SandboxContext::new(RunId::new(), Policy::workspace());
    let sandbox = backend.open(cx).await.unwrap();
    if by(&*sandbox, PolicyField::Processes) != EnforcedBy::Kernel {
        return sandbox.close().await.unwrap();
    }
    let script = "python3 -ISc '
import os
print(\"ready\", flush=True)
for _ in range(8):
    if os.fork() == 0: break
while True:
    if os.fork(): os._exit(0)
    os.setsid()'";
    let mut process = sandbox.spawn(token.shell(script)).await.unwrap();
    // A scan of the process list may miss every one of them.
    let mut output = process.take_output().unwrap();
    read_until(&mut output, "ready\n").await;
    sandbox.close().await.unwrap();
    drop(process);
    token.all_dead().await;
}

/// Selects the part of the next test that is killed.
const OWNER: &str = "CANTLE_TEST_GROUPS_OWNER";

#[test]
fn groups_of_killed_owner_are_removed() {
    let runtime = new_runtime();
    if let Ok(place) = std::env::var(OWNER) {
        return runtime.block_on(async {
            let backend = LocalBackend::new().in_directory(place);
            let sandbox = open_grouped(backend).await;
            let name = sandbox.as_ref().map(|it| it.info().id.clone());
            say(&name.unwrap_or_default());
            if let Some(sandbox) = sandbox {
                run(&*sandbox, "sleep 600").await;
            }
        });
    }
    runtime.block_on(async {
        let place = tempfile::tempdir().unwrap();
        let mut command = rerun("groups::groups_of_killed_owner_are_removed");
        let mut owner = Owner::start(command.env(OWNER, place.path()));
        let name = owner.said.clone();
        if !name.is_empty() {
            assert_eq!(groups_of(&name).len(), 1);
        }
        owner.kill();
        eventually("no group is left", || {
            name.is_empty() || groups_of(&name).is_empty()
        })
        .await;
    });
}

/// A file system of limited size in memory counts as memory of the sandbox.
#[tokio::test]
async fn tmpfs_files_count_as_memory() {
    let mut policy = limited();
    policy.limits.disk_bytes = Some(MEMORY);
    let cx = SandboxContext::new(RunId::new(), policy);
    let sandbox = LocalBackend::new().open(cx).await.unwrap();
    if by(&*sandbox, PolicyField::Memory) != EnforcedBy::Kernel {
        return sandbox.close().await.unwrap();
    }
    assert_eq!(by(&*sandbox, PolicyField::Disk), EnforcedBy::Kernel);
    let takes = "python3 -c 'print(len(b\"x\" * (30 << 20)))'";
    assert_eq!(stdout(&*sandbox, takes).await, "31457280\n");
    run(&*sandbox, "head -c 48M /dev/zero > file").await;
    let killed = run(&*sandbox, takes).await;
    let reached = ExitStatus::LimitReached {
        field: PolicyField::Memory,
        limit: MEMORY,
    };
    assert_eq!(killed.exit.status, reached, "{killed:?}");
    sandbox.remove(&path("file")).await.unwrap();
    assert_eq!(stdout(&*sandbox, takes).await, "31457280\n");
    sandbox.close().await.unwrap();
}
