//! Connections to ports of the sandbox: each is a task whose stdin and stdout are those of the connection.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use cantle_core::sandbox::{Connection, SandboxError};
use cantle_supervisor::frames::StdioMode;
use cantle_supervisor::tasks::{Task, TaskError};
use cantle_supervisor::wire::{Reader, Report};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::files::encode_task;
use super::stream::{InputWriter, Spawned};
use super::{ANSWER_TIMEOUT, Relay, answer};

/// Maximum bytes that a connection copies at once.
const WRITE_BYTES: usize = 64 * 1024;

impl Relay {
    /// Connects to a port; see [`Sandbox::connect`](cantle_core::sandbox::Sandbox::connect).
    ///
    /// # Errors
    /// As there.
    pub async fn open_port(&self, port: u16) -> Result<Connection, SandboxError> {
        let relay = &*self.inner;
        if relay.proxy.is_some() && port == cantle_proxy::PORT {
            let refused = io::ErrorKind::ConnectionRefused.into();
            return Err(SandboxError::connect_failed(port, &refused));
        }
        relay.connections.open(self.connect_port(port)).await
    }

    async fn connect_port(&self, port: u16) -> Result<RelayConnection, SandboxError> {
        let body = encode_task(&Task::Connect { port }, &[]);
        let spawned = self.inner.link.stream.spawn(StdioMode::All, body)?;
        let mut connection = RelayConnection {
            output: Bytes::new(),
            input: InputState::Closed,
            spawned,
        };
        let spawned = &mut connection.spawned;
        let connecting = async {
            let Some(mut first) = spawned.stdout.next().await else {
                return Err(failure(spawned).await);
            };
            // The zero of the task.
            first.advance(1);
            Ok(first)
        };
        let doing = || format!("failed to connect to port {port} of the sandbox");
        let connected = answer(ANSWER_TIMEOUT, doing, connecting).await?;
        if self.is_gone() {
            return Err(connection.spawned.command.stream.gone_error());
        }
        connection.output =
            connected.map_err(|error| SandboxError::connect_failed(port, &error))?;
        if let Some(input) = connection.spawned.input.take() {
            connection.input = InputState::Idle(input);
        }
        Ok(connection)
    }
}

/// Returns the error of a task that did not connect.
async fn failure(spawned: &mut Spawned) -> io::Error {
    let errno = match spawned.stderr.next().await {
        Some(error) => Reader::new(&error)
            .read::<TaskError<'_>>()
            .map(|it| it.errno),
        None => match spawned.reports.recv().await {
            Some(Report::Failed { errno, .. }) => Some(errno),
            _ => None,
        },
    };
    match errno {
        // Of Linux, on any host system.
        Some(111) => io::ErrorKind::ConnectionRefused.into(),
        Some(errno) => io::Error::from_raw_os_error(errno),
        None => io::ErrorKind::UnexpectedEof.into(),
    }
}

/// A connection; dropping it kills its task.
struct RelayConnection {
    spawned: Spawned,
    /// Bytes that were received and not read.
    output: Bytes,
    input: InputState,
}

/// The direction into the sandbox.
enum InputState {
    Idle(InputWriter),
    /// Waits until the relay takes what was written.
    Busy(BoxFuture<'static, (InputWriter, Result<(), SandboxError>)>),
    Closed,
}

impl RelayConnection {
    /// Waits until everything written has been sent.
    fn poll_sent(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let InputState::Busy(sending) = &mut self.input {
            let (input, sent) = ready!(sending.poll_unpin(cx));
            self.input = match sent {
                Ok(()) => InputState::Idle(input),
                Err(_) => InputState::Closed,
            };
            sent.map_err(|_| io::ErrorKind::BrokenPipe)?;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for RelayConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.output.is_empty() {
            let next = std::pin::pin!(self.spawned.stdout.next()).poll(cx);
            match ready!(next) {
                Some(chunk) => self.output = chunk,
                None => return Poll::Ready(Ok(())),
            }
        }
        let length = self.output.len().min(buffer.remaining());
        buffer.put_slice(&self.output.split_to(length));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for RelayConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_sent(cx))?;
        let InputState::Idle(mut input) = std::mem::replace(&mut self.input, InputState::Closed)
        else {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        };
        let chunk: Bytes = bytes.iter().take(WRITE_BYTES).copied().collect();
        let length = chunk.len();
        self.input = InputState::Busy(Box::pin(async move {
            let sent = input.write(chunk).await;
            (input, sent)
        }));
        // Sends at once what there is credit for.
        match self.poll_sent(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(length)),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_sent(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_sent(cx))?;
        self.input = InputState::Closed;
        Poll::Ready(Ok(()))
    }
}

impl Drop for RelayConnection {
    fn drop(&mut self) {
        self.spawned.command.kill();
    }
}
