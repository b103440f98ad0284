//! A connection whose two directions are channels of the relay's stream.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::PollSemaphore;

use super::stream::{ChannelReader, InputWriter};

/// Maximum number of bytes in one frame.
const MAX_WRITE: usize = 32 * 1024;

/// A connection of which the other end is in the sandbox. Dropping it closes both directions, then drops the guard.
pub(super) struct ChannelConnection<G> {
    reader: ChannelReader,
    /// The part of the latest chunk that was not read.
    unread: Bytes,
    /// `None` after the end of writing.
    writer: Option<InputWriter>,
    credit: PollSemaphore,
    _guard: G,
}

impl<G> ChannelConnection<G> {
    /// `unread` was received already; `guard` is dropped with the connection.
    pub(super) fn new(reader: ChannelReader, unread: Bytes, writer: InputWriter, guard: G) -> Self {
        Self {
            reader,
            unread,
            credit: PollSemaphore::new(writer.credit()),
            writer: Some(writer),
            _guard: guard,
        }
    }
}

impl<G: Unpin> AsyncRead for ChannelConnection<G> {
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

impl<G: Unpin> AsyncWrite for ChannelConnection<G> {
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
