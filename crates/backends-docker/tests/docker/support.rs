//! What the tests share: the engine they use, and short ways to use a sandbox.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cantle_backends_docker::DockerBackend;
use cantle_core::ids::RunId;
use cantle_core::policy::Policy;
use cantle_core::sandbox::{
    Backend as _, CommandOutput, ExitStatus, Sandbox, SandboxContext, SandboxExt as _, SpawnRequest,
};

/// For what must come, and should take no time: a machine may be slow, or stand still for seconds.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The engine and the images of the tests.
pub(crate) struct Peer {
    pub(crate) host: String,
    /// An image with bash, Python and git.
    pub(crate) image: String,
    /// An image with nothing but BusyBox.
    pub(crate) busybox: String,
}

impl Peer {
    /// The engine that the environment names; without one, says so.
    pub(crate) fn find() -> Option<Self> {
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

    /// What Docker's own program says to this.
    pub(crate) fn docker<const N: usize>(&self, arguments: [&str; N]) -> String {
        let output = Command::new("docker")
            .args(["--host", &self.host])
            .args(arguments)
            .output()
            .expect("the tests need Docker's program");
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "docker {arguments:?}: {complaint}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// The ids of all containers with this label.
    pub(crate) fn labelled(&self, label: &str) -> Vec<String> {
        let filter = format!("label={label}");
        let listed = self.docker(["ps", "--all", "--quiet", "--no-trunc", "--filter", &filter]);
        listed.lines().map(str::to_owned).collect()
    }

    /// The ids of the containers of one run.
    pub(crate) fn of_run(&self, run: RunId) -> Vec<String> {
        self.labelled(&format!("cantle.run={run}"))
    }

    /// Whether the engine can say anything of a container. One that was killed may go on listing what
    /// it has removed since.
    pub(crate) fn knows(&self, container: &str) -> bool {
        let mut inspect = Command::new("docker");
        inspect.args(["--host", &self.host, "inspect", container]);
        inspect.output().unwrap().status.success()
    }

    /// The container of a sandbox.
    pub(crate) fn container(&self, sandbox: &dyn Sandbox) -> String {
        let label = format!("cantle.sandbox={}", sandbox.info().id);
        self.labelled(&label).pop().expect("it has a container")
    }
}

pub(crate) fn context() -> SandboxContext {
    SandboxContext::new(RunId::new(), Policy::unconfined())
}

pub(crate) fn under(policy: Policy) -> SandboxContext {
    SandboxContext::new(RunId::new(), policy)
}

pub(crate) async fn open(backend: &DockerBackend) -> Arc<dyn Sandbox> {
    backend.open(context()).await.unwrap()
}

pub(crate) async fn run(sandbox: &dyn Sandbox, line: &str) -> CommandOutput {
    let request = SpawnRequest::shell(line).with_timeout(PATIENCE);
    sandbox.run(request).await.unwrap()
}

/// The output of a command line that must end well.
pub(crate) async fn stdout(sandbox: &dyn Sandbox, line: &str) -> String {
    let output = run(sandbox, line).await;
    let complaint = output.stderr.text();
    assert_eq!(
        output.exit.status,
        ExitStatus::Code(0),
        "{line}: {complaint}"
    );
    output.stdout.text().trim_end().to_owned()
}

/// Looks until it is so.
#[track_caller]
pub(crate) fn eventually(what: &str, mut look: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !look() {
        assert!(Instant::now() < deadline, "{what} did not come");
        std::thread::sleep(Duration::from_millis(20));
    }
}
