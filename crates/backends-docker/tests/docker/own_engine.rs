//! A Docker engine for a single test.

use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStdin, Command, Stdio};

use tempfile::TempDir;

use crate::support::{TestEngine, eventually};

/// Runs the engine's command line, its arguments, controlled by the words `start` and `kill` on stdin.
///
/// When its input ends, it exits, which kills everything in its namespaces.
const CONTROLLER: &str = r#"
exec 2> /dev/null
while read -r order; do
    case $order in
        start) "$@" < /dev/null > "$LOG" 2>&1 & ;;
        kill) kill -9 $!; wait $! ;;
    esac
done"#;

/// An engine that can be killed.
pub(crate) struct OwnEngine {
    controller: Child,
    /// `None` once it is to end.
    orders: Option<ChildStdin>,
    directory: TempDir,
    pub(crate) engine: TestEngine,
}

impl OwnEngine {
    /// Starts an engine with the images of `engine`; reports a skip if the environment names no program.
    pub(crate) fn start(engine: &TestEngine) -> Option<Self> {
        let Ok(script) = std::env::var("CANTLE_TEST_DOCKER_ENGINE") else {
            eprintln!("SKIPPED: CANTLE_TEST_DOCKER_ENGINE names no program that runs an engine");
            return None;
        };
        let directory = tempfile::Builder::new()
            .prefix("cantle-docker-")
            .tempdir()
            .unwrap();
        let mut controller = Command::new("sh")
            .arg(script)
            .arg(directory.path())
            .args(["sh", "-c", CONTROLLER, "controller"])
            .env("LOG", directory.path().join("log"))
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let orders = controller.stdin.take();
        let host = format!("unix://{}/docker.sock", directory.path().display());
        let (image, busybox) = (engine.image.clone(), engine.busybox.clone());
        let mut own = Self {
            engine: TestEngine {
                host,
                image,
                busybox,
            },
            controller,
            orders,
            directory,
        };
        own.restart();
        let archive = own.directory.path().join("image");
        engine.docker([
            "save",
            "--output",
            &archive.to_string_lossy(),
            &engine.image,
        ]);
        own.engine
            .docker(["load", "--input", &archive.to_string_lossy()]);
        Some(own)
    }

    fn order(&mut self, order: &str) {
        let orders = self.orders.as_mut().unwrap();
        writeln!(orders, "{order}").unwrap();
    }

    /// Kills the engine, and waits until it is gone: the kernel closes its connections when its last thread has ended.
    pub(crate) fn kill(&mut self) {
        self.order("kill");
        let socket = self.directory.path().join("docker.sock");
        eventually("the end of the engine", || {
            UnixStream::connect(&socket).is_err()
        });
    }

    pub(crate) fn restart(&mut self) {
        self.order("start");
        eventually("the engine", || {
            let mut version = Command::new("docker");
            version.args(["--host", &self.engine.host, "version"]);
            version.output().unwrap().status.success()
        });
    }
}

impl Drop for OwnEngine {
    fn drop(&mut self) {
        self.orders = None;
        let _ = self.controller.wait();
        let name = self.directory.path().file_name().unwrap();
        // Remove its remaining control groups, in every hierarchy.
        let mut remove = Command::new("find");
        remove.arg("/sys/fs/cgroup").args(["-depth", "-type", "d"]);
        remove.arg("-path").arg(format!("*/{}*", name.display()));
        let _ = remove.arg("-delete").output();
    }
}
