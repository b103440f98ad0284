//! The stream to a relay: its writer and reader tasks, and the dispatch of answers to commands.
//!
//! Control requests never wait for input, which has its own queue. Both queues are bounded, by credit or by
//! the number of callers. The reader dispatches answers without waiting for their consumers.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use cantle_core::sandbox::{SandboxError, SandboxErrorKind};
use cantle_supervisor::frames::{Answer, HEADER_BYTES, MAX_BODY, MAX_PAYLOAD, Request, StdioMode};
use cantle_supervisor::wire::{REPORT_BYTES, Report, SETUP_REPLY_BYTES, SetupReply};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::select;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::inbox::{CommandEvent, Inbox, Spawned};

/// Size of a read.
const READ_BYTES: usize = 256 * 1024;

/// Shorter frames are written together.
const BATCH_BYTES: usize = 32 * 1024;

/// Shorter payloads are copied, so that they don't keep the whole read buffer allocated.
const COPIED_BYTES: usize = 32 * 1024;

/// Time limit for a relay's first answer.
const SETUP_TIMEOUT: Duration = Duration::from_secs(20);

/// Time limit for a relay to end.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// A frame on its way to the relay.
#[derive(Debug)]
struct Frame {
    request: Request,
    payload: Bytes,
}

/// The state of the stream, shared by its tasks and users.
#[derive(Debug)]
pub(super) struct Stream {
    urgent: mpsc::UnboundedSender<Frame>,
    input: mpsc::UnboundedSender<Frame>,
    inboxes: Mutex<HashMap<u32, Inbox>>,
    last_id: AtomicU32,
    gone: CancellationToken,
    closing: CancellationToken,
    is_closed: AtomicBool,
}

impl Stream {
    /// Sends a control request; it is dropped if the stream has ended, and so has its subject.
    pub(super) fn send(&self, request: Request) {
        let payload = Bytes::new();
        let _ = self.urgent.send(Frame { request, payload });
    }

    /// Sends input; the caller has acquired credit.
    pub(super) fn send_input(&self, request: Request, payload: Bytes) {
        let _ = self.input.send(Frame { request, payload });
    }

    pub(super) fn inboxes(&self) -> MutexGuard<'_, HashMap<u32, Inbox>> {
        self.inboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cancelled when the stream has ended.
    pub(super) fn gone(&self) -> &CancellationToken {
        &self.gone
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// The error for calls after the stream has ended.
    pub(super) fn gone_error(&self) -> SandboxError {
        if self.is_closed() {
            let message = "the sandbox is closed";
            return SandboxError::new(SandboxErrorKind::Closed, message);
        }
        SandboxError::gone("the sandbox has ended: its supervisor no longer responds")
    }

    /// Marks the stream as ended and closes all inboxes.
    fn end(&self) {
        self.gone.cancel();
        self.inboxes().clear();
    }

    pub(super) fn check(&self) -> Result<(), SandboxError> {
        if self.gone.is_cancelled() || self.is_closed() {
            return Err(self.gone_error());
        }
        Ok(())
    }

    /// Starts a command.
    pub(super) fn spawn(
        self: &Arc<Self>,
        stdio: StdioMode,
        body: Vec<u8>,
    ) -> Result<Spawned, SandboxError> {
        self.check()?;
        if body.len() > MAX_BODY {
            let message = "the command, its arguments and variables are too long";
            return Err(
                SandboxError::new(SandboxErrorKind::InvalidInput, message).with_advice(
                    "Write long content to a file first and give the command the file's path.",
                ),
            );
        }
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let (inbox, spawned) = Inbox::new(self, id, stdio);
        self.inboxes().insert(id, inbox);
        let request = Request::Spawn {
            id,
            stdio,
            length: body.len() as u64,
        };
        let payload = body.into();
        if self.urgent.send(Frame { request, payload }).is_err() {
            return Err(self.gone_error());
        }
        if let Err(error) = self.check() {
            // The stream has ended after the check above and no longer closes inboxes.
            self.inboxes().remove(&id);
            return Err(error);
        }
        Ok(spawned)
    }

    /// Dispatches an answer to its command's inbox.
    fn dispatch(&self, answer: Answer, payload: Bytes) -> Result<(), ProtocolViolation> {
        let (id, event) = match answer {
            Answer::Ready { .. } => return Err(ProtocolViolation),
            Answer::Report { id, .. } => {
                let report = Report::decode(&payload).ok_or(ProtocolViolation)?;
                (id, CommandEvent::Report(report))
            }
            Answer::Gone { id } => (id, CommandEvent::Gone),
            Answer::Output { id, channel, .. } => (id, CommandEvent::Output(channel, payload)),
            Answer::Count { id, channel, total } => (id, CommandEvent::Count(channel, total)),
            Answer::End { id, channel, total } => (id, CommandEvent::End(channel, total)),
            Answer::Taken { id, bytes } => (id, CommandEvent::Taken(bytes)),
            Answer::InputClosed { id } => (id, CommandEvent::InputClosed),
        };
        let mut inboxes = self.inboxes();
        // Answers may still arrive for a command whose handles were dropped.
        if let Some(inbox) = inboxes.get_mut(&id) {
            inbox.receive(event)?;
            if inbox.is_finished() {
                inboxes.remove(&id);
            }
        }
        Ok(())
    }
}

/// The relay violated the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProtocolViolation;

/// A connection to a relay, with the tasks that write and read its stream.
///
/// Dropping it ends the stream, and thereby the relay.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) stream: Arc<Stream>,
    _writing: AbortOnDropHandle<()>,
    _reading: AbortOnDropHandle<()>,
}

