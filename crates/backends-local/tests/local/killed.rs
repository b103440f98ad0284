//! Killing each kind of process in each phase: nothing is left, and pending calls report it.
//!
//! | killed | requirement |
//! |---|---|
//! | the owner | no process, mount or control group is left; `reclaim` removes the directories; kept files are unchanged, none is partial |
//! | a sandbox's guard, or its init | every call returns `Gone`, the sandbox can be closed, and nothing of it is left |
//! | a command's keeper | the command has ended with its descendants; the sandbox continues |
//!
//! Each in every phase and in every mode of confinement.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use cantle_backends_local::{LocalBackend, Mechanism};
use cantle_core::ids::RunId;
use cantle_core::policy::Policy;
use cantle_core::sandbox::{
    Backend as _, Background, ExitStatus, OutputOptions, Sandbox, SandboxContext, SandboxError,
    SandboxErrorKind, SandboxExt as _, SandboxHandle, SpawnRequest, Stdin, WriteOptions,
};
use futures_util::{StreamExt as _, stream};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::support::{Owner, eventually, path, read_until, rerun, say, soon, stdout, write};

/// The activity during which a process is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    Command,
    /// A command has left a background process.
    Background,
    /// A command does not read its input.
    Input,
    /// A command writes continuously.
    Output,
    /// A file is being written slowly.
    Upload,
    /// A file is being copied to an output directory.
    Saving,
    Closing,
}

const ALL: [Phase; 8] = [
    Phase::Idle,
    Phase::Command,
    Phase::Background,
    Phase::Input,
    Phase::Output,
    Phase::Upload,
    Phase::Saving,
    Phase::Closing,
];

/// A pending call, which returns its result when the sandbox ends.
type Begun = Pin<Box<dyn Future<Output = Result<ExitStatus, SandboxError>> + Send>>;

/// Starts a phase, and returns when it is under way. Commands carry the mark; outputs
/// are saved in `outputs`.
async fn begin(sandbox: &Arc<dyn Sandbox>, phase: Phase, mark: RunId, outputs: &Path) -> Begun {
    let sandbox = Arc::clone(sandbox);
    let asked = async |sandbox: Arc<dyn Sandbox>| loop {
        sandbox.run(SpawnRequest::shell("true")).await?;
    };
    let running = "setsid sleep 600 & sleep 600 & echo begun; wait";
    match phase {
        Phase::Idle => Box::pin(asked(sandbox)),
        Phase::Background => {
            let left = shell(mark, "setsid sleep 600 & true");
            let left = left.with_background(Background::Keep);
            sandbox.run(left).await.unwrap();
            Box::pin(asked(sandbox))
        }
        Phase::Command | Phase::Input | Phase::Output | Phase::Closing => {
            let line = match phase {
                Phase::Input => "head -c 1000 > /dev/null; echo begun; sleep 600",
                Phase::Output => "echo begun; yes",
                _ => running,
            };
            let mut request = shell(mark, line);
            if phase == Phase::Input {
                request = request.with_stdin(Stdin::Piped);
            }
            let mut process = sandbox.spawn(request).await.unwrap();
            let mut output = process.take_output().unwrap();
            let mut writing = None;
            if let Some(mut input) = process.take_stdin() {
                let much = vec![b'x'; 64 << 20].into();
                writing = Some(tokio::spawn(async move { input.write(much).await }));
            }
            if phase == Phase::Output {
                output.next().await.unwrap().unwrap();
            } else {
                read_until(&mut output, "begun\n").await;
            }
            let closing = tokio::spawn(async move {
                match phase {
                    Phase::Closing => sandbox.close().await,
                    _ => Ok(()),
                }
            });
            Box::pin(async move {
                while let Some(Ok(_)) = output.next().await {}
                if let Some(writing) = writing {
                    assert!(writing.await.unwrap().is_err(), "it was not read");
                }
                closing.await.unwrap()?;
                process.wait().await.map(|exit| exit.status)
            })
        }
        Phase::Upload => {
            let (began, begun) = tokio::sync::oneshot::channel();
            // Earlier chunks have been written when the next one is requested.
            let more = stream::once(async move {
                began.send(()).unwrap();
                std::future::pending().await
            });
            let first = stream::iter([Ok(vec![b'x'; 1 << 20].into())]);
            let data = Box::pin(first.chain(more));
            let writing = tokio::spawn(async move {
                let options = WriteOptions::default();
                sandbox.write(&path("new/upload"), options, data).await
            });
            begun.await.unwrap();
            Box::pin(async move {
                writing.await.unwrap()?;
                panic!("a write without end has ended")
            })
        }
        Phase::Saving => {
            stdout(&*sandbox, "truncate -s 10G large").await;
            let to = outputs.to_owned();
            let saving = tokio::spawn(async move {
                sandbox
                    .save_outputs(&["large".to_owned()], &to, OutputOptions::default())
                    .await
            });
            eventually("the saving begins", || outputs.exists()).await;
            Box::pin(async move {
                saving.await.unwrap()?;
                panic!("a large file was saved")
            })
        }
    }
}

