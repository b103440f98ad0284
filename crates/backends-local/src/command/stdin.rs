//! A command's input.

use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use cantle_core::sandbox::{ProcessStdin, SandboxError, SandboxErrorKind};
use tokio::io::AsyncWriteExt as _;
use tokio::net::unix::pipe;
use tokio::select;
use tokio_util::sync::CancellationToken;

use super::source::Terminal;

/// Where input goes.
#[derive(Debug)]
pub(super) enum Sink {
    Pipe(pipe::Sender),
    Terminal(Arc<Terminal>),
}

impl Sink {
    async fn write_all(&mut self, mut data: &[u8]) -> io::Result<()> {
        match self {
            Self::Pipe(pipe) => pipe.write_all(data).await,
            Self::Terminal(terminal) => {
                while !data.is_empty() {
                    let written = terminal.type_in(data).await?;
                    data = data.get(written..).unwrap_or_default();
                }
                Ok(())
            }
        }
    }
}

/// Input that is written as the command runs.
#[derive(Debug)]
pub(super) struct LocalStdin {
    pub(super) sink: Sink,
    /// Cancelled when the command has ended: a process it left may hold the pipe and never read.
    pub(super) ended: CancellationToken,
}

#[async_trait]
impl ProcessStdin for LocalStdin {
    async fn write(&mut self, data: Bytes) -> Result<(), SandboxError> {
        select! {
            biased;
            result = self.sink.write_all(&data) => {
                result.map_err(|error| SandboxError::io("failed to write to the command", error))
            }
            () = self.ended.cancelled() => {
                let message = "the command has ended and reads no more";
                Err(SandboxError::new(SandboxErrorKind::Closed, message))
            }
        }
    }
}

/// Writes all of an input that is in memory, as far as the command reads it, and closes it.
pub(super) async fn feed(mut sink: Sink, data: Bytes) {
    // A command need not read what it is given.
    let _ = sink.write_all(&data).await;
}