impl Link {
    /// Sends the setup and waits until the relay is ready.
    pub(super) async fn open(
        mut reader: impl AsyncRead + Send + Unpin + 'static,
        mut writer: impl AsyncWrite + Send + Unpin + 'static,
        setup: Vec<u8>,
    ) -> Result<Self, SandboxError> {
        let failed = |error| {
            let kind = SandboxErrorKind::Unavailable;
            let message = format!("failed to start the supervisor in the sandbox: {error}");
            SandboxError::new(kind, message).with_source(error)
        };
        let start = async {
            let length = setup.len() as u64;
            writer
                .write_all(&Request::Setup { length }.encode())
                .await?;
            writer.write_all(&setup).await?;
            writer.flush().await?;
            let mut answer = [0; HEADER_BYTES];
            reader.read_exact(&mut answer).await?;
            let length = SETUP_REPLY_BYTES as u64;
            if Answer::decode(&answer) != Some(Answer::Ready { length }) {
                return Err(io::Error::from(io::ErrorKind::InvalidData));
            }
            let mut ready = [0; SETUP_REPLY_BYTES];
            reader.read_exact(&mut ready).await?;
            match SetupReply::decode(&ready) {
                Some(SetupReply::Ready { .. }) => Ok(()),
                Some(SetupReply::Failed { errno, .. }) => Err(io::Error::from_raw_os_error(errno)),
                None => Err(io::ErrorKind::InvalidData.into()),
            }
        };
        match timeout(SETUP_TIMEOUT, start).await {
            Ok(started) => started.map_err(failed)?,
            Err(_) => return Err(failed(io::ErrorKind::TimedOut.into())),
        }
        let (urgent, urgent_frames) = mpsc::unbounded_channel();
        let (input, input_frames) = mpsc::unbounded_channel();
        let stream = Arc::new(Stream {
            urgent,
            input,
            inboxes: Mutex::default(),
            last_id: AtomicU32::new(0),
            gone: CancellationToken::new(),
            closing: CancellationToken::new(),
            is_closed: AtomicBool::new(false),
        });
        let queues = FrameQueues {
            urgent: urgent_frames,
            input: input_frames,
        };
        let writing = tokio::spawn(write_frames(Arc::clone(&stream), queues, writer));
        let reading = tokio::spawn(read_answers(Arc::clone(&stream), reader));
        Ok(Self {
            stream,
            _writing: AbortOnDropHandle::new(writing),
            _reading: AbortOnDropHandle::new(reading),
        })
    }

    /// Ends the stream and waits until the relay has ended it, too.
    pub(super) async fn close(&self) -> Result<(), SandboxError> {
        let stream = &self.stream;
        stream.is_closed.store(true, Ordering::Release);
        stream.closing.cancel();
        match timeout(CLOSE_TIMEOUT, stream.gone.cancelled()).await {
            Ok(()) => Ok(()),
            Err(_) => {
                let message = "the supervisor in the sandbox did not end";
                Err(SandboxError::new(SandboxErrorKind::Io, message))
            }
        }
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
async fn read_answers(stream: Arc<Stream>, mut reader: impl AsyncRead + Send + Unpin) {
    let reading = async {
        let mut buffer = BytesMut::with_capacity(READ_BYTES);
        loop {
            while let Some((answer, payload)) = next_answer(&mut buffer)? {
                stream.dispatch(answer, payload)?;
            }
            buffer.reserve(READ_BYTES);
            match reader.read_buf(&mut buffer).await {
                Ok(1..) => {}
                Ok(0) | Err(_) => return Result::<(), ProtocolViolation>::Ok(()),
            }
        }
    };
    let ended = select! {
        ended = reading => ended,
        () = stream.gone.cancelled() => Ok(()),
    };
    if ended.is_err() {
        tracing::warn!("the supervisor in a sandbox violated its protocol");
    }
    stream.end();
}

/// Parses the next answer; `None` if it is incomplete.
fn next_answer(buffer: &mut BytesMut) -> Result<Option<(Answer, Bytes)>, ProtocolViolation> {
    let Some(header) = buffer.first_chunk::<HEADER_BYTES>() else {
        return Ok(None);
    };
    let answer = Answer::decode(header).ok_or(ProtocolViolation)?;
    let length = usize::try_from(answer.payload()).map_err(|_| ProtocolViolation)?;
    let max_length = match answer {
        Answer::Output { .. } => MAX_PAYLOAD,
        _ => SETUP_REPLY_BYTES.max(REPORT_BYTES),
    };
    if length > max_length {
        return Err(ProtocolViolation);
    }
    if buffer.len() < HEADER_BYTES + length {
        return Ok(None);
    }
    buffer.advance(HEADER_BYTES);
    let payload = if length < COPIED_BYTES {
        let copy = Bytes::copy_from_slice(buffer.get(..length).unwrap_or_default());
        buffer.advance(length);
        copy
    } else {
        buffer.split_to(length).freeze()
    };
    Ok(Some((answer, payload)))
}
