//! Who is killed, and when: nothing is left, and whoever waits is told.
//!
//! | killed | what must hold |
//! |---|---|
//! | the process that uses a sandbox | its container ends with its stream; what only the engine can remove goes with the next `reclaim`, unless it is kept; a container of somebody else's is as it was |
//! | the engine | the same, also while it is away; what is left goes when it is back |
//! | the supervisor, its init, the container, the way to the engine | every call answers `Gone` within seconds, the sandbox can be closed, its container and processes are gone; what is kept can be used again |
//!
//! Each in every [`Phase`]; the phases are side by side, each with a sandbox of its own.

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
use self::phase::{Begun, Phase, begin, path};
use crate::support::{PATIENCE, Peer, eventually, stdout};

fn entries(directory: &Path) -> usize {
    std::fs::read_dir(directory).map_or(0, Iterator::count)
}

/// The processes of this machine that have the mark in their environment. Those of an engine elsewhere
/// can't be seen, but end with their containers.
fn marked(mark: RunId) -> Vec<String> {
    let mark = mark.to_string();
    let carries = |environment: Vec<u8>| {
        let mut parts = environment.windows(mark.len());
        parts.any(|part| part == mark.as_bytes())
    };
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter(|process| std::fs::read(process.path().join("environ")).is_ok_and(carries))
        .map(|process| std::fs::read_to_string(process.path().join("stat")).unwrap_or_default())
        .collect()
}

/// Nothing of a run is left, or comes back: no container, and no process.
async fn nothing_is_left(peer: &Peer, run: RunId, of: &str) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let (mut containers, processes) = (peer.of_run(run), marked(run));
        containers.retain(|container| peer.knows(container));
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

/// What sandbox an owner has.
const PASSING: &str = "passing";
const DURABLE: &str = "durable";
const PLAIN: &str = "plain";
const ATTACHED: &str = "attached=";
const REATTACHED: &str = "reattached=";

/// An owner that stays in no phase.
const OPENING: &str = "Opening";

