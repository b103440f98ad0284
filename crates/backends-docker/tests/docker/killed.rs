//! Kills of each component in each phase: nothing is left, and pending calls fail.
//!
//! | killed | expected |
//! |---|---|
//! | the owner of a sandbox | its container ends with its stream; the rest is removed by the next `reclaim`, unless it is kept; an attached container is unchanged |
//! | the engine | the same, even while it is down; the rest is removed after its restart |
//! | the supervisor, its init, the container, the connection to the engine | every call fails with `Gone` within seconds, the sandbox can be closed, its container and processes are gone; a kept sandbox can be reattached |
//!
//! Each in every [`Phase`]; the phases run concurrently, each with its own sandbox.

mod engine;
mod owner;
mod phase;

use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use cantle_backends_docker::DockerBackend;
use cantle_core::ids::RunId;
use cantle_core::policy::Policy;
use cantle_core::sandbox::{
    Backend as _, ExitStatus, Sandbox, SandboxContext, SandboxErrorKind, SpawnRequest,
};
use futures_util::FutureExt as _;
use futures_util::future::join_all;
use tempfile::TempDir;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use self::owner::Owner;
use self::phase::{PendingCall, Phase, begin, path};
use crate::support::{DEADLINE, TestEngine, eventually, stdout};

fn entries(directory: &Path) -> usize {
    std::fs::read_dir(directory).map_or(0, Iterator::count)
}

/// Returns the local processes with the mark in their environment.
///
/// Those of a remote engine are invisible, but end with their containers.
fn marked(mark: RunId) -> Vec<String> {
    let mark = mark.to_string();
    let carries = |environment: Vec<u8>| String::from_utf8_lossy(&environment).contains(&mark);
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter(|process| std::fs::read(process.path().join("environ")).is_ok_and(carries))
        .map(|process| std::fs::read_to_string(process.path().join("stat")).unwrap_or_default())
        .collect()
}

/// Waits until no container and no process of a run is left.
async fn assert_nothing_left(engine: &TestEngine, run: RunId, of: &str) {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let (mut containers, processes) = (engine.containers_of(run), marked(run));
        containers.retain(|container| engine.has_container(container));
        if containers.is_empty() && processes.is_empty() {
            return;
        }
        assert!(
            Instant::now() < deadline,
            "{of}: {containers:?} {processes:?}"
        );
        sleep(Duration::from_millis(50)).await;
    }
}

// Kinds of an owner's sandbox.
const EPHEMERAL: &str = "ephemeral";
const DURABLE: &str = "durable";
const PLAIN: &str = "plain";
const ATTACHED: &str = "attached=";
const REATTACHED: &str = "reattached=";

/// The phase of an owner that is killed while it opens its sandbox.
const OPENING: &str = "Opening";

