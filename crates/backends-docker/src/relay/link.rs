//! The stream to a relay: who writes it, who reads it, and to whom goes what comes.
//!
//! What is said (a command, a signal, an end) never waits for what is carried: input has a queue of
//! its own, and both queues are bounded by credit or by how many callers there are. What comes is
//! handed on at once; the reader of the stream waits for nobody.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use cantle_core::sandbox::{SandboxError, SandboxErrorKind};
use cantle_supervisor::frames::{Answer, Channels, HEADER_BYTES, MOST_BODY, MOST_PAYLOAD, Request};
use cantle_supervisor::wire::{READY_BYTES, REPORT_BYTES, Ready, Report};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::select;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::inbox::{Event, Inbox, Spawned};

/// Bytes that are read at once.
const READ_BYTES: usize = 256 * 1024;

/// Frames shorter than this are written together.
const BATCH_BYTES: usize = 32 * 1024;

/// Payloads shorter than this are copied, so that none keeps many times its size in memory.
const COPIED_BYTES: usize = 32 * 1024;

/// How long a relay may take to answer for the first time.
const SETUP_DEADLINE: Duration = Duration::from_secs(20);

/// How long it may take to end.
const CLOSE_DEADLINE: Duration = Duration::from_secs(5);

/// A frame on its way to the relay.
#[derive(Debug)]
struct Frame {
    request: Request,
    payload: Bytes,
}

/// What is known of the stream, by all who use it.
#[derive(Debug)]
pub(super) struct Stream {
    urgent: mpsc::UnboundedSender<Frame>,
    input: mpsc::UnboundedSender<Frame>,
    inboxes: Mutex<HashMap<u32, Inbox>>,
    numbers: AtomicU32,
    gone: CancellationToken,
    closing: CancellationToken,
    is_closed: AtomicBool,
}

impl Stream {
    /// Says something; the answer, if any, comes to an inbox. Where the stream has ended, so has
    /// everything that it could be about.
    pub(super) fn say(&self, request: Request) {
        let payload = Bytes::new();
        let _ = self.urgent.send(Frame { request, payload });
    }

    /// Sends input, for which there is credit.
    pub(super) fn carry(&self, request: Request, payload: Bytes) {
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

    /// What is said where the relay doesn't answer any more.
    pub(super) fn gone_error(&self) -> SandboxError {
        if self.is_closed() {
            let message = "the sandbox is closed";
            return SandboxError::new(SandboxErrorKind::Closed, message);
        }
        SandboxError::gone("the sandbox has ended: its supervisor doesn't answer any more")
    }

    /// Nothing more comes to any inbox.
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

    /// Has a command started. Dropped, what is returned has it killed.
    pub(super) fn spawn(
        self: &Arc<Self>,
        channels: Channels,
        body: Vec<u8>,
    ) -> Result<Spawned, SandboxError> {
        self.check()?;
        if body.len() > MOST_BODY {
            let message = "the command, its arguments and variables are too long";
            return Err(
                SandboxError::new(SandboxErrorKind::InvalidInput, message).with_advice(
                    "Write long content to a file first and give the command the file's path.",
                ),
            );
        }
        let id = self.numbers.fetch_add(1, Ordering::Relaxed) + 1;
        let (inbox, spawned) = Inbox::new(self, id, channels);
        self.inboxes().insert(id, inbox);
        let request = Request::Spawn {
            id,
            channels,
            length: body.len() as u64,
        };
        let payload = body.into();
        if self.urgent.send(Frame { request, payload }).is_err() {
            return Err(self.gone_error());
        }
        if let Err(error) = self.check() {
            // Nobody else would tell an inbox that came too late.
            self.inboxes().remove(&id);
            return Err(error);
        }
        Ok(spawned)
    }

    /// Hands on what has come.
    fn take(&self, answer: Answer, payload: Bytes) -> Result<(), Violation> {
        let (id, event) = match answer {
            Answer::Ready { .. } => return Err(Violation),
            Answer::Report { id, .. } => {
                let report = Report::decode(&payload).ok_or(Violation)?;
                (id, Event::Report(report))
            }
            Answer::Gone { id } => (id, Event::Gone),
            Answer::Output { id, lane, .. } => (id, Event::Output(lane, payload)),
            Answer::Count { id, lane, total } => (id, Event::Count(lane, total)),
            Answer::End { id, lane, total } => (id, Event::End(lane, total)),
            Answer::Taken { id, bytes } => (id, Event::Taken(bytes)),
            Answer::Staged { id, number } => (id, Event::Staged(number)),
            Answer::InputClosed { id } => (id, Event::InputClosed),
        };
        let mut inboxes = self.inboxes();
        // Of a command that nobody waits for any more there may still come something.
        if let Some(inbox) = inboxes.get_mut(&id) {
            inbox.take(event)?;
            if inbox.is_over() {
                inboxes.remove(&id);
            }
        }
        Ok(())
    }
}

/// The relay has said what it can't say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Violation;

/// A relay that answers, and the tasks that write and read its stream. Dropped, the stream ends, and
/// the relay with it.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) stream: Arc<Stream>,
    _writing: AbortOnDropHandle<()>,
    _reading: AbortOnDropHandle<()>,
}

