//! Shared test code: shortcuts for the engine and for sandboxes.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cantle_backends_docker::DockerBackend;
use cantle_core::ids::RunId;
use cantle_core::policy::Policy;
use cantle_core::sandbox::{
    Backend as _, CommandOutput, ExitStatus, Sandbox, SandboxContext, SandboxExt as _, SpawnRequest,
};

pub(crate) use crate::engine::TestEngine;

/// Deadline of every wait, generous because a loaded machine may stall for seconds.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

impl TestEngine {
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