fn shell(mark: RunId, line: &str) -> SpawnRequest {
    SpawnRequest::shell(line).with_env("MARK", mark.to_string())
}

/// Returns the processes with a mark in their environment.
fn marked(mark: RunId) -> Vec<u32> {
    let mark = format!("MARK={mark}");
    let carries = |environment: Vec<u8>| {
        let mut variables = environment.split(|byte| *byte == 0);
        variables.any(|variable| variable == mark.as_bytes())
    };
    let processes = fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter(|process| fs::read(process.path().join("environ")).is_ok_and(carries))
        .filter_map(|process| process.file_name().to_string_lossy().parse().ok())
        .collect()
}

/// A backend and a policy for each mode of confinement.
fn kind(name: &str) -> (LocalBackend, Policy) {
    match name {
        "namespaces" => (LocalBackend::new(), Policy::workspace()),
        "rules" => (
            LocalBackend::new().without(Mechanism::Namespaces),
            Policy::workspace(),
        ),
        _ => (LocalBackend::new(), Policy::unconfined()),
    }
}

const KINDS: [&str; 3] = ["namespaces", "rules", "unconfined"];

/// A directory that every user may search: root's commands run as another user.
fn place() -> TempDir {
    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o711)).unwrap();
    place
}

fn below(place: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(place).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

/// Returns the mounts and control groups whose name contains this.
fn traces(name: &str) -> Vec<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mounts = mounts.lines().filter(|line| line.contains(name));
    let mut found: Vec<String> = mounts.map(str::to_owned).collect();
    let mut groups = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(group) = groups.pop() {
        for entry in fs::read_dir(&group).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if entry.file_name().to_string_lossy().contains(name) {
                    found.push(entry.path().display().to_string());
                }
                groups.push(entry.path());
            }
        }
    }
    found
}

/// Makes this program the owner to be killed; the value is the mode and the directory of its
/// sandboxes.
const OWNER: &str = "CANTLE_TEST_LOCAL_KILLED";

/// Opens a sandbox in each phase, a kept one, and others that come and go.
async fn own(order: &str) {
    let (name, place) = order.split_once(':').unwrap();
    let (backend, mut policy) = kind(name);
    let backend = backend.in_directory(place);
    policy.limits.memory_bytes = (name == "namespaces").then_some(1 << 30);
    let run = RunId::new();
    let cx = || SandboxContext::new(run, policy.clone());
    let mark = run;
    let outputs = std::env::temp_dir().join("outputs");
    let mut all = Vec::new();
    for phase in ALL {
        let sandbox = backend.open(cx()).await.unwrap();
        all.push((phase, begin(&sandbox, phase, mark, &outputs).await, sandbox));
    }
    let kept = backend.open(cx().durable()).await.unwrap();
    write(&*kept, "file", "text").await;
    let handle = kept.persist().await.unwrap();
    all.push((
        Phase::Upload,
        begin(&kept, Phase::Upload, mark, &outputs).await,
        kept,
    ));
    let coming_and_going = async {
        loop {
            let sandbox = backend.open(cx()).await.unwrap();
            sandbox.run(shell(mark, "true")).await.unwrap();
            sandbox.close().await.unwrap();
        }
    };
    let ids: Vec<&str> = all.iter().map(|(.., it)| &*it.info().id).collect();
    let facts = serde_json::json!({ "run": run, "ids": ids, "handle": handle });
    say(&facts.to_string());
    coming_and_going.await;
}

#[test]
fn killed_owner_leaves_nothing_in_any_phase() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    if let Ok(order) = std::env::var(OWNER) {
        return runtime.block_on(own(&order));
    }
    for name in KINDS {
        let (place, temporary) = (place(), tempfile::tempdir().unwrap());
        let mut owner = Owner::start(
            rerun("killed::killed_owner_leaves_nothing_in_any_phase")
                .env(OWNER, format!("{name}:{}", place.path().display()))
                .env("TMPDIR", temporary.path()),
        );
        owner.kill();
        let said: serde_json::Value = serde_json::from_str(&owner.said).unwrap();
        let field = |name| said.get(name).unwrap().clone();
        let run: RunId = serde_json::from_value(field("run")).unwrap();
        let ids: Vec<String> = serde_json::from_value(field("ids")).unwrap();
        let handle: SandboxHandle = serde_json::from_value(field("handle")).unwrap();
        runtime.block_on(async {
            eventually("no process is left", || marked(run).is_empty()).await;
            for id in &ids {
                eventually("no mount is left", || traces(id).is_empty()).await;
            }
            eventually("no group is left", || {
                let groups = traces(&run.to_string());
                // A sandbox that was just being created may have one, which `reclaim` removes only once it is so
                // old that no process can be about to join it.
                groups.iter().for_each(|group| drop(fs::remove_dir(group)));
                groups.is_empty()
            })
            .await;
            let (backend, policy) = kind(name);
            let backend = backend.in_directory(place.path());
            // A program that the owner was just starting has its descriptors, and so the lock, until `execve`.
            soon(async {
                while below(place.path()).len() > 1 {
                    let reclaimed = backend.reclaim(Duration::ZERO).await;
                    assert_eq!(reclaimed.failed, [], "{name}");
                }
            })
            .await;
            assert_eq!(below(place.path()).len(), 1, "{name}: what is kept");
            // No partial output exists under its final name.
            assert!(!temporary.path().join("outputs/large").exists());

            let cx = SandboxContext::new(run, policy).durable();
            let again = backend.reattach(&handle, cx.clone()).await.unwrap();
            assert_eq!(
                stdout(&*again, "cat file; ls -A . new").await,
                "text.:\nfile\nnew\n\nnew:\n"
            );
            drop(again);
            // Control groups of other tests are reclaimed, too.
            let here = |mut removed: Vec<PathBuf>| {
                removed.retain(|path| path.starts_with(place.path()));
                removed
            };
            let nothing = backend.reclaim_all_but(&[handle], Duration::ZERO).await;
            assert_eq!((here(nothing.removed), nothing.failed), (vec![], vec![]));
            // Without a stored handle, it will never be reattached.
            let mut reclaimed = Vec::new();
            // The dropped sandbox is still being closed.
            while reclaimed.is_empty() {
                let found = backend.reclaim_all_but(&[], Duration::ZERO).await;
                assert_eq!(found.failed, [], "{name}");
                reclaimed = here(found.removed);
            }
            assert_eq!(reclaimed.len(), 1, "{name}");
            assert_eq!(below(place.path()), [""; 0].map(PathBuf::from));
        });
    }
}

