//! The connection to a relay: the tasks that write requests to its stream and read answers from it.
//!
//! Control requests never wait for input, which has its own queue. Both queues are bounded, by credit or by
//! the number of callers. The reader dispatches answers without waiting for their consumers.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use cantle_core::sandbox::{SandboxError, SandboxErrorKind};
use cantle_supervisor::frames::{Answer, HEADER_BYTES, MAX_PAYLOAD, Request};
use cantle_supervisor::wire::{REPORT_BYTES, SETUP_REPLY_BYTES, SetupReply};
use futures_util::Stream as ByteChunks;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::select;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::io::StreamReader;
use tokio_util::task::AbortOnDropHandle;

use super::stream::{AcceptedConnection, Frame, ProtocolViolation, Stream};

/// Shorter frames are written together.
const BATCH_BYTES: usize = 32 * 1024;

/// Time limit for a relay's first answer.
const SETUP_TIMEOUT: Duration = Duration::from_secs(20);

/// Time limit for a relay to end.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection to a relay, with the tasks that write and read its stream.
///
/// Dropping it ends the stream, and thereby the relay.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) stream: Arc<Stream>,
    /// One bit for each optional step of the setup that failed.
    pub(super) missing: u64,
    _writing: AbortOnDropHandle<()>,
    _reading: AbortOnDropHandle<()>,
}

impl Link {
    /// Sends the setup and waits until the relay is ready; `chunks` is its output. Connections to the proxy are passed
    /// to `clients`.
    pub(super) async fn open(
        chunks: impl ByteChunks<Item = io::Result<Bytes>> + Send + Unpin + 'static,
        mut writer: impl AsyncWrite + Send + Unpin + 'static,
        setup: Vec<u8>,
        clients: Option<mpsc::Sender<AcceptedConnection>>,
    ) -> Result<Self, SandboxError> {
        let mut answers = AnswerReader::new(chunks);
        let start = async {
            let length = setup.len() as u64;
            writer
                .write_all(&Request::Setup { length }.encode())
                .await?;
            writer.write_all(&setup).await?;
            writer.flush().await?;
            let reply = match answers.next().await? {
                Some((Answer::Ready { .. }, reply)) => SetupReply::decode(&reply),
                Some(_) => None,
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            };
            match reply {
                Some(SetupReply::Ready { missing, .. }) => Ok(missing),
                Some(SetupReply::Failed { errno, .. }) => Err(io::Error::from_raw_os_error(errno)),
                None => Err(io::ErrorKind::InvalidData.into()),
            }
        };
        let started = timeout(SETUP_TIMEOUT, start).await;
        let started = started.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        let missing = started.map_err(|error| {
            let message = format!("failed to start the supervisor in the sandbox: {error}");
            SandboxError::unavailable(message)
        })?;
        let (urgent_sender, urgent) = mpsc::unbounded_channel();
        let (input_sender, input) = mpsc::unbounded_channel();
        let stream = Arc::new(Stream::new(urgent_sender, input_sender, clients));
        let queues = FrameQueues { urgent, input };
        let writing = tokio::spawn(write_frames(Arc::clone(&stream), queues, writer));
        let reading = tokio::spawn(read_answers(Arc::clone(&stream), answers));
        Ok(Self {
            stream,
            missing,
            _writing: AbortOnDropHandle::new(writing),
            _reading: AbortOnDropHandle::new(reading),
        })
    }

    /// Ends the stream and waits until the relay has ended it, too.
    pub(super) async fn close(&self) -> Result<(), SandboxError> {
        self.stream.close();
        let ended = timeout(CLOSE_TIMEOUT, self.stream.gone.cancelled()).await;
        ended.map_err(|_| {
            let message = "the supervisor in the sandbox did not end";
            SandboxError::new(SandboxErrorKind::Io, message)
        })
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.stream.end();
    }
}

/// Frames to write, control requests first.
struct FrameQueues {
    urgent: mpsc::UnboundedReceiver<Frame>,
    input: mpsc::UnboundedReceiver<Frame>,
}

impl FrameQueues {
    async fn next(&mut self) -> Option<Frame> {
        select! {
            biased;
            Some(frame) = self.urgent.recv() => Some(frame),
            Some(frame) = self.input.recv() => Some(frame),
            else => None,
        }
    }

    fn try_next(&mut self) -> Option<Frame> {
        let urgent = self.urgent.try_recv().ok();
        urgent.or_else(|| self.input.try_recv().ok())
    }
}