/// Kills owners, each in its phase.
fn kill_in_phases(peer: &Peer, kind: &str, phases: &[Phase]) -> Vec<Owner> {
    let start = |phase: &Phase| Owner::start(peer, kind, &format!("{phase:?}"));
    let mut owners: Vec<Owner> = phases.iter().map(start).collect();
    for owner in &mut owners {
        owner.says("begun");
        owner.kill();
    }
    owners
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_of_an_owner_that_is_killed_whatever_it_does() {
    let Some(peer) = Peer::find() else { return };
    let owners = kill_in_phases(&peer, PASSING, &Phase::ALL);
    for (owner, phase) in owners.iter().zip(Phase::ALL) {
        nothing_is_left(&peer, owner.run, &format!("{phase:?}")).await;
        let expected: &[&str] = match phase {
            Phase::Saving => &["outputs"],
            _ => &[],
        };
        assert_eq!(owner.files(), expected, "{phase:?}");
        // Half an output is not there under its name.
        assert!(!owner.place.path().join("outputs/large").exists());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_of_a_killed_owner_without_a_supervisor() {
    let Some(peer) = Peer::find() else { return };
    let owners = kill_in_phases(&peer, PLAIN, &Phase::PLAIN);
    for (owner, phase) in owners.iter().zip(Phase::PLAIN) {
        nothing_is_left(&peer, owner.run, &format!("{phase:?}")).await;
        assert_eq!(owner.files(), [""; 0], "{phase:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_owner_could_have_kept_stops_and_is_reclaimed() {
    let Some(peer) = Peer::find() else { return };
    let phases = [Phase::Background, Phase::Upload, Phase::Closing];
    let owners = kill_in_phases(&peer, DURABLE, &phases);
    for owner in &owners {
        // It stops by itself, in any case.
        eventually("the end of what it ran", || marked(owner.run).is_empty());
    }
    peer.backend().reclaim().await.unwrap();
    for (owner, phase) in owners.iter().zip(phases) {
        nothing_is_left(&peer, owner.run, &format!("{phase:?}")).await;
    }
}

/// Whether a run has a container in one of these states.
fn is(peer: &Peer, run: RunId, states: &[&str]) -> bool {
    let label = format!("label=cantle.run={run}");
    let format = "{{.State}}";
    let found = peer.docker(["ps", "--all", "--filter", &label, "--format", format]);
    states.contains(&&*found)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_is_killed_while_it_opens_leaves_what_is_reclaimed() {
    let Some(peer) = Peer::find() else { return };
    let mut owners = Vec::new();
    for kind in [PASSING, DURABLE] {
        // It asks the engine for its image; it has a container; that one starts.
        for states in [&[][..], &["created", "running"], &["running"]] {
            let mut owner = Owner::start(&peer, kind, OPENING);
            owner.says("opening");
            if !states.is_empty() {
                eventually("a container", || is(&peer, owner.run, states));
            }
            owner.kill();
            owners.push(owner);
        }
    }
    let deadline = Instant::now() + PATIENCE;
    // What was asked for last the engine may do after that.
    loop {
        let reclaimed = peer.backend().reclaim().await.unwrap();
        let left = owners
            .iter()
            .flat_map(|owner| peer.of_run(owner.run))
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
async fn what_a_killed_owner_filled_a_volume_through_is_reclaimed() {
    let Some(peer) = Peer::find() else { return };
    let mut owner = Owner::start(&peer, PASSING, "Idle");
    owner.says("begun");
    let theirs = peer.of_run(owner.run).pop().unwrap();
    // It is too quick to be killed at it. The name of a version that there never was is nobody's.
    let digest: String = owner.run.to_string().chars().skip(8).collect();
    let name = format!("cantle-supervisor-{digest}-fill");
    let label = |label: &str| {
        let format = format!("{{{{index .Config.Labels \"{label}\"}}}}");
        let value = peer.docker(["inspect", "--format", &format, &theirs]);
        format!("{label}={value}")
    };
    let labels = [label("cantle.host"), label("cantle.owner")];
    let [host, of] = &labels;
    let create = [
        "create",
        "--name",
        &name,
        "--label",
        host,
        "--label",
        of,
        &peer.busybox,
        "true",
    ];
    let filling = Container {
        peer: &peer,
        id: peer.docker(create),
    };
    let all = || peer.docker(["ps", "--all", "--quiet", "--no-trunc"]);
    peer.backend().reclaim().await.unwrap();
    assert!(all().contains(&filling.id), "its owner lives");
    owner.kill();
    peer.backend().reclaim().await.unwrap();
    assert!(!all().contains(&filling.id));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_is_killed_while_it_finds_a_kept_sandbox_leaves_it_to_the_next() {
    let Some(peer) = Peer::find() else { return };
    let run = RunId::new();
    let durable = || SandboxContext::new(run, Policy::unconfined()).durable();
    let backend = peer.backend();
    let sandbox = backend.open(durable()).await.unwrap();
    stdout(&*sandbox, "echo text > file").await;
    let handle = sandbox.persist().await.unwrap();
    drop(sandbox);
    let id = peer.of_run(run).pop().unwrap();
    let kind = format!("{REATTACHED}{}", serde_json::to_string(&handle).unwrap());
    let format = "{{.Name}} {{.State.Running}}";
    let look = || peer.docker(["inspect", "--format", format, &id]);
    let kept = look();
    // It has claimed it; it has started it; it uses it.
    for sign in ["false", "true", "begun"] {
        let before = look();
        let mut owner = Owner::start(&peer, &kind, "Upload");
        match sign {
            "begun" => owner.says(sign),
            _ => eventually("a claim", || {
                let now = look();
                now != before && now.ends_with(sign) || now.ends_with("true")
            }),
        }
        owner.kill();
        eventually("its end", || look().ends_with("false"));
        assert_ne!(look(), kept);
        backend.reclaim().await.unwrap();
        assert_eq!(peer.of_run(run).len(), 1, "{sign}");
    }
    let again = backend.reattach(&handle, durable()).await.unwrap();
    assert_eq!(stdout(&*again, "cat file").await, "text");
    again.close().await.unwrap();
    assert_eq!(peer.of_run(run), [""; 0]);
}

/// A container. Dropped, it is removed, where it still is there.
struct Container<'p> {
    peer: &'p Peer,
    id: String,
}

impl Drop for Container<'_> {
    fn drop(&mut self) {
        // An engine that can't do it now has nothing to do when our streams end.
        let mut docker = Command::new("timeout");
        docker.args(["10", "docker", "--host", &self.peer.host]);
        let _ = docker.args(["rm", "--force", &self.id]).output();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn somebodys_container_outlives_a_killed_owner_and_nothing_of_ours_runs_in_it() {
    let Some(peer) = Peer::find() else { return };
    let id = peer.docker([
        "run",
        "--detach",
        "--network",
        "none",
        "--workdir",
        "/work",
        &peer.image,
        "sleep",
        "1000",
    ]);
    let theirs = Container { peer: &peer, id };
    let processes = || peer.docker(["top", &theirs.id, "-o", "pid,args"]);
    let root = || peer.docker(["exec", &theirs.id, "ls", "-A", "/"]);
    let before = (processes(), root());
    let phases = [
        Phase::Idle,
        Phase::Background,
        Phase::Output,
        Phase::Upload,
        Phase::Download,
    ];
    let owners = kill_in_phases(&peer, &format!("{ATTACHED}{}", theirs.id), &phases);
    // Those that have ended and nobody has waited for are the container's own business.
    let living = || {
        let now = processes();
        let living = now.lines().filter(|line| !line.contains("<defunct>"));
        living.map(str::to_owned).collect::<Vec<_>>()
    };
    eventually("the end of what was started", || {
        living() == before.0.lines().collect::<Vec<_>>()
    });
    // The program that was put there went when it ran, and half a file never had a name.
    assert_eq!(root(), before.1);
    let find = [
        "exec", &theirs.id, "find", "/", "-xdev", "-name", ".cantle*",
    ];
    assert_eq!(peer.docker(find), "");
    for owner in &owners {
        assert_eq!(marked(owner.run), [""; 0]);
        assert_eq!(owner.files(), [""; 0]);
    }
}

/// Who is killed of those that a sandbox consists of.
#[derive(Clone, Copy, Debug)]
enum Victim {
    /// The supervisor, the container's first process.
    Relay,
    /// The process that starts commands.
    Init,
    /// The container, which is removed as well.
    Container,
    /// The way to the engine: nobody answers any more.
    Engine,
}

/// A way to the engine that can be cut.
struct Way {
    place: TempDir,
    passing: JoinSet<()>,
}

impl Way {
    async fn to(peer: &Peer) -> Self {
        let place = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(place.path().join("engine")).unwrap();
        let engine = peer.host.clone();
        let mut passing = JoinSet::new();
        passing.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((mut ours, _)) = listener.accept().await {
                let engine = engine.clone();
                connections.spawn(async move {
                    if let Some(socket) = engine.strip_prefix("unix://") {
                        // It may be away.
                        let Ok(mut theirs) = UnixStream::connect(socket).await else {
                            return;
                        };
                        let _ = tokio::io::copy_bidirectional(&mut ours, &mut theirs).await;
                    } else {
                        let host = engine.trim_start_matches("tcp://");
                        let Ok(mut theirs) = tokio::net::TcpStream::connect(host).await else {
                            return;
                        };
                        let _ = tokio::io::copy_bidirectional(&mut ours, &mut theirs).await;
                    }
                });
            }
        });
        Self { place, passing }
    }

    fn backend(&self, peer: &Peer) -> DockerBackend {
        let socket = self.place.path().join("engine");
        peer.backend()
            .with_host(format!("unix://{}", socket.display()))
    }
}

/// A sandbox that will lose somebody.
struct Losing<'p> {
    peer: &'p Peer,
    run: RunId,
    sandbox: Arc<dyn Sandbox>,
    container: Container<'p>,
    way: Way,
    outputs: TempDir,
}

impl<'p> Losing<'p> {
    async fn open(peer: &'p Peer, kind: &str) -> Self {
        let run = RunId::new();
        let way = Way::to(peer).await;
        let mut cx = SandboxContext::new(run, Policy::unconfined());
        let mut backend = way.backend(peer);
        match kind {
            PLAIN => backend = backend.without_supervisor(),
            DURABLE => cx = cx.durable(),
            _ => {}
        }
        let sandbox = backend.open(cx).await.unwrap();
        Self {
            peer,
            run,
            container: Container {
                peer,
                id: peer.container(&*sandbox),
            },
            sandbox,
            way,
            outputs: tempfile::tempdir().unwrap(),
        }
    }

    async fn begin(&self, phase: Phase) -> Begun {
        begin(&self.sandbox, phase, self.run, self.outputs.path()).await
    }

    async fn lose(&mut self, victim: Victim) {
        let container = &*self.container.id;
        match victim {
            Victim::Relay => self.docker(&["kill", container]).await,
            Victim::Container => self.docker(&["rm", "--force", container]).await,
            Victim::Init => {
                let script = "for p in /proc/[0-9]*; do
                    case $(cat $p/comm) in cantle-init) kill -9 ${p#/proc/};; esac
                    done";
                // It may be killed itself before it is done.
                self.docker(&["exec", "--user", "0", container, "sh", "-c", script])
                    .await;
            }
            Victim::Engine => self.way.passing.abort_all(),
        }
    }

    /// Whoever waits is told, and so is whoever comes later.
    async fn is_told(&self, begun: Begun, phase: Phase, kind: &str, of: &str) {
        let told = timeout(PATIENCE, begun).await;
        let told = told.unwrap_or_else(|_| panic!("{of}: nobody is told"));
        // What is closed may have been closed before, or be gone already.
        if phase == Phase::Closing {
            return;
        }
        match told {
            // The engine tells it before the container's end; a signal that was not ours is true.
            Ok(Some(ExitStatus::Signal(9))) if kind == PLAIN => {}
            told => {
                let error = told.expect_err(of);
                assert_eq!(error.kind(), SandboxErrorKind::Gone, "{of}: {error}");
            }
        }
        let error = self.sandbox.stat(&path("x")).await.unwrap_err();
        assert_eq!(error.kind(), SandboxErrorKind::Gone, "{of}: {error}");
        let spawned = self.sandbox.spawn(SpawnRequest::shell("true")).await;
        let error = spawned.map(drop).unwrap_err();
        assert_eq!(error.kind(), SandboxErrorKind::Gone, "{of}: {error}");
    }

    /// Has Docker's own program do something, which must not wait for what goes on in the sandbox.
    async fn docker(&self, arguments: &[&str]) {
        let mut docker = tokio::process::Command::new("docker");
        docker.args(["--host", &self.peer.host]).args(arguments);
        let done = timeout(PATIENCE, docker.kill_on_drop(true).output()).await;
        done.unwrap_or_else(|_| panic!("the engine doesn't do it: {arguments:?}"))
            .unwrap();
    }
}

/// Does all of it, side by side, also where some of it fails.
async fn all(cells: impl IntoIterator<Item = impl Future<Output = ()>>) {
    let cells = cells.into_iter();
    let done = join_all(cells.map(|cell| AssertUnwindSafe(cell).catch_unwind())).await;
    let failed = done.iter().filter(|done| done.is_err()).count();
    assert_eq!(failed, 0, "of {}", done.len());
}

/// Loses each of them in each phase.
async fn lose_in_phases(peer: &Peer, victims: &[Victim], kind: &str, phases: &[Phase]) {
    let lose = async |victim: Victim, phase: Phase| {
        let of = format!("{victim:?} {phase:?}");
        let mut losing = Losing::open(peer, kind).await;
        let begun = losing.begin(phase).await;
        losing.lose(victim).await;
        losing.is_told(begun, phase, kind, &of).await;
        let closed = timeout(PATIENCE, losing.sandbox.close()).await;
        let closed = closed.unwrap_or_else(|_| panic!("{of}: closing takes too long"));
        if !matches!(victim, Victim::Engine) {
            closed.expect(&of);
        }
        nothing_is_left(peer, losing.run, &of).await;
        assert_eq!(entries(losing.outputs.path()), 0, "{of}");
    };
    let of_victim = |victim| phases.iter().map(move |phase| (victim, *phase));
    let cells = victims.iter().flat_map(|victim| of_victim(*victim));
    all(cells.map(|(victim, phase)| lose(victim, phase))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_whose_supervisor_is_killed_is_gone_whatever_goes_on() {
    let Some(peer) = Peer::find() else { return };
    lose_in_phases(&peer, &[Victim::Relay], PASSING, &Phase::ALL).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_whose_init_is_killed_is_gone_whatever_goes_on() {
    let Some(peer) = Peer::find() else { return };
    lose_in_phases(&peer, &[Victim::Init], PASSING, &Phase::ALL).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_whose_container_is_removed_is_gone_whatever_goes_on() {
    let Some(peer) = Peer::find() else { return };
    lose_in_phases(&peer, &[Victim::Container], PASSING, &Phase::ALL).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_whose_engine_answers_no_more_is_gone_whatever_goes_on() {
    let Some(peer) = Peer::find() else { return };
    lose_in_phases(&peer, &[Victim::Engine], PASSING, &Phase::ALL).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_supervisor_it_is_gone_all_the_same() {
    let Some(peer) = Peer::find() else { return };
    lose_in_phases(&peer, &[Victim::Container], PLAIN, &Phase::PLAIN).await;
    // Engines may take twenty seconds to let go of an exec whose input breaks off.
    let phases = Phase::PLAIN.into_iter();
    let phases: Vec<_> = phases.filter(|phase| *phase != Phase::Upload).collect();
    lose_in_phases(&peer, &[Victim::Engine], PLAIN, &phases).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_kept_is_there_again_after_a_loss() {
    let Some(peer) = Peer::find() else { return };
    let lose = async |victim: Victim, phase: Phase| {
        let of = format!("{victim:?} {phase:?}");
        let mut losing = Losing::open(&peer, DURABLE).await;
        stdout(&*losing.sandbox, "echo text > file").await;
        let handle = losing.sandbox.persist().await.unwrap();
        let begun = losing.begin(phase).await;
        losing.lose(victim).await;
        let told = timeout(PATIENCE, begun).await;
        let error = told.expect(&of).expect_err(&of);
        assert_eq!(error.kind(), SandboxErrorKind::Gone, "{of}: {error}");
        eventually("the end of what it ran", || marked(losing.run).is_empty());
        drop(losing.sandbox);
        let cx = SandboxContext::new(losing.run, Policy::unconfined()).durable();
        let again = peer.backend().reattach(&handle, cx).await.expect(&of);
        assert_eq!(stdout(&*again, "cat file").await, "text", "{of}");
        again.close().await.unwrap();
        nothing_is_left(&peer, losing.run, &of).await;
    };
    let cells = [
        (Victim::Relay, Phase::Command),
        (Victim::Init, Phase::Upload),
        (Victim::Engine, Phase::Output),
    ];
    all(cells.map(|(victim, phase)| lose(victim, phase))).await;
}