/// Returns the name and the parent of a process.
fn name_and_parent(pid: u32) -> (String, u32) {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // `PID (NAME) STATE PARENT …`; the name may contain anything.
    let (before, after) = stat.rsplit_once(") ").unwrap_or_default();
    let name = before.split_once('(').unwrap_or_default().1;
    let parent = after.split(' ').nth(1).unwrap_or_default();
    (name.to_owned(), parent.parse().unwrap_or(0))
}

/// Kills the ancestor of a command with this name.
async fn kill_above(mark: RunId, victim: &str) {
    let mut pid = 0;
    // During an exec, a process has no environment.
    eventually("something runs", || {
        pid = marked(mark).first().copied().unwrap_or(0);
        pid != 0
    })
    .await;
    loop {
        let (name, parent) = name_and_parent(pid);
        assert_ne!(parent, 0, "no {victim} holds it up");
        if name == victim {
            let victim = Pid::from_raw(pid.cast_signed()).unwrap();
            return kill_process(victim, Signal::KILL).unwrap();
        }
        pid = parent;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_guard_or_init_is_reported_in_any_phase() {
    for name in KINDS {
        for victim in ["cantle-guard", "cantle-init"] {
            let (backend, policy) = kind(name);
            let lose = async |phase: Phase| {
                let of = format!("{name} {victim} {phase:?}");
                let place = place();
                let backend = backend.clone().in_directory(place.path());
                let run = RunId::new();
                let cx = SandboxContext::new(run, policy.clone());
                let sandbox = backend.open(cx).await.unwrap();
                let mark = run;
                // A marked process by which to find it.
                let request = shell(mark, "sleep 600 & true");
                let request = request.with_background(Background::Keep);
                sandbox.run(request).await.unwrap();
                let begun = begin(&sandbox, phase, mark, place.path()).await;
                kill_above(mark, victim).await;
                match soon(begun).await {
                    // The end by a signal is correct as well.
                    Ok(status) => assert_eq!(status, ExitStatus::Signal(9), "{of}"),
                    Err(error) => assert_eq!(error.kind(), SandboxErrorKind::Gone, "{of}: {error}"),
                }
                eventually("no process is left", || marked(mark).is_empty()).await;
                let spawned = sandbox.spawn(SpawnRequest::shell("true")).await;
                let error = spawned.map(drop).expect_err(&of);
                assert_eq!(error.kind(), SandboxErrorKind::Gone, "{of}: {error}");
                soon(sandbox.close()).await.expect(&of);
                assert_eq!(below(place.path()), [""; 0].map(PathBuf::from), "{of}");
                assert_eq!(traces(&run.to_string()), [""; 0], "{of}");
            };
            let phases = [Phase::Idle, Phase::Command, Phase::Background];
            let phases = phases.into_iter().chain([Phase::Input, Phase::Output]);
            futures_util::future::join_all(phases.map(lose)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_keeper_ends_only_its_command() {
    for name in KINDS {
        let (backend, policy) = kind(name);
        let cx = SandboxContext::new(RunId::new(), policy);
        let sandbox = backend.open(cx).await.unwrap();
        for phase in [Phase::Command, Phase::Input, Phase::Output] {
            let mark = RunId::new();
            let begun = begin(&sandbox, phase, mark, Path::new("/nowhere")).await;
            kill_above(mark, "cantle-keeper").await;
            let told = soon(begun).await.unwrap();
            assert_eq!(told, ExitStatus::Signal(9), "{name} {phase:?}");
            eventually("no process is left", || marked(mark).is_empty()).await;
            assert_eq!(stdout(&*sandbox, "echo well").await, "well\n");
        }
        sandbox.close().await.unwrap();
    }
}
