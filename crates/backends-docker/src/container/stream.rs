//! What a process in a container reads and writes, as two streams of bytes.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bollard::container::LogOutput;
use bollard::errors::Error;
use bytes::{Buf as _, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes of complaints that are remembered.
const MOST_COMPLAINTS: usize = 2000;

type Output = Pin<Box<dyn futures_core::Stream<Item = Result<LogOutput, Error>> + Send>>;

/// Both directions, and what it complained of.
pub(crate) struct Stream {
    pub(crate) reader: Pin<Box<dyn AsyncRead + Send>>,
    pub(crate) writer: Pin<Box<dyn AsyncWrite + Send>>,
    pub(crate) complaints: Complaints,
}

impl Stream {
    /// Those of the engine's client.
    pub(crate) fn new(output: Output, input: Pin<Box<dyn AsyncWrite + Send>>) -> Self {
        let complaints = Complaints::default();
        Self {
            reader: Box::pin(Reader {
                output,
                piece: Bytes::new(),
                complaints: complaints.clone(),
            }),
            writer: input,
            complaints,
        }
    }
}

/// The beginning of what a process wrote to its standard error.
#[derive(Clone, Debug, Default)]
pub(crate) struct Complaints(Arc<Mutex<Vec<u8>>>);

impl Complaints {
    pub(crate) fn text(&self) -> String {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).trim().to_owned()
    }

    pub(super) fn add(&self, bytes: &[u8]) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let room = MOST_COMPLAINTS.saturating_sub(all.len());
        all.extend(bytes.iter().take(room));
    }
}

/// What it writes to its standard output.
struct Reader {
    output: Output,
    piece: Bytes,
    complaints: Complaints,
}

impl AsyncRead for Reader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.piece.is_empty() {
            match std::task::ready!(self.output.as_mut().poll_next(cx)) {
                None => return Poll::Ready(Ok(())),
                Some(Err(error)) => return Poll::Ready(Err(io::Error::other(error))),
                Some(Ok(LogOutput::StdErr { message })) => self.complaints.add(&message),
                Some(Ok(output)) => self.piece = output.into_bytes(),
            }
        }
        let length = self.piece.len().min(buffer.remaining());
        let bytes = self.piece.get(..length).unwrap_or_default();
        buffer.put_slice(bytes);
        self.piece.advance(length);
        Poll::Ready(Ok(()))
    }
}
