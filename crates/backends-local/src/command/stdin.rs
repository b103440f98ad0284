//! A command's input.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use cantle_command_driver::InputChannel;
use cantle_core::sandbox::SandboxError;
use tokio::io::AsyncWriteExt as _;
use tokio::net::unix::pipe;

use super::output::Terminal;

/// The destination of input.
#[derive(Debug)]
pub(crate) enum LocalInput {
    Pipe(pipe::Sender),
    Terminal(Arc<Terminal>),
}

impl LocalInput {
    async fn write_all(&mut self, mut data: &[u8]) -> io::Result<()> {
        match self {
            Self::Pipe(pipe) => pipe.write_all(data).await,
            Self::Terminal(terminal) => {
                while !data.is_empty() {
                    let written = terminal.write(data).await?;
                    data = data.get(written..).unwrap_or_default();
                }
                Ok(())
            }
        }
    }
}

impl InputChannel for LocalInput {
    async fn write(&mut self, data: Bytes) -> Result<(), SandboxError> {
        self.write_all(&data)
            .await
            .map_err(|error| SandboxError::io("failed to write to the command", error))
    }
}
