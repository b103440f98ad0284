//! The standard streams of a process in a container.

use std::future::ready;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use bollard::container::LogOutput;
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use parking_lot::Mutex;
use tokio::io::AsyncWrite;

/// Bytes of standard error that are kept for error messages.
const STDERR_HEAD_BYTES: usize = 2000;

/// Standard output and input of a process, and the beginning of its standard error.
pub(crate) struct ContainerStream {
    pub(crate) stdout: Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>>,
    pub(crate) stdin: Pin<Box<dyn AsyncWrite + Send>>,
    pub(crate) stderr: StderrHead,
}

impl ContainerStream {
    /// Separates the two channels of an attached stream.
    pub(crate) fn new(
        output: impl Stream<Item = Result<LogOutput, bollard::errors::Error>> + Send + 'static,
        stdin: impl AsyncWrite + Send + 'static,
    ) -> Self {
        let stderr = StderrHead::default();
        let head = stderr.clone();
        let stdout = output.filter_map(move |piece| {
            ready(match piece {
                Ok(LogOutput::StdErr { message }) => {
                    head.append(&message);
                    None
                }
                Ok(output) => Some(Ok(output.into_bytes())),
                Err(error) => Some(Err(io::Error::other(error))),
            })
        });
        Self {
            stdout: Box::pin(stdout),
            stdin: Box::pin(stdin),
            stderr,
        }
    }
}

/// The first [`STDERR_HEAD_BYTES`] of a process's standard error.
#[derive(Clone, Debug, Default)]
pub(crate) struct StderrHead(Arc<Mutex<Vec<u8>>>);

impl StderrHead {
    pub(crate) fn text(&self) -> String {
        let bytes = self.0.lock();
        String::from_utf8_lossy(&bytes).trim().to_owned()
    }

    pub(super) fn append(&self, bytes: &[u8]) {
        let mut head = self.0.lock();
        let room = STDERR_HEAD_BYTES.saturating_sub(head.len());
        head.extend(bytes.iter().take(room));
    }
}