/// Starts an owner for each phase and kills it in that phase.
fn kill_in_phases(engine: &TestEngine, kind: &str, phases: &[Phase]) -> Vec<Owner> {
    let start = |phase: &Phase| Owner::start(engine, kind, &format!("{phase:?}"));
    let mut owners: Vec<Owner> = phases.iter().map(start).collect();
    for owner in &mut owners {
        owner.wait_for("begun");
        owner.kill();
    }
    owners
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_of_an_owner_killed_in_any_phase() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    let owners = kill_in_phases(&engine, EPHEMERAL, &Phase::ALL);
    for (owner, phase) in owners.iter().zip(Phase::ALL) {
        assert_nothing_left(&engine, owner.run, &format!("{phase:?}")).await;
        let expected: &[&str] = match phase {
            Phase::Saving => &["outputs"],
            _ => &[],
        };
        assert_eq!(owner.files(), expected, "{phase:?}");
        // Until all are copied, no output has its final name.
        assert!(!owner.directory.path().join("outputs/1").exists());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_of_a_killed_owner_without_a_supervisor() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    let owners = kill_in_phases(&engine, PLAIN, &Phase::PLAIN);
    for (owner, phase) in owners.iter().zip(Phase::PLAIN) {
        assert_nothing_left(&engine, owner.run, &format!("{phase:?}")).await;
        assert_eq!(owner.files(), [""; 0], "{phase:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn durable_container_of_a_killed_owner_stops_and_is_reclaimed() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    let phases = [Phase::Background, Phase::Upload, Phase::Closing];
    let owners = kill_in_phases(&engine, DURABLE, &phases);
    for owner in &owners {
        // It stops even without `reclaim`.
        eventually("the end of its processes", || marked(owner.run).is_empty());
    }
    engine.backend().reclaim().await.unwrap();
    for (owner, phase) in owners.iter().zip(phases) {
        assert_nothing_left(&engine, owner.run, &format!("{phase:?}")).await;
    }
}

/// Returns whether a run has a container in one of these states.
fn has_container_in_state(engine: &TestEngine, run: RunId, states: &[&str]) -> bool {
    let label = format!("label=cantle.run={run}");
    let format = "{{.State}}";
    let found = engine.docker(["ps", "--all", "--filter", &label, "--format", format]);
    states.contains(&&*found)
}

#[tokio::test(flavor = "multi_thread")]
async fn container_of_an_owner_killed_while_opening_is_reclaimed() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    let mut owners = Vec::new();
    for kind in [EPHEMERAL, DURABLE] {
        // During the image lookup, after the container's creation, and after its start.
        for states in [&[][..], &["created", "running"], &["running"]] {
            let mut owner = Owner::start(&engine, kind, OPENING);
            owner.wait_for("opening");
            if !states.is_empty() {
                eventually("a container", || {
                    has_container_in_state(&engine, owner.run, states)
                });
            }
            owner.kill();
            owners.push(owner);
        }
    }
    let deadline = Instant::now() + DEADLINE;
    // The engine may complete the last request after the kill.
    loop {
        let reclaimed = engine.backend().reclaim().await.unwrap();
        let left = owners
            .iter()
            .flat_map(|owner| engine.containers_of(owner.run))
            .count();
        if left == 0 {
            break;
        }
        assert!(Instant::now() < deadline, "{left} are left: {reclaimed:?}");
    }
    for owner in &owners {
        assert_eq!(owner.files(), [""; 0]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn container_that_fills_a_volume_is_reclaimed() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    let mut owner = Owner::start(&engine, EPHEMERAL, "Idle");
    owner.wait_for("begun");
    let container = engine.containers_of(owner.run).pop().unwrap();
    // Filling is too quick to be interrupted, so its container is created here, for a version that never existed.
    let digest: String = owner.run.to_string().chars().skip(8).collect();
    let name = format!("cantle-supervisor-{digest}-fill");
    let label = |label: &str| {
        let format = format!("{{{{index .Config.Labels \"{label}\"}}}}");
        let value = engine.docker(["inspect", "--format", &format, &container]);
        format!("{label}={value}")
    };
    let labels = [label("cantle.host"), label("cantle.owner")];
    let [host, owner_label] = &labels;
    let create = [
        "create",
        "--name",
        &name,
        "--label",
        host,
        "--label",
        owner_label,
        &engine.busybox,
        "true",
    ];
    let filling = Container {
        engine: &engine,
        id: engine.docker(create),
    };
    let all = || engine.docker(["ps", "--all", "--quiet", "--no-trunc"]);
    engine.backend().reclaim().await.unwrap();
    assert!(
        all().contains(&filling.id),
        "the container of a live owner was removed"
    );
    owner.kill();
    engine.backend().reclaim().await.unwrap();
    assert!(!all().contains(&filling.id));
}

#[tokio::test(flavor = "multi_thread")]
async fn kept_sandbox_survives_an_owner_killed_while_reattaching() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    let run = RunId::new();
    let durable = || SandboxContext::new(run, Policy::unconfined()).durable();
    let backend = engine.backend();
    let sandbox = backend.open(durable()).await.unwrap();
    stdout(&*sandbox, "echo text > file").await;
    let handle = sandbox.persist().await.unwrap();
    drop(sandbox);
    let id = engine.containers_of(run).pop().unwrap();
    let kind = format!("{REATTACHED}{}", serde_json::to_string(&handle).unwrap());
    let format = "{{.Name}} {{.State.Running}}";
    let inspect = || engine.docker(["inspect", "--format", format, &id]);
    let kept = inspect();
    // After claiming it, after starting it, and while using it.
    for stage in ["false", "true", "begun"] {
        let before = inspect();
        let mut owner = Owner::start(&engine, &kind, "Upload");
        match stage {
            "begun" => owner.wait_for(stage),
            _ => eventually("a claim", || {
                let now = inspect();
                now != before && now.ends_with(stage) || now.ends_with("true")
            }),
        }
        owner.kill();
        eventually("its end", || inspect().ends_with("false"));
        assert_ne!(inspect(), kept);
        backend.reclaim().await.unwrap();
        assert_eq!(engine.containers_of(run).len(), 1, "{stage}");
    }
    let again = backend.reattach(&handle, durable()).await.unwrap();
    assert_eq!(stdout(&*again, "cat file").await, "text");
    again.close().await.unwrap();
    assert_eq!(engine.containers_of(run), [""; 0]);
}

/// A container, removed on drop if it still exists.
struct Container<'p> {
    engine: &'p TestEngine,
    id: String,
}

impl Drop for Container<'_> {
    fn drop(&mut self) {
        // The engine may be unreachable; then the container ends with its stream.
        let mut docker = Command::new("timeout");
        docker.args(["10", "docker", "--host", &self.engine.host]);
        let _ = docker.args(["rm", "--force", &self.id]).output();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attached_container_outlives_a_killed_owner_unchanged() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    let id = engine.docker([
        "run",
        "--detach",
        "--network",
        "none",
        "--workdir",
        "/work",
        &engine.image,
        "sleep",
        "1000",
    ]);
    let container = Container {
        engine: &engine,
        id,
    };
    let processes = || engine.docker(["top", &container.id, "-o", "pid,args"]);
    let root = || engine.docker(["exec", &container.id, "ls", "-A", "/"]);
    let before = (processes(), root());
    let phases = [
        Phase::Idle,
        Phase::Background,
        Phase::Output,
        Phase::Upload,
        Phase::Download,
    ];
    let owners = kill_in_phases(&engine, &format!("{ATTACHED}{}", container.id), &phases);
    // Zombies are reaped by the container's own init.
    let living = || {
        let now = processes();
        let living = now.lines().filter(|line| !line.contains("<defunct>"));
        living.map(str::to_owned).collect::<Vec<_>>()
    };
    eventually("the end of the started processes", || {
        living() == before.0.lines().collect::<Vec<_>>()
    });
    // The supervisor deletes its own file, and partial files have no name.
    assert_eq!(root(), before.1);
    let find = [
        "exec",
        &container.id,
        "find",
        "/",
        "-xdev",
        "-name",
        ".cantle*",
    ];
    assert_eq!(engine.docker(find), "");
    for owner in &owners {
        assert_eq!(marked(owner.run), [""; 0]);
        assert_eq!(owner.files(), [""; 0]);
    }
}

/// The component that is killed.
#[derive(Clone, Copy, Debug)]
enum Victim {
    /// The supervisor, the container's first process.
    Relay,
    /// The supervisor's process that starts commands.
    Init,
    /// The container, which is removed as well.
    Container,
    /// The connection to the engine.
    Connection,
}

/// A proxy of the engine's socket that can be cut.
struct EngineProxy {
    directory: TempDir,
    forwarding: JoinSet<()>,
}

impl EngineProxy {
    async fn start(engine: &TestEngine) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join("engine")).unwrap();
        let address = engine.host.clone();
        let mut forwarding = JoinSet::new();
        forwarding.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((mut client, _)) = listener.accept().await {
                let address = address.clone();
                connections.spawn(async move {
                    if let Some(socket) = address.strip_prefix("unix://") {
                        // The engine may be down.
                        let Ok(mut upstream) = UnixStream::connect(socket).await else {
                            return;
                        };
                        let _ = tokio::io::copy_bidirectional(&mut client, &mut upstream).await;
                    } else {
                        let host = address.trim_start_matches("tcp://");
                        let Ok(mut upstream) = tokio::net::TcpStream::connect(host).await else {
                            return;
                        };
                        let _ = tokio::io::copy_bidirectional(&mut client, &mut upstream).await;
                    }
                });
            }
        });
        Self {
            directory,
            forwarding,
        }
    }

    fn backend(&self, engine: &TestEngine) -> DockerBackend {
        let socket = self.directory.path().join("engine");
        engine
            .backend()
            .with_host(format!("unix://{}", socket.display()))
    }
}

