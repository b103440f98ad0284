//! The environment of an attack: a sandbox or, to prove that the attack works, none.

use std::io::Read as _;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cantle_backends_local::LocalBackend;
use cantle_core::ids::RunId;
use cantle_core::policy::Policy;
use cantle_core::sandbox::{
    Backend as _, Command, Sandbox, SandboxContext, SandboxError, SandboxExt as _, SpawnRequest,
};
use tokio::time::timeout;

use crate::fixture::Fixture;
use crate::mode::Mode;
use crate::result::CommandResult;

/// Default time limit of a command.
const LIMIT: Duration = Duration::from_secs(15);
/// Upper bound for actions that take at most a second, including what a slow and busy machine adds.
/// Processes that are not stopped run longer.
pub(crate) const LATE: Duration = Duration::from_secs(5);

const PRELUDE: &str = include_str!("prelude.py");

/// The environment of one attack.
pub(crate) struct Arena {
    pub(crate) fixture: Fixture,
    /// Opens further sandboxes of the same kind.
    backend: LocalBackend,
    policy: Policy,
    /// The mechanisms in force, in a sandbox.
    pub(crate) mode: Option<Mode>,
    sandbox: Option<Arc<dyn Sandbox>>,
}

impl Arena {
    /// Opens a sandbox for the attack.
    pub(crate) async fn open(
        fixture: Fixture,
        backend: LocalBackend,
        policy: Policy,
        mode: Option<Mode>,
    ) -> Result<Self, String> {
        let mut arena = Self {
            backend: backend.in_directory(fixture.sandboxes()),
            fixture,
            policy,
            mode,
            sandbox: None,
        };
        let sandbox = arena.another().await;
        arena.sandbox = Some(sandbox.map_err(|error| format!("not opened: {error}"))?);
        Ok(arena)
    }

    /// Creates an environment without a sandbox.
    pub(crate) fn raw(fixture: Fixture) -> Self {
        Self {
            fixture,
            backend: LocalBackend::new(),
            policy: Policy::unconfined(),
            mode: None,
            sandbox: None,
        }
    }

    /// Opens another sandbox of the same kind.
    pub(crate) async fn another(&self) -> Result<Arc<dyn Sandbox>, SandboxError> {
        self.open_under(self.policy.clone()).await
    }

    /// Opens a sandbox with the same mechanisms under another policy.
    pub(crate) async fn open_under(
        &self,
        policy: Policy,
    ) -> Result<Arc<dyn Sandbox>, SandboxError> {
        let cx = SandboxContext::new(RunId::new(), policy);
        self.backend.open(cx).await
    }

    pub(crate) fn sandbox(&self) -> &dyn Sandbox {
        self.sandbox.as_deref().unwrap()
    }

    /// Returns the host path of a file in the working directory.
    pub(crate) fn on_host(&self, name: &str) -> PathBuf {
        PathBuf::from(self.sandbox().info().working_directory.to_string()).join(name)
    }

    pub(crate) async fn shell(&self, line: &str) -> CommandResult {
        self.run(SpawnRequest::shell(line)).await
    }

    pub(crate) async fn python(&self, script: &str) -> CommandResult {
        self.run(python(script)).await
    }

    /// Runs a command to its end, with the fixture's environment.
    pub(crate) async fn run(&self, request: SpawnRequest) -> CommandResult {
        match &self.sandbox {
            Some(sandbox) => self.run_in(&**sandbox, request).await,
            None => self.run_beside(request).await,
        }
    }

    /// Runs a command in another sandbox.
    pub(crate) async fn run_in(
        &self,
        sandbox: &dyn Sandbox,
        request: SpawnRequest,
    ) -> CommandResult {
        let request = self.with_environment(request);
        let limit = request.timeout.unwrap_or(LIMIT);
        let started = Instant::now();
        let latest = limit + LATE + Duration::from_secs(5);
        match timeout(latest, sandbox.run(request)).await {
            Ok(result) => CommandResult::new(result, started.elapsed()),
            Err(_) => CommandResult {
                took: started.elapsed(),
                stderr: "the call did not return".to_owned(),
                ..CommandResult::default()
            },
        }
    }

    pub(crate) fn with_environment(&self, mut request: SpawnRequest) -> SpawnRequest {
        if request.timeout.is_none() {
            request = request.with_timeout(LIMIT).with_grace(Duration::ZERO);
        }
        let environment = self.fixture.environment().into_iter();
        environment.fold(request, |request, (name, value)| {
            request.with_env(name, value)
        })
    }

    async fn run_beside(&self, request: SpawnRequest) -> CommandResult {
        let argv = match request.command {
            Command::Shell(line) => vec!["/bin/bash".into(), "-c".into(), line],
            Command::Argv(argv) => argv,
        };
        let (program, arguments) = argv.split_first().unwrap();
        let program = if program == "python3" {
            "/usr/bin/python3".into()
        } else {
            program.clone()
        };
        let mut command = std::process::Command::new(program);
        command
            .args(arguments)
            .envs(self.fixture.environment())
            .current_dir(self.fixture.sandboxes())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let started = Instant::now();
        let running = tokio::task::spawn_blocking(move || {
            let mut child = command.spawn().unwrap();
            let mut stdout = Vec::new();
            let mut pipe = child.stdout.take().unwrap();
            pipe.read_to_end(&mut stdout).unwrap();
            child.wait().unwrap();
            String::from_utf8_lossy(&stdout).into_owned()
        });
        CommandResult {
            stdout: running.await.unwrap(),
            took: started.elapsed(),
            ..CommandResult::default()
        }
    }

    /// Closes the sandbox; returns the error, if any.
    pub(crate) async fn close(&self) -> Option<String> {
        let sandbox = self.sandbox.as_ref()?;
        match timeout(2 * LATE, sandbox.close()).await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(format!("closing it: {error}")),
            Err(_) => Some("closing it does not end".to_owned()),
        }
    }
}

/// A request for a script that follows the prelude.
pub(crate) fn python(script: &str) -> SpawnRequest {
    let script = format!("{PRELUDE}{script}");
    SpawnRequest::argv(["python3", "-I", "-S", "-c", &script])
}
