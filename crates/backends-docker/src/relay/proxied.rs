//! A client's connection to the proxy, carried over the relay's stream.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::PollSemaphore;

use super::stream::{AcceptedConnection, ChannelReader, ConnectionSlot, InputWriter};

/// Maximum number of bytes in one frame.
const MAX_WRITE: usize = 32 * 1024;

/// A connection that a client in the sandbox has opened. Dropping it closes it, after what was written.
#[derive(Debug)]
pub(super) struct Connection {
    reader: ChannelReader,
    /// The part of the latest chunk that was not read.
    unread: Bytes,
    /// `None` after the end of writing.
    writer: Option<InputWriter>,
    credit: PollSemaphore,
    _slot: ConnectionSlot,
}

impl Connection {
    pub(super) fn new(accepted: AcceptedConnection) -> Self {
        Self {
            reader: accepted.reader,
            unread: Bytes::new(),
            credit: PollSemaphore::new(accepted.writer.credit()),
            writer: Some(accepted.writer),
            _slot: accepted.slot,
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.unread.is_empty() {
            match ready!(self.reader.poll_next(cx)) {
                Some(chunk) => self.unread = chunk,
                None => return Poll::Ready(Ok(())),
            }
        }
        let length = self.unread.len().min(buffer.remaining());
        buffer.put_slice(&self.unread.split_to(length));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let (bytes, _) = bytes.split_at(bytes.len().min(MAX_WRITE));
        let length = u32::try_from(bytes.len()).unwrap_or(0);
        let permit = ready!(self.credit.poll_acquire_many(cx, length));
        let (Some(permit), Some(writer)) = (permit, &self.writer) else {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        };
        permit.forget();
        writer.send(Bytes::copy_from_slice(bytes));
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.writer = None;
        Poll::Ready(Ok(()))
    }
}
