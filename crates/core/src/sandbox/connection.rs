//! Connections to servers inside a sandbox.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{SandboxError, SandboxErrorKind};

/// Maximum number of open connections to the ports of one sandbox.
pub const MAX_CONNECTIONS: usize = 64;

/// A connection to a port of a sandbox, closed on drop. Shutting it down closes the direction into the sandbox.
pub struct Connection {
    stream: Pin<Box<dyn ByteDuplex>>,
    _place: OwnedSemaphorePermit,
}

/// A stream of bytes in both directions.
trait ByteDuplex: AsyncRead + AsyncWrite + Send {}

impl<T: AsyncRead + AsyncWrite + Send> ByteDuplex for T {}

/// The connections of one sandbox, of which at most [`MAX_CONNECTIONS`] are open; for implementations of
/// [`Sandbox::connect`](super::Sandbox::connect).
#[derive(Clone, Debug)]
pub struct Connections(Arc<Semaphore>);

impl Default for Connections {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX_CONNECTIONS)))
    }
}

impl Connections {
    /// Opens a connection by `connecting`, if there is a place for it.
    ///
    /// # Errors
    /// [`SandboxErrorKind::Unavailable`] if all places are taken; the error of `connecting`.
    pub async fn open<S: AsyncRead + AsyncWrite + Send + 'static>(
        &self,
        connecting: impl Future<Output = Result<S, SandboxError>>,
    ) -> Result<Connection, SandboxError> {
        let place = Arc::clone(&self.0).try_acquire_owned().map_err(|_| {
            SandboxError::unavailable(format!(
                "the sandbox has {MAX_CONNECTIONS} open connections, which is the maximum"
            ))
        })?;
        Ok(Connection {
            stream: Box::pin(connecting.await?),
            _place: place,
        })
    }
}

impl SandboxError {
    /// Creates the error for a port that could not be connected to.
    pub fn connect_failed(port: u16, error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::ConnectionRefused {
            let message = format!("no server listens on port {port} of the sandbox's loopback");
            return Self::new(SandboxErrorKind::NotFound, message);
        }
        let message = format!("failed to connect to port {port} of the sandbox: {error}");
        Self::new(SandboxErrorKind::Io, message)
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_read(cx, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.stream.as_mut().poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_shutdown(cx)
    }
}
