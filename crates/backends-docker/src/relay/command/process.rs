//! The handle of a running command.

use std::ops::RangeInclusive;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use cantle_core::sandbox::{
    Exit, OutputStream, Process, ProcessStdin, PtySize, SandboxError, SandboxErrorKind,
};
use tokio::select;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::super::inbox::InputWriter;
use super::Command;
use super::drive::Outcome;
use super::output::RelayOutput;

/// Those of Linux that have names.
const SIGNALS: RangeInclusive<i32> = 1..=31;

/// A command of a relay's. Dropped, it is killed with everything it started.
pub(in super::super) struct RelayProcess {
    pub(super) command: Arc<Command>,
    /// Its first process, as seen inside the sandbox.
    pub(super) pid: i32,
    pub(super) output: Option<RelayOutput>,
    pub(super) stdin: Option<RelayStdin>,
    pub(super) has_terminal: bool,
    pub(super) outcome: watch::Receiver<Option<Outcome>>,
    pub(super) _driver: Arc<AbortOnDropHandle<()>>,
}

#[async_trait]
impl Process for RelayProcess {
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
        if !SIGNALS.contains(&signal) {
            let message = format!("there is no signal {signal}");
            return Err(SandboxError::new(SandboxErrorKind::InvalidInput, message));
        }
        self.command.id.signal(signal);
        Ok(())
    }

    async fn resize(&mut self, size: PtySize) -> Result<(), SandboxError> {
        if !self.has_terminal {
            return Err(SandboxError::unsupported("the command has no terminal"));
        }
        self.command.id.resize(size.rows, size.columns);
        Ok(())
    }

    async fn wait(&mut self) -> Result<Exit, SandboxError> {
        // Nobody can take it any more, and the command must not wait for a reader.
        self.output = None;
        let message = "the runtime was shut down while the command ran";
        match self.outcome.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(outcome)) => outcome.clone().into_result(),
            Ok(None) | Err(_) => Err(SandboxError::gone(message)),
        }
    }
}

impl Drop for RelayProcess {
    fn drop(&mut self) {
        self.command.abandon();
    }
}

/// Input that is written as the command runs.
#[derive(Debug)]
pub(super) struct RelayStdin {
    pub(super) input: InputWriter,
    /// Cancelled when the command has ended: a process it left may hold the pipe and never read.
    pub(super) ended: CancellationToken,
}

#[async_trait]
impl ProcessStdin for RelayStdin {
    async fn write(&mut self, data: Bytes) -> Result<(), SandboxError> {
        select! {
            biased;
            written = self.input.write(data) => written,
            () = self.ended.cancelled() => {
                let message = "the command has ended and reads no more";
                Err(SandboxError::new(SandboxErrorKind::Closed, message))
            }
        }
    }
}