/// A sandbox of which one component is killed.
struct KillScenario<'p> {
    engine: &'p TestEngine,
    run: RunId,
    sandbox: Arc<dyn Sandbox>,
    container: Container<'p>,
    proxy: EngineProxy,
    outputs: TempDir,
}

impl<'p> KillScenario<'p> {
    async fn open(engine: &'p TestEngine, kind: &str) -> Self {
        let run = RunId::new();
        let proxy = EngineProxy::start(engine).await;
        let mut cx = SandboxContext::new(run, Policy::unconfined());
        let mut backend = proxy.backend(engine);
        match kind {
            PLAIN => backend = backend.without_supervisor(),
            DURABLE => cx = cx.durable(),
            _ => {}
        }
        let sandbox = backend.open(cx).await.unwrap();
        Self {
            engine,
            run,
            container: Container {
                engine,
                id: engine.container(&*sandbox),
            },
            sandbox,
            proxy,
            outputs: tempfile::tempdir().unwrap(),
        }
    }

    async fn begin(&self, phase: Phase) -> PendingCall {
        begin(&self.sandbox, phase, self.run, self.outputs.path()).await
    }

    async fn kill(&mut self, victim: Victim) {
        let container = &*self.container.id;
        match victim {
            Victim::Relay => self.docker(&["kill", container]).await,
            Victim::Container => self.docker(&["rm", "--force", container]).await,
            Victim::Init => {
                let script = "for p in /proc/[0-9]*; do
                    case $(cat $p/comm) in cantle-init) kill -9 ${p#/proc/};; esac
                    done";
                // The exec may be killed before it is done.
                self.docker(&["exec", "--user", "0", container, "sh", "-c", script])
                    .await;
            }
            Victim::Connection => self.proxy.forwarding.abort_all(),
        }
    }

