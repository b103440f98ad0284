//! The engine that the tests use.

use std::process::Command;

use cantle_backends_docker::DockerBackend;
use cantle_core::sandbox::Sandbox;

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

    /// Returns the container of a sandbox.
    pub(crate) fn container(&self, sandbox: &dyn Sandbox) -> String {
        let label = format!("cantle.sandbox={}", sandbox.info().id);
        self.labelled(&label).pop().expect("it has a container")
    }
}
