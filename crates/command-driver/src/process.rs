//! The handle of a running command.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use cantle_core::sandbox::{
    Exit, OutputStream, Process, ProcessStdin, PtySize, SandboxError, SandboxErrorKind, Signal,
};
use tokio::select;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use crate::output::DrivenOutput;
use crate::phase::{Phase, ended};
use crate::transport::{InputChannel, Transport};

/// A [`Process`] that the command driver runs. Dropped, it is killed with everything it started.
pub struct DrivenProcess<T: Transport> {
    pub(crate) transport: Arc<T>,
    pub(crate) pid: Option<u32>,
    pub(crate) has_terminal: bool,
    pub(crate) output: Option<DrivenOutput>,
    pub(crate) stdin: Option<DrivenStdin<T::Input>>,
    pub(crate) phase: watch::Receiver<Phase>,
    pub(crate) _task: Arc<AbortOnDropHandle<()>>,
}

impl<T: Transport> fmt::Debug for DrivenProcess<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DrivenProcess")
            .field("pid", &self.pid)
            .field("phase", &*self.phase.borrow())
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl<T: Transport> Process for DrivenProcess<T> {
    fn id(&self) -> Option<u32> {
        self.pid
    }

    fn take_output(&mut self) -> Option<OutputStream> {
        self.output.take().map(|output| Box::pin(output) as _)
    }

    fn take_stdin(&mut self) -> Option<Box<dyn ProcessStdin>> {
        self.stdin.take().map(|stdin| Box::new(stdin) as _)
    }

    async fn signal(&mut self, signal: Signal) -> Result<(), SandboxError> {
        if self.phase.borrow().is_running() {
            self.transport.signal(signal).await?;
        }
        Ok(())
    }

    async fn resize(&mut self, size: PtySize) -> Result<(), SandboxError> {
        if !self.has_terminal {
            return Err(SandboxError::unsupported("the command has no terminal"));
        }
        self.transport.resize(size).await
    }

    fn take_notes(&mut self) -> Vec<String> {
        self.transport.take_notes()
    }

    async fn wait(&mut self) -> Result<Exit, SandboxError> {
        // Output that was not taken can't be taken during or after `wait`; it is discarded.
        self.output = None;
        let finished = |phase: &Phase| matches!(phase, Phase::Finished(_));
        match self.phase.wait_for(finished).await.as_deref() {
            Ok(Phase::Finished(Ok(exit))) => Ok(exit.clone()),
            Ok(Phase::Finished(Err(error))) => {
                Err(SandboxError::new(error.kind(), error.to_string()))
            }
            Ok(Phase::Running | Phase::Ended) | Err(_) => Err(SandboxError::gone(
                "the runtime was shut down while the command ran",
            )),
        }
    }
}

impl<T: Transport> Drop for DrivenProcess<T> {
    fn drop(&mut self) {
        if self.phase.borrow().is_running() {
            self.transport.kill();
        }
    }
}

/// Input that the caller writes while the command runs.
pub(crate) struct DrivenStdin<I> {
    pub(crate) input: I,
    pub(crate) phase: watch::Receiver<Phase>,
}

#[async_trait]
impl<I: InputChannel> ProcessStdin for DrivenStdin<I> {
    async fn write(&mut self, data: Bytes) -> Result<(), SandboxError> {
        select! {
            biased;
            written = self.input.write(data) => written,
            // A background process may hold the input open without reading it.
            () = ended(&mut self.phase) => {
                let message = "the command has ended and no longer reads its input";
                Err(SandboxError::new(SandboxErrorKind::Closed, message))
            }
        }
    }
}