    /// Checks that the pending call and later calls fail.
    async fn assert_gone(&self, pending: PendingCall, phase: Phase, kind: &str, of: &str) {
        let result = timeout(DEADLINE, pending).await;
        let result = result.unwrap_or_else(|_| panic!("{of}: the pending call hangs"));
        // Closing may have succeeded before the kill.
        if phase == Phase::Closing {
            return;
        }
        match result {
            // The engine may report the command's death before the container's end.
            Ok(Some(ExitStatus::Signal(9))) if kind == PLAIN => {}
            result => {
                let error = result.expect_err(of);
                assert_eq!(error.kind(), SandboxErrorKind::Gone, "{of}: {error}");
            }
        }
        let error = self.sandbox.stat(&path("x")).await.unwrap_err();
        assert_eq!(error.kind(), SandboxErrorKind::Gone, "{of}: {error}");
        let spawned = self.sandbox.spawn(SpawnRequest::shell("true")).await;
        let error = spawned.map(drop).unwrap_err();
        assert_eq!(error.kind(), SandboxErrorKind::Gone, "{of}: {error}");
    }

    /// Runs the Docker CLI, which must not wait for the activity in the sandbox.
    async fn docker(&self, arguments: &[&str]) {
        let mut docker = tokio::process::Command::new("docker");
        docker.args(["--host", &self.engine.host]).args(arguments);
        let done = timeout(DEADLINE, docker.kill_on_drop(true).output()).await;
        done.unwrap_or_else(|_| panic!("docker {arguments:?} hangs"))
            .unwrap();
    }
}

