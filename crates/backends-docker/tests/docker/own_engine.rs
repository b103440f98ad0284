//! A Docker engine of a test's own.

use std::io::Write as _;
use std::process::{Child, ChildStdin, Command, Stdio};

use tempfile::TempDir;

use crate::support::{Peer, eventually};

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
pub(crate) struct OwnEngine {
    keeper: Child,
    /// None once it is to end.
    orders: Option<ChildStdin>,
    place: TempDir,
    pub(crate) peer: Peer,
}

impl OwnEngine {
    /// Starts one with the images of another; where nothing says how, says so.
    pub(crate) fn start(peer: &Peer) -> Option<Self> {
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

    pub(crate) fn order(&mut self, order: &str) {
        let orders = self.orders.as_mut().unwrap();
        writeln!(orders, "{order}").unwrap();
    }

    pub(crate) fn begin(&mut self) {
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
