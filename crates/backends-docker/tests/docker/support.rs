//! Shared test code: the engine, and shortcuts for sandboxes.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cantle_backends_docker::DockerBackend;
use cantle_core::ids::RunId;
use cantle_core::policy::Policy;
use cantle_core::sandbox::{
    Backend as _, CommandOutput, ExitStatus, Sandbox, SandboxContext, SandboxExt as _, SpawnRequest,
};

/// Deadline of every wait, generous because a loaded machine may stall for seconds.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// The engine and the images of the tests.
pub(crate) struct TestEngine {
    pub(crate) host: String,
    /// An image with bash, Python and git.
    pub(crate) image: String,
    /// An image with nothing but BusyBox.
    pub(crate) busybox: String,
}

impl TestEngine {
    /// Returns the engine named in the environment; reports a skip if there is none.
    pub(crate) fn from_env() -> Option<Self> {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let found = (|| {
            Some(Self {
                host: variable("CANTLE_TEST_DOCKER_HOST")?,
                image: variable("CANTLE_TEST_DOCKER_IMAGE")?,
                busybox: variable("CANTLE_TEST_DOCKER_BUSYBOX")?,
            })
        })();
        if found.is_none() {
            eprintln!("SKIPPED: CANTLE_TEST_DOCKER_HOST, _IMAGE and _BUSYBOX name no engine");
        }
        found
    }

    pub(crate) fn backend(&self) -> DockerBackend {
        DockerBackend::from_image(&self.image).with_host(&self.host)
    }

    pub(crate) fn busybox(&self) -> DockerBackend {
        DockerBackend::from_image(&self.busybox).with_host(&self.host)
    }

    /// Runs the Docker CLI and returns its output.
    pub(crate) fn docker<const N: usize>(&self, arguments: [&str; N]) -> String {
        let output = Command::new("docker")
            .args(["--host", &self.host])
            .args(arguments)
            .output()
            .expect("the tests need the Docker CLI");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "docker {arguments:?}: {stderr}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Returns the ids of all containers with this label.
    pub(crate) fn labelled(&self, label: &str) -> Vec<String> {
        let filter = format!("label={label}");
        let listed = self.docker(["ps", "--all", "--quiet", "--no-trunc", "--filter", &filter]);
        listed.lines().map(str::to_owned).collect()
    }

    /// Returns the ids of the containers of one run.
    pub(crate) fn containers_of(&self, run: RunId) -> Vec<String> {
        self.labelled(&format!("cantle.run={run}"))
    }

    /// Returns whether a container exists; an engine that was killed may list containers it has removed.
    pub(crate) fn has_container(&self, container: &str) -> bool {
        let mut inspect = Command::new("docker");
        inspect.args(["--host", &self.host, "inspect", container]);
        inspect.output().unwrap().status.success()
    }

    /// Returns the container of a sandbox.
    pub(crate) fn container(&self, sandbox: &dyn Sandbox) -> String {
        let label = format!("cantle.sandbox={}", sandbox.info().id);
        self.labelled(&label).pop().expect("it has a container")
    }
}

pub(crate) fn context() -> SandboxContext {
    SandboxContext::new(RunId::new(), Policy::unconfined())
}

pub(crate) fn context_with(policy: Policy) -> SandboxContext {
    SandboxContext::new(RunId::new(), policy)
}

pub(crate) async fn open(backend: &DockerBackend) -> Arc<dyn Sandbox> {
    backend.open(context()).await.unwrap()
}

pub(crate) async fn run(sandbox: &dyn Sandbox, line: &str) -> CommandOutput {
    let request = SpawnRequest::shell(line).with_timeout(DEADLINE);
    sandbox.run(request).await.unwrap()
}

/// Returns the output of a command line that must succeed.
pub(crate) async fn stdout(sandbox: &dyn Sandbox, line: &str) -> String {
    let output = run(sandbox, line).await;
    let stderr = output.stderr.text();
    assert_eq!(output.exit.status, ExitStatus::Code(0), "{line}: {stderr}");
    output.stdout.text().trim_end().to_owned()
}

/// Polls until the condition holds.
#[track_caller]
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !condition() {
        assert!(Instant::now() < deadline, "timed out waiting for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