/// Writes frames until the stream ends.
async fn write_frames(
    stream: Arc<Stream>,
    mut queues: FrameQueues,
    mut writer: impl AsyncWrite + Send + Unpin,
) {
    let writing = async {
        let mut batch = BytesMut::new();
        while let Some(frame) = queues.next().await {
            let mut next = Some(frame);
            while let Some(Frame { request, payload }) = next {
                batch.extend_from_slice(&request.encode());
                if payload.len() < BATCH_BYTES {
                    batch.extend_from_slice(&payload);
                } else {
                    let mut both = Buf::chain(&*batch, payload);
                    writer.write_all_buf(&mut both).await?;
                    batch.clear();
                }
                if batch.len() >= BATCH_BYTES {
                    break;
                }
                next = queues.try_next();
            }
            writer.write_all(&batch).await?;
            batch.clear();
            writer.flush().await?;
        }
        io::Result::Ok(())
    };
    let ended = select! {
        written = writing => written.is_ok(),
        () = stream.closing.cancelled() => true,
        () = stream.gone.cancelled() => false,
    };
    if ended {
        // The relay ends when its input does; an error means that it is gone already.
        let _ = writer.shutdown().await;
    } else {
        stream.gone.cancel();
    }
}

/// Reads answers until the stream ends, then closes all inboxes.
async fn read_answers(
    stream: Arc<Stream>,
    mut answers: AnswerReader<impl ByteChunks<Item = io::Result<Bytes>> + Unpin>,
) {
    let reading = async {
        while let Some((answer, payload)) = answers.next().await? {
            stream.dispatch(answer, payload)?;
        }
        Ok(())
    };
    let ended: io::Result<()> = select! {
        ended = reading => ended,
        () = stream.gone.cancelled() => Ok(()),
    };
    if ended.is_err_and(|error| error.kind() == io::ErrorKind::InvalidData) {
        tracing::warn!("the supervisor in a sandbox violated its protocol");
    }
    stream.end();
}

impl From<ProtocolViolation> for io::Error {
    fn from(_: ProtocolViolation) -> Self {
        io::ErrorKind::InvalidData.into()
    }
}

/// Parses answers in the buffer into which they are read. Output is copied once, out of it.
struct AnswerReader<S> {
    stream: StreamReader<S, Bytes>,
    /// The output frame of which a part was returned; its length is that of the rest.
    partial: Option<Answer>,
}

impl<S: ByteChunks<Item = io::Result<Bytes>> + Unpin> AnswerReader<S> {
    fn new(chunks: S) -> Self {
        Self {
            stream: StreamReader::new(chunks),
            partial: None,
        }
    }

    /// Returns the next answer with its payload, or the next piece of output in an answer whose length is
    /// that of the rest; `None` at the end, also within an answer. Not cancel-safe.
    async fn next(&mut self) -> io::Result<Option<(Answer, Bytes)>> {
        match self.read_next().await {
            Ok(next) => Ok(Some(next)),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn read_next(&mut self) -> io::Result<(Answer, Bytes)> {
        let answer = match self.partial.take() {
            Some(answer) => answer,
            None => {
                let mut header = [0; HEADER_BYTES];
                self.stream.read_exact(&mut header).await?;
                Answer::decode(&header).ok_or(ProtocolViolation)?
            }
        };
        let length = usize::try_from(answer.payload()).map_err(|_| ProtocolViolation)?;
        let Answer::Output { id, channel, .. } = answer else {
            if length > SETUP_REPLY_BYTES.max(REPORT_BYTES) {
                return Err(ProtocolViolation.into());
            }
            let mut payload = vec![0; length];
            self.stream.read_exact(&mut payload).await?;
            return Ok((answer, payload.into()));
        };
        if !(1..=MAX_PAYLOAD).contains(&length) {
            return Err(ProtocolViolation.into());
        }
        let read = self.stream.fill_buf().await?;
        if read.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // A slice would keep the whole buffer allocated until its consumer has read it.
        let (piece, _) = read.split_at(length.min(read.len()));
        let piece = Bytes::copy_from_slice(piece);
        self.stream.consume(piece.len());
        let length = (length - piece.len()) as u64;
        let answer = Answer::Output {
            id,
            channel,
            length,
        };
        self.partial = (length > 0).then_some(answer);
        Ok((answer, piece))
    }
}
