//! The handle of a running command.

use std::sync::Arc;

use async_trait::async_trait;
use cantle_core::sandbox::{
    Exit, OutputStream, Process, ProcessStdin, PtySize, SandboxError, SandboxErrorKind,
};
use rustix::process::Signal;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::Command;
use super::drive::Outcome;
use super::output::LocalOutput;
use super::source::Terminal;
use super::stdin::LocalStdin;

/// A command of a local sandbox. Dropped, it is killed with everything it started.
pub(crate) struct LocalProcess {
    pub(super) command: Arc<Command>,
    /// Its first process, as seen inside the sandbox.
    pub(super) pid: i32,
    pub(super) output: Option<LocalOutput>,
    pub(super) stdin: Option<LocalStdin>,
    pub(super) terminal: Option<Arc<Terminal>>,
    pub(super) outcome: watch::Receiver<Option<Outcome>>,
    pub(super) _driver: Arc<AbortOnDropHandle<()>>,
}

#[async_trait]
impl Process for LocalProcess {
    fn id(&self) -> Option<u32> {
        Some(self.pid.unsigned_abs())
    }

    fn take_output(&mut self) -> Option<OutputStream> {
        self.output.take().map(|output| Box::pin(output) as _)
    }

    fn take_stdin(&mut self) -> Option<Box<dyn ProcessStdin>> {
        self.stdin.take().map(|stdin| Box::new(stdin) as _)
    }

    async fn signal(&mut self, signal: i32) -> Result<(), SandboxError> {
        if Signal::from_named_raw(signal).is_none() {
            let message = format!("there is no signal {signal}");
            return Err(SandboxError::new(SandboxErrorKind::InvalidInput, message));
        }
        self.command.signal(self.pid, signal);
        Ok(())
    }

    async fn resize(&mut self, size: PtySize) -> Result<(), SandboxError> {
        let Some(terminal) = &self.terminal else {
            return Err(SandboxError::unsupported("the command has no terminal"));
        };
        terminal
            .resize(size)
            .map_err(|error| SandboxError::io("failed to resize the terminal", error))
    }

    async fn wait(&mut self) -> Result<Exit, SandboxError> {
        // Nobody can take it any more, and the command must not wait for a reader.
        self.output = None;
        match self.outcome.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.clone().unwrap_or(Outcome::Gone).into_result(),
            Err(_) => {
                let message = "the runtime was shut down while the command ran";
                Err(SandboxError::new(SandboxErrorKind::Gone, message))
            }
        }
    }
}

impl Drop for LocalProcess {
    fn drop(&mut self) {
        self.command.abandon();
    }
}
