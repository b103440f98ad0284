//! The engine itself is killed, and comes back.

use std::io::Write as _;
use std::process::{Child, ChildStdin, Command, Stdio};

use cantle_core::policy::Policy;
use cantle_core::sandbox::{Backend as _, SandboxContext};
use tempfile::TempDir;
use tokio::time::timeout;

use super::owner::Owner;
use super::phase::Phase;
use super::{DURABLE, Losing, PASSING, PLAIN, marked, nothing_is_left};
use crate::support::{PATIENCE, Peer, eventually, stdout};

/// Obeys orders, line by line, with the engine's command line as its arguments. It ends with its input,
/// and then everything in its namespaces does.
const KEEPER: &str = r#"
exec 2> /dev/null
while read -r order; do
    case $order in
        start) "$@" < /dev/null > "$LOG" 2>&1 & ;;
        kill) kill -9 $!; wait $! ;;
    esac
done"#;

/// An engine that can be killed.
struct OwnEngine {
    keeper: Child,
    /// None once it is to end.
    orders: Option<ChildStdin>,
    place: TempDir,
    peer: Peer,
}

impl OwnEngine {
    /// Starts one with the images of another; where nothing says how, says so.
    fn start(peer: &Peer) -> Option<Self> {
        let Ok(script) = std::env::var("CANTLE_TEST_DOCKER_ENGINE") else {
            eprintln!("SKIPPED: CANTLE_TEST_DOCKER_ENGINE names no program that runs an engine");
            return None;
        };
        let place = tempfile::Builder::new()
            .prefix("cantle-docker-")
            .tempdir()
            .unwrap();
        let mut keeper = Command::new("sh")
            .arg(script)
            .arg(place.path())
            .args(["sh", "-c", KEEPER, "keeper"])
            .env("LOG", place.path().join("log"))
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let orders = keeper.stdin.take();
        let host = format!("unix://{}/docker.sock", place.path().display());
        let (image, busybox) = (peer.image.clone(), peer.busybox.clone());
        let mut engine = Self {
            peer: Peer {
                host,
                image,
                busybox,
            },
            keeper,
            orders,
            place,
        };
        engine.begin();
        let archive = engine.place.path().join("image");
        peer.docker(["save", "--output", &archive.to_string_lossy(), &peer.image]);
        engine
            .peer
            .docker(["load", "--input", &archive.to_string_lossy()]);
        Some(engine)
    }

    fn order(&mut self, order: &str) {
        let orders = self.orders.as_mut().unwrap();
        writeln!(orders, "{order}").unwrap();
    }

    fn begin(&mut self) {
        self.order("start");
        eventually("an engine", || {
            let mut version = Command::new("docker");
            version.args(["--host", &self.peer.host, "version"]);
            version.output().unwrap().status.success()
        });
    }
}

impl Drop for OwnEngine {
    fn drop(&mut self) {
        self.orders = None;
        let _ = self.keeper.wait();
        let name = self.place.path().file_name().unwrap();
        // What it leaves of control groups, in every hierarchy.
        let mut remove = Command::new("find");
        remove.arg("/sys/fs/cgroup").args(["-depth", "-type", "d"]);
        remove.arg("-path").arg(format!("*/{}*", name.display()));
        let _ = remove.arg("-delete").output();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_where_the_engine_itself_is_killed() {
    let Some(peer) = Peer::find() else { return };
    let Some(mut engine) = OwnEngine::start(&peer) else {
        return;
    };
    let peer = Peer {
        host: engine.peer.host.clone(),
        ..peer
    };
    let mut losing = Vec::new();
    for (kind, phases) in [(PASSING, &Phase::ALL[..]), (PLAIN, &Phase::PLAIN)] {
        for phase in phases {
            let one = Losing::open(&peer, kind).await;
            let begun = one.begin(*phase).await;
            losing.push((kind, *phase, one, begun));
        }
    }
    // One is kept, and one belongs to somebody who is killed as well.
    let kept = Losing::open(&peer, DURABLE).await;
    stdout(&*kept.sandbox, "echo text > file").await;
    let handle = kept.sandbox.persist().await.unwrap();
    let mut owner = Owner::start(&peer, PASSING, "Output");
    owner.says("begun");

    engine.order("kill");
    owner.kill();
    let mut runs = vec![kept.run, owner.run];
    for (kind, phase, losing, begun) in losing {
        runs.push(losing.run);
        let of = format!("{kind} {phase:?}");
        losing.is_told(begun, phase, kind, &of).await;
        let closed = timeout(PATIENCE, losing.sandbox.close()).await;
        assert!(closed.is_ok(), "{of}: closing takes too long");
    }
    drop(kept.sandbox);

    engine.begin();
    eventually("the end of all that ran", || {
        runs.iter().all(|run| marked(*run).is_empty())
    });
    peer.backend().reclaim().await.unwrap();
    for run in &runs[1..] {
        nothing_is_left(&peer, *run, "after the engine's end").await;
    }
    let cx = SandboxContext::new(kept.run, Policy::unconfined()).durable();
    let again = peer.backend().reattach(&handle, cx).await.unwrap();
    assert_eq!(stdout(&*again, "cat file").await, "text");
    again.close().await.unwrap();
    nothing_is_left(&peer, kept.run, "after it was closed").await;
}