/// Runs all cells concurrently, even if some fail.
async fn run_all(cells: impl IntoIterator<Item = impl Future<Output = ()>>) {
    let cells = cells.into_iter();
    let done = join_all(cells.map(|cell| AssertUnwindSafe(cell).catch_unwind())).await;
    let failed = done.iter().filter(|done| done.is_err()).count();
    assert_eq!(failed, 0, "failed cells of {}", done.len());
}

/// Kills each component in each phase.
async fn kill_components(engine: &TestEngine, victims: &[Victim], kind: &str, phases: &[Phase]) {
    let check = async |victim: Victim, phase: Phase| {
        let of = format!("{victim:?} {phase:?}");
        let mut scenario = KillScenario::open(engine, kind).await;
        let pending = scenario.begin(phase).await;
        scenario.kill(victim).await;
        scenario.assert_gone(pending, phase, kind, &of).await;
        let closed = timeout(DEADLINE, scenario.sandbox.close()).await;
        let closed = closed.unwrap_or_else(|_| panic!("{of}: closing hangs"));
        if !matches!(victim, Victim::Connection) {
            closed.expect(&of);
        }
        assert_nothing_left(engine, scenario.run, &of).await;
        assert_eq!(entries(scenario.outputs.path()), 0, "{of}");
    };
    let of_victim = |victim| phases.iter().map(move |phase| (victim, *phase));
    let cells = victims.iter().flat_map(|victim| of_victim(*victim));
    run_all(cells.map(|(victim, phase)| check(victim, phase))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sandbox_is_gone_after_its_supervisor_is_killed() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    kill_components(&engine, &[Victim::Relay], EPHEMERAL, &Phase::ALL).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sandbox_is_gone_after_its_init_is_killed() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    kill_components(&engine, &[Victim::Init], EPHEMERAL, &Phase::ALL).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sandbox_is_gone_after_its_container_is_removed() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    kill_components(&engine, &[Victim::Container], EPHEMERAL, &Phase::ALL).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sandbox_is_gone_after_the_connection_to_the_engine_is_lost() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    kill_components(&engine, &[Victim::Connection], EPHEMERAL, &Phase::ALL).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sandbox_without_a_supervisor_is_gone_after_a_loss() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    kill_components(&engine, &[Victim::Container], PLAIN, &Phase::PLAIN).await;
    // Engines may take 20 s to end an exec whose input is cut off.
    let phases = Phase::PLAIN.into_iter();
    let phases: Vec<_> = phases.filter(|phase| *phase != Phase::Upload).collect();
    kill_components(&engine, &[Victim::Connection], PLAIN, &phases).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kept_sandbox_is_reattached_after_a_loss() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    let check = async |victim: Victim, phase: Phase| {
        let of = format!("{victim:?} {phase:?}");
        let mut scenario = KillScenario::open(&engine, DURABLE).await;
        stdout(&*scenario.sandbox, "echo text > file").await;
        let handle = scenario.sandbox.persist().await.unwrap();
        let pending = scenario.begin(phase).await;
        scenario.kill(victim).await;
        let result = timeout(DEADLINE, pending).await;
        let error = result.expect(&of).expect_err(&of);
        assert_eq!(error.kind(), SandboxErrorKind::Gone, "{of}: {error}");
        eventually("the end of its processes", || {
            marked(scenario.run).is_empty()
        });
        drop(scenario.sandbox);
        let cx = SandboxContext::new(scenario.run, Policy::unconfined()).durable();
        let again = engine.backend().reattach(&handle, cx).await.expect(&of);
        assert_eq!(stdout(&*again, "cat file").await, "text", "{of}");
        again.close().await.unwrap();
        assert_nothing_left(&engine, scenario.run, &of).await;
    };
    let cells = [
        (Victim::Relay, Phase::Command),
        (Victim::Init, Phase::Upload),
        (Victim::Connection, Phase::Output),
    ];
    run_all(cells.map(|(victim, phase)| check(victim, phase))).await;
}
