//! Limits for all processes of a sandbox together, where control groups can be made.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use cantle_backends_local::{LocalBackend, Wall};
use cantle_core::ids::RunId;
use cantle_core::policy::{Policy, PolicyField};
use cantle_core::sandbox::{
    Backend as _, EnforcedBy, ExitStatus, Sandbox, SandboxContext, SandboxErrorKind,
    SandboxExt as _, SpawnRequest,
};

use crate::support::{OPENED, Token, eventually, path, read_until, run, say, stdout};

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

/// A sandbox whose memory is limited by groups; `None` where none can be made.
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

/// The groups of this name, in all hierarchies.
fn groups_of(name: &str) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    look_for(name, Path::new("/sys/fs/cgroup"), &mut found);
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
async fn a_group_is_made_for_a_memory_limit_and_goes_with_the_sandbox() {
    let Some(sandbox) = open_grouped(LocalBackend::new()).await else {
        return;
    };
    let walls = &sandbox.info().walls;
    assert!(
        walls.contains(&"control groups (memory)".to_owned()),
        "{walls:?}"
    );
    let name = sandbox.info().id.clone();
    let groups = groups_of(&name);
    assert_eq!(groups.len(), 1, "{groups:?}");
    let group = groups.first().unwrap();
    let inside = fs::read_to_string(group.join("cgroup.procs")).unwrap();
    assert_eq!(inside.lines().count(), 1, "init, and nobody else of ours");
    assert_eq!(stdout(&*sandbox, "echo $((6 * 7))").await, "42\n");
    sandbox.close().await.unwrap();
    assert_eq!(groups_of(&name), BTreeSet::new());

    let sandbox = open_grouped(LocalBackend::new()).await.unwrap();
    let name = sandbox.info().id.clone();
    drop(sandbox);
    assert_eq!(groups_of(&name), BTreeSet::new());
}

#[tokio::test]
async fn without_them_memory_is_limited_for_each_process() {
    let backend = LocalBackend::new().without(Wall::ControlGroups);
    assert!(open_grouped(backend).await.is_none());
}

#[tokio::test]
async fn a_policy_that_needs_none_has_none() {
    let cx = SandboxContext::new(RunId::new(), Policy::workspace());
    let sandbox = LocalBackend::new().open(cx).await.unwrap();
    assert_eq!(groups_of(&sandbox.info().id), BTreeSet::new());
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn what_takes_too_much_together_has_reached_the_limit() {
    let Some(sandbox) = open_grouped(LocalBackend::new()).await else {
        return;
    };
    // What is shared is nobody's own: only a group counts it.
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
    // The shell says how its last program ended.
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
    // Nothing of that is left, and others don't hear of it.
    let fine = run(&*sandbox, "echo fine").await;
    assert_eq!(fine.exit.notes, [""; 0]);
    assert_eq!(fine.stdout.text(), "fine\n");
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn files_on_the_disk_are_not_memory() {
    let Some(sandbox) = open_grouped(LocalBackend::new()).await else {
        return;
    };
    let line = "head -c 200M /dev/zero > file && wc -c < file && rm file";
    let output = run(&*sandbox, line).await;
    assert_eq!(output.stdout.text(), "209715200\n", "{output:?}");
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn where_nothing_else_counts_processes_a_group_does() {
    let mut policy = Policy::workspace();
    policy.limits.processes = Some(20);
    let backend = LocalBackend::new().without(Wall::Namespaces);
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

/// What replaces itself as fast as it can is caught where it can't be replaced.
#[tokio::test]
async fn nothing_replaces_itself_faster_than_it_is_killed() {
    let token = Token::new();
    let backend = LocalBackend::new().without(Wall::Namespaces);
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
    // No look at the list of processes is sure to meet one of them.
    let mut output = process.take_output().unwrap();
    read_until(&mut output, "ready\n").await;
    sandbox.close().await.unwrap();
    drop(process);
    token.all_dead().await;
}

/// The part of the next test that is killed.
const OWNER: &str = "CANTLE_TEST_GROUPS_OWNER";

#[test]
fn groups_of_an_owner_that_was_killed_are_gone_soon() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
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
        let mut owner = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture"])
            .arg("groups::groups_of_an_owner_that_was_killed_are_gone_soon")
            .env(OWNER, place.path())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(owner.stderr.take().unwrap()).lines();
        let said = lines.find_map(|line| Some(line.unwrap().strip_prefix(OPENED)?.to_owned()));
        let name = said.unwrap();
        if !name.is_empty() {
            assert_eq!(groups_of(&name).len(), 1);
        }
        owner.kill().unwrap();
        owner.wait().unwrap();
        eventually("no group is left", || {
            name.is_empty() || groups_of(&name).is_empty()
        })
        .await;
    });
}

/// A disk of limited size is in memory, and counts. That it is full is told, and can be mended, as a
/// rule: where the kernel finds nothing else to kill, it kills the first process.
#[tokio::test]
async fn files_in_memory_are_memory() {
    let mut policy = limited();
    policy.limits.disk_bytes = Some(4 * MEMORY);
    let cx = SandboxContext::new(RunId::new(), policy);
    let sandbox = LocalBackend::new().open(cx).await.unwrap();
    if by(&*sandbox, PolicyField::Memory) != EnforcedBy::Kernel {
        return sandbox.close().await.unwrap();
    }
    let fills = run(&*sandbox, "head -c 200M /dev/zero > file").await;
    let reached = ExitStatus::LimitReached {
        field: PolicyField::Memory,
        limit: MEMORY,
    };
    assert_eq!(fills.exit.status, reached, "{fills:?}");
    for _ in 0..3 {
        match sandbox
            .run(SpawnRequest::shell("python3 -c 'print(1)'"))
            .await
        {
            Ok(next) => assert!(!next.exit.status.success(), "{next:?}"),
            Err(error) if error.kind() == SandboxErrorKind::Gone => {
                return sandbox.close().await.unwrap();
            }
            Err(error) => assert!(error.to_string().contains("out of memory"), "{error}"),
        }
    }
    sandbox.remove(&path("file")).await.unwrap();
    assert_eq!(stdout(&*sandbox, "echo fine").await, "fine\n");
    sandbox.close().await.unwrap();
}
