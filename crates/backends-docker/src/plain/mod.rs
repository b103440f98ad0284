//! Commands and files without the supervisor: each operation is an exec of the image's shell.
//!
//! This is slower, needs a shell and the usual small programs in the image, and supports no terminals, signals,
//! spilled output or kept background processes. A command's processes are identified by a mark in their
//! environment; a program that clears its environment escapes until the container ends.

mod exec;
mod files;
mod process;

use std::sync::Arc;
use std::time::Duration;

use cantle_command_driver::CommandDriver;
use cantle_core::policy::Limits;
use cantle_core::sandbox::{
    Background, Command, Process, SandboxError, SandboxErrorKind, SandboxPath, SpawnRequest, Stdin,
};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::exec::{Exec, Script};
use crate::container::Container;
use crate::engine::failure::status;
use crate::environment::Variables;
use crate::options::Options;

/// The shell of command lines; the start script falls back to `sh`.
const SHELL: &str = "bash";

/// The environment variable that marks the processes of a command.
const MARK: &str = "CANTLE_COMMAND";

/// How long the end of the container, and after that the end of the tasks, may take to be noticed.
const END_DEADLINE: Duration = Duration::from_secs(15);

/// Returns an entry point that keeps the container alive while its stdin is open.
pub(crate) fn entry() -> Vec<String> {
    ["/bin/sh", "-c", "while read -r _; do :; done"]
        .map(str::to_owned)
        .into()
}

/// Runs commands and accesses files as execs in a container.
#[derive(Debug)]
pub(crate) struct ExecRunner {
    container: Container,
    user: String,
    working_directory: SandboxPath,
    variables: Variables,
    limits: Limits,
    /// Cancelled when the container has ended, and when the sandbox is closed.
    gone: CancellationToken,
    /// Tasks of commands and writes, each of which ends soon after `gone`.
    tasks: TaskTracker,
}

impl ExecRunner {
    /// Uses a container; `gone` is cancelled when it has ended.
    pub(crate) fn new(
        container: &Container,
        options: &Options,
        variables: Variables,
        limits: &Limits,
        gone: CancellationToken,
    ) -> Arc<Self> {
        Arc::new(Self {
            container: container.clone(),
            user: options.user_text.clone(),
            working_directory: options.working_directory.clone(),
            variables,
            limits: limits.clone(),
            gone,
            tasks: TaskTracker::new(),
        })
    }

    pub(crate) async fn spawn(
        self: &Arc<Self>,
        request: SpawnRequest,
    ) -> Result<Box<dyn Process>, SandboxError> {
        let unsupported = [
            (request.pty.is_some(), "terminals"),
            (
                request.background == Background::Keep,
                "kept background processes",
            ),
            (request.read_only_except.is_some(), "read-only commands"),
            (request.spill.is_some(), "output files"),
        ];
        if let Some((_, feature)) = unsupported.iter().find(|(is_requested, _)| *is_requested) {
            let message =
                format!("{feature} need the supervisor, which doesn't run in this container");
            return Err(SandboxError::unsupported(message));
        }
        let argv = match &request.command {
            Command::Shell(line) => vec![SHELL.to_owned(), "-c".to_owned(), text(line)?],
            Command::Argv(argv) => argv
                .iter()
                .map(|part| text(part))
                .collect::<Result<_, _>>()?,
        };
        if argv.is_empty() {
            return Err(SandboxError::invalid_input("the command is empty"));
        }
        let mark = cantle_core::ids::unique_id();
        let mut variables = self.variables.clone();
        variables.insert("SHELL".to_owned(), SHELL.into());
        variables.extend(request.environment.clone());
        variables.insert(MARK.to_owned(), mark.clone().into());
        let program = argv.first().cloned().unwrap_or_default();
        let mut arguments = vec![self.absolute(&request.directory)?];
        arguments.extend(argv);
        let has_input = request.stdin != Stdin::Null;
        let doing = format!("failed to start `{program}`");
        let driver = CommandDriver::new(request, &self.limits);
        let (done, started) = oneshot::channel();
        let runner = Arc::clone(self);
        // In a task: the engine starts what it was asked to start, also if the caller no longer waits for it.
        self.tasks.spawn(async move {
            let script = Script {
                text: START,
                arguments,
                variables: &variables,
                has_input,
            };
            let exec = Exec::start(&runner, script).await;
            match exec.and_then(|exec| exec.into_result(&doing)) {
                // Without a receiver, the process is dropped, which kills it.
                Ok(exec) => drop(done.send(Ok(process::drive(&runner, exec, driver, mark)))),
                Err(error) => {
                    drop(done.send(Err(error)));
                    // It may run all the same, if starting it took too long.
                    runner.signal("KILL", &mark).await;
                }
            }
        });
        let process = started.await.unwrap_or_else(|_| Err(self.gone()))?;
        Ok(Box::new(process))
    }