impl Link {
    /// Sets a relay up.
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
            let length = READY_BYTES as u64;
            if Answer::decode(&answer) != Some(Answer::Ready { length }) {
                return Err(io::Error::from(io::ErrorKind::InvalidData));
            }
            let mut ready = [0; READY_BYTES];
            reader.read_exact(&mut ready).await?;
            match Ready::decode(&ready) {
                Some(Ready::Ready { .. }) => Ok(()),
                Some(Ready::Failed { errno, .. }) => Err(io::Error::from_raw_os_error(errno)),
                None => Err(io::ErrorKind::InvalidData.into()),
            }
        };
        match timeout(SETUP_DEADLINE, start).await {
            Ok(started) => started.map_err(failed)?,
            Err(_) => return Err(failed(io::ErrorKind::TimedOut.into())),
        }
        let (urgent, urgent_frames) = mpsc::unbounded_channel();
        let (input, input_frames) = mpsc::unbounded_channel();
        let stream = Arc::new(Stream {
            urgent,
            input,
            inboxes: Mutex::default(),
            numbers: AtomicU32::new(0),
            gone: CancellationToken::new(),
            closing: CancellationToken::new(),
            is_closed: AtomicBool::new(false),
        });
        let queues = Queues {
            urgent: urgent_frames,
            input: input_frames,
        };
        let writing = tokio::spawn(write(Arc::clone(&stream), queues, writer));
        let reading = tokio::spawn(read(Arc::clone(&stream), reader));
        Ok(Self {
            stream,
            _writing: AbortOnDropHandle::new(writing),
            _reading: AbortOnDropHandle::new(reading),
        })
    }

    /// Ends the stream, and waits until the relay has ended its side.
    pub(super) async fn close(&self) -> Result<(), SandboxError> {
        let stream = &self.stream;
        stream.is_closed.store(true, Ordering::Release);
        stream.closing.cancel();
        match timeout(CLOSE_DEADLINE, stream.gone.cancelled()).await {
            Ok(()) => Ok(()),
            Err(_) => {
                let message = "the supervisor in the sandbox doesn't end";
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

/// What is to be written.
struct Queues {
    urgent: mpsc::UnboundedReceiver<Frame>,
    input: mpsc::UnboundedReceiver<Frame>,
}

impl Queues {
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
async fn write(
    stream: Arc<Stream>,
    mut queues: Queues,
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
        // The end is what the relay waits for; where it is gone, it needs none.
        let _ = writer.shutdown().await;
    } else {
        stream.gone.cancel();
    }
}

/// Reads answers until the stream ends. Then nothing more comes to any inbox.
async fn read(stream: Arc<Stream>, mut reader: impl AsyncRead + Send + Unpin) {
    let reading = async {
        let mut buffer = BytesMut::with_capacity(READ_BYTES);
        loop {
            while let Some((answer, payload)) = next_answer(&mut buffer)? {
                stream.take(answer, payload)?;
            }
            buffer.reserve(READ_BYTES);
            match reader.read_buf(&mut buffer).await {
                Ok(1..) => {}
                Ok(0) | Err(_) => return Result::<(), Violation>::Ok(()),
            }
        }
    };
    let ended = select! {
        ended = reading => ended,
        () = stream.gone.cancelled() => Ok(()),
    };
    if ended.is_err() {
        tracing::warn!("the supervisor in a sandbox has said something that makes no sense");
    }
    stream.end();
}

/// Takes an answer out of what has come; `None` where not all of it is there.
fn next_answer(buffer: &mut BytesMut) -> Result<Option<(Answer, Bytes)>, Violation> {
    let Some(header) = buffer.first_chunk::<HEADER_BYTES>() else {
        return Ok(None);
    };
    let answer = Answer::decode(header).ok_or(Violation)?;
    let length = usize::try_from(answer.payload()).map_err(|_| Violation)?;
    let most = match answer {
        Answer::Output { .. } => MOST_PAYLOAD,
        _ => READY_BYTES.max(REPORT_BYTES),
    };
    if length > most {
        return Err(Violation);
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