    /// Waits until the tasks have killed their commands and removed their temporary files, after `gone`.
    pub(crate) async fn finish(&self) {
        self.tasks.close();
        // What takes longer goes on.
        let _ = timeout(END_DEADLINE, self.tasks.wait()).await;
    }

    /// Runs an operation; fails with "gone" if the container has ended.
    pub(crate) async fn unless_gone<T>(
        &self,
        work: impl Future<Output = Result<T, SandboxError>>,
    ) -> Result<T, SandboxError> {
        let done = tokio::select! {
            biased;
            () = self.gone.cancelled() => return Err(self.gone()),
            done = work => done,
        };
        match done {
            // A broken stream is noticed before the end of the container that caused it.
            Err(error)
                if matches!(
                    error.kind(),
                    SandboxErrorKind::Io | SandboxErrorKind::Unavailable
                ) =>
            {
                Err(self.reason(error).await)
            }
            done => done,
        }
    }

    fn absolute(&self, path: &SandboxPath) -> Result<String, SandboxError> {
        let path = if path.is_absolute() {
            path.clone()
        } else {
            self.working_directory.join(path.relative_bytes())?
        };
        match std::str::from_utf8(path.relative_bytes()) {
            Ok(text) => Ok(format!("/{text}")),
            Err(_) => Err(SandboxError::unsupported(
                "without the supervisor, names must be UTF-8",
            )),
        }
    }

    /// Returns "gone" instead of the error if the container has ended.
    async fn reason(&self, error: SandboxError) -> SandboxError {
        let api = self.container.engine.api();
        let has_ended = match api.inspect_container(&self.container.id, None).await {
            // Podman reports of a paused container that it does not run.
            Ok(found) => found
                .state
                .is_none_or(|it| it.running != Some(true) && it.paused != Some(true)),
            Err(error) if status(&error) == Some(404) => true,
            Err(_) => self.ends_soon().await,
        };
        if has_ended { self.gone() } else { error }
    }

    /// Waits for the container's end, which is noticed a little later than its effects; returns whether it came.
    async fn ends_soon(&self) -> bool {
        timeout(END_DEADLINE, self.gone.cancelled()).await.is_ok()
    }

    fn gone(&self) -> SandboxError {
        SandboxError::gone(format!("the container {} has ended", self.container.id))
    }
}

fn text(argument: &std::ffi::OsStr) -> Result<String, SandboxError> {
    let text = argument.to_str().ok_or_else(|| {
        SandboxError::unsupported("without the supervisor, arguments must be UTF-8")
    })?;
    if text.contains('\0') {
        return Err(SandboxError::invalid_input(
            "an argument contains a NUL byte",
        ));
    }
    Ok(text.to_owned())
}

/// Changes the directory, looks the program up and executes it, after one line with the result.
///
/// `sh` replaces a missing bash.
const START: &str = r#"cd -- "$1" 2>/dev/null || { [ -d "$1" ] && echo denied || echo missing; exit 1; }
shift
if [ "$1" = bash ] && ! command -v bash >/dev/null 2>&1; then shift; set -- sh "$@"; fi
case "$1" in */*) [ -x "$1" ] && [ ! -d "$1" ] ;; *) command -v -- "$1" >/dev/null 2>&1 ;; esac || { echo missing; exit 1; }
echo ok
exec "$@""#;

#[cfg(test)]
mod tests;
