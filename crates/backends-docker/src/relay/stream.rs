//! The stream to a relay as its users see it: requests, and for each command an inbox of its answers.
//!
//! An inbox holds a command's reports, the credit of its input and the senders of its output channels. The
//! stream's reader (see `link`) fills it without waiting for a consumer.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use cantle_core::sandbox::{SandboxError, SandboxErrorKind};
use cantle_supervisor::frames::{
    Answer, Channel, INPUT_WINDOW, MAX_BODY, MAX_PAYLOAD, OUTPUT_WINDOW, Request, StdioMode, cost,
};
use cantle_supervisor::wire::Report;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

/// Maximum number of reports about a command that wait for its driver. There is one of its start and one of its
/// end.
const MAX_REPORTS: usize = 4;

/// Maximum length of a list of a command's processes; the relay sends at most a pipe's content.
const MAX_LIST_BYTES: usize = 1 << 20;

/// A frame on its way to the relay.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) request: Request,
    pub(super) payload: Bytes,
}

/// The relay violated the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProtocolViolation;

/// The state of the stream, shared by its tasks and users.
#[derive(Debug)]
pub(super) struct Stream {
    urgent: mpsc::UnboundedSender<Frame>,
    input: mpsc::UnboundedSender<Frame>,
    inboxes: Mutex<HashMap<u32, Inbox>>,
    last_id: AtomicU32,
    /// Cancelled when the stream has ended.
    pub(super) gone: CancellationToken,
    pub(super) closing: CancellationToken,
    is_closed: AtomicBool,
}

impl Stream {
    /// Creates a stream whose frames are sent to these queues.
    pub(super) fn new(
        urgent: mpsc::UnboundedSender<Frame>,
        input: mpsc::UnboundedSender<Frame>,
    ) -> Self {
        Self {
            urgent,
            input,
            inboxes: Mutex::default(),
            last_id: AtomicU32::new(0),
            gone: CancellationToken::new(),
            closing: CancellationToken::new(),
            is_closed: AtomicBool::new(false),
        }
    }

    /// Sends a control request; it is dropped if the stream has ended, and so has its subject.
    fn send(&self, request: Request) {
        let payload = Bytes::new();
        let _ = self.urgent.send(Frame { request, payload });
    }

    /// Sends input; the caller has acquired credit.
    fn send_input(&self, request: Request, payload: Bytes) {
        let _ = self.input.send(Frame { request, payload });
    }

    fn inboxes(&self) -> MutexGuard<'_, HashMap<u32, Inbox>> {
        self.inboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The error for calls after the stream has ended.
    pub(super) fn gone_error(&self) -> SandboxError {
        if self.is_closed.load(Ordering::Acquire) {
            let message = "the sandbox is closed";
            return SandboxError::new(SandboxErrorKind::Closed, message);
        }
        SandboxError::gone("the sandbox has ended: its supervisor no longer responds")
    }

    /// Marks the stream as closed by its user, and stops writing to it.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.closing.cancel();
    }

    /// Marks the stream as ended and closes all inboxes.
    pub(super) fn end(&self) {
        self.gone.cancel();
        self.inboxes().clear();
    }

    pub(super) fn check(&self) -> Result<(), SandboxError> {
        if self.gone.is_cancelled() || self.is_closed.load(Ordering::Acquire) {
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
            return Err(SandboxError::invalid_input(message).with_advice(
                "Write long content to a file first and give the command the file's path.",
            ));
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

    /// Dispatches an answer to its command's inbox. The payload of an output frame may arrive in pieces, each
    /// in an answer whose length is that of the rest.
    pub(super) fn dispatch(&self, answer: Answer, payload: Bytes) -> Result<(), ProtocolViolation> {
        let (Answer::Report { id, .. }
        | Answer::Gone { id }
        | Answer::Output { id, .. }
        | Answer::Count { id, .. }
        | Answer::End { id, .. }
        | Answer::Taken { id, .. }
        | Answer::InputClosed { id }) = answer
        else {
            return Err(ProtocolViolation);
        };
        let mut inboxes = self.inboxes();
        // Answers may still arrive for a command whose handles were dropped.
        if let Some(inbox) = inboxes.get_mut(&id) {
            inbox.receive(answer, payload)?;
            if inbox.is_finished() {
                inboxes.remove(&id);
            }
        }
        Ok(())
    }
}

/// The receiving side of a command, owned by the stream's reader.
#[derive(Debug)]
struct Inbox {
    /// `None` after all of the command's processes have ended.
    reports: Option<mpsc::Sender<Report>>,
    /// Each at the index of its channel's number.
    channels: [OutputSender; 3],
    input: Arc<InputCredit>,
}

/// The sending side of a [`ChannelReader`].
#[derive(Debug, Default)]
struct OutputSender {
    /// Bytes with the credit that they use. `None` after the channel's end, or without a reader.
    chunks: Option<mpsc::UnboundedSender<(Bytes, u64)>>,
    state: Arc<ChannelState>,
}

/// State shared by the two sides of an output channel.
#[derive(Debug, Default)]
pub(super) struct ChannelState {
    /// Credit used by received bytes and not granted again.
    used_credit: AtomicU64,
    /// Bytes written by the command, as last reported.
    total: AtomicU64,
}

impl ChannelState {
    /// Returns the reported number of bytes written; 0 before the command has ended.
    pub(super) fn total_bytes(&self) -> u64 {
        self.total.load(Ordering::Acquire)
    }
}

#[derive(Debug)]
struct InputCredit {
    credit: Semaphore,
    /// Bytes sent and not yet acknowledged.
    unacknowledged: AtomicU64,
}

impl Inbox {
    fn new(stream: &Arc<Stream>, id: u32, stdio: StdioMode) -> (Self, Spawned) {
        let (report_sender, reports) = mpsc::channel(MAX_REPORTS);
        let (stdout_sender, stdout) = ChannelReader::open(stream, id, Channel::Stdout);
        let (stderr_sender, stderr) = ChannelReader::open(stream, id, Channel::Stderr);
        let command = CommandHandle {
            stream: Arc::clone(stream),
            id,
        };
        let credit = Arc::new(InputCredit {
            credit: Semaphore::new(INPUT_WINDOW),
            unacknowledged: AtomicU64::new(0),
        });
        let inbox = Self {
            reports: Some(report_sender),
            channels: [stdout_sender, stderr_sender, OutputSender::default()],
            input: Arc::clone(&credit),
        };
        let spawned = Spawned {
            reports,
            stdout,
            stderr,
            input: (stdio != StdioMode::Output).then(|| InputWriter {
                command: command.clone(),
                credit,
            }),
            command,
        };
        (inbox, spawned)
    }

    fn receive(&mut self, answer: Answer, payload: Bytes) -> Result<(), ProtocolViolation> {
        match answer {
            Answer::Ready { .. } => return Err(ProtocolViolation),
            Answer::Report { .. } => {
                let report = Report::decode(&payload).ok_or(ProtocolViolation)?;
                if let Some(reports) = &self.reports
                    // The receiver may have been dropped.
                    && let Err(TrySendError::Full(_)) = reports.try_send(report)
                {
                    return Err(ProtocolViolation);
                }
            }
            Answer::Gone { .. } => {
                self.reports = None;
                self.input.credit.close();
            }
            Answer::Output {
                channel, length, ..
            } => {
                let output = self.output(channel);
                // The last piece pays for the frame.
                let frame_cost = if length == 0 { cost(0) } else { 0 };
                let credit = (payload.len() + frame_cost) as u64;
                let used_credit = output.state.used_credit.fetch_add(credit, Ordering::AcqRel);
                if used_credit + credit > OUTPUT_WINDOW as u64 {
                    return Err(ProtocolViolation);
                }
                if let Some(chunks) = &output.chunks {
                    // A dropped reader has requested that the output be discarded.
                    let _ = chunks.send((payload, credit));
                }
            }
            Answer::Count { channel, total, .. } => {
                let state = &self.output(channel).state;
                state.total.store(total, Ordering::Release);
            }
            Answer::End { channel, total, .. } => {
                let output = self.output(channel);
                output.state.total.store(total, Ordering::Release);
                output.chunks = None;
            }
            Answer::Taken { bytes, .. } => {
                let sent = self.input.unacknowledged.load(Ordering::Acquire);
                if bytes > sent {
                    return Err(ProtocolViolation);
                }
                self.input.unacknowledged.fetch_sub(bytes, Ordering::AcqRel);
                let bytes = usize::try_from(bytes).map_err(|_| ProtocolViolation)?;
                self.input.credit.add_permits(bytes);
            }
            Answer::InputClosed { .. } => self.input.credit.close(),
        }
        Ok(())
    }

    fn output(&mut self, channel: Channel) -> &mut OutputSender {
        let [stdout, stderr, processes] = &mut self.channels;
        match channel {
            Channel::Stdout => stdout,
            Channel::Stderr => stderr,
            Channel::Processes => processes,
        }
    }

    /// Whether the command has ended and no channel has a reader.
    fn is_finished(&self) -> bool {
        self.reports.is_none() && self.channels.iter().all(|channel| channel.chunks.is_none())
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.input.credit.close();
    }
}

/// A command whose start was requested, with its channels.
#[derive(Debug)]
pub(super) struct Spawned {
    /// Closed when all of the command's processes have ended.
    pub(super) reports: mpsc::Receiver<Report>,
    pub(super) stdout: ChannelReader,
    pub(super) stderr: ChannelReader,
    pub(super) input: Option<InputWriter>,
    pub(super) command: CommandHandle,
}

/// Sends requests about a command.
#[derive(Clone, Debug)]
pub(super) struct CommandHandle {
    pub(super) stream: Arc<Stream>,
    id: u32,
}

impl CommandHandle {
    /// Sends the request that `request` makes of the command's id.
    pub(super) fn send(&self, request: impl FnOnce(u32) -> Request) {
        self.stream.send(request(self.id));
    }

    pub(super) fn kill(&self) {
        self.send(|id| Request::Kill { id });
    }

    /// Lists the command's processes: for each its id, a space, its command line and a NUL.
    pub(super) async fn list(&self) -> Vec<u8> {
        let channel = Channel::Processes;
        let (sender, mut reader) = ChannelReader::open(&self.stream, self.id, channel);
        let is_known = {
            let mut inboxes = self.stream.inboxes();
            let inbox = inboxes.get_mut(&self.id);
            inbox.map(|inbox| *inbox.output(channel) = sender).is_some()
        };
        let mut listed = Vec::new();
        if is_known {
            self.send(|id| Request::List { id });
            while listed.len() < MAX_LIST_BYTES
                && let Some(chunk) = reader.next().await
            {
                listed.extend_from_slice(&chunk);
            }
        }
        listed
    }
}

/// An output channel of a command. Further output is discarded after it is dropped.
#[derive(Debug)]
pub(super) struct ChannelReader {
    command: CommandHandle,
    channel: Channel,
    chunks: mpsc::UnboundedReceiver<(Bytes, u64)>,
    /// Credit of read bytes that was not granted again.
    consumed: u64,
    pub(super) state: Arc<ChannelState>,
}

impl ChannelReader {
    fn open(stream: &Arc<Stream>, id: u32, channel: Channel) -> (OutputSender, Self) {
        let (sender, chunks) = mpsc::unbounded_channel();
        let state = Arc::new(ChannelState::default());
        let sender = OutputSender {
            chunks: Some(sender),
            state: Arc::clone(&state),
        };
        let reader = Self {
            command: CommandHandle {
                stream: Arc::clone(stream),
                id,
            },
            channel,
            chunks,
            consumed: 0,
            state,
        };
        (sender, reader)
    }

    /// Returns the next chunk; `None` at the end. Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<Bytes> {
        let (chunk, credit) = self.chunks.recv().await?;
        self.consumed += credit;
        if self.consumed >= OUTPUT_WINDOW as u64 / 2 {
            let credit = std::mem::take(&mut self.consumed);
            self.state.used_credit.fetch_sub(credit, Ordering::AcqRel);
            let channel = self.channel;
            self.command.send(|id| Request::Grant {
                id,
                channel,
                credit,
            });
        }
        Some(chunk)
    }
}

impl Drop for ChannelReader {
    fn drop(&mut self) {
        let CommandHandle { stream, id } = &self.command;
        let mut inboxes = stream.inboxes();
        let Some(inbox) = inboxes.get_mut(id) else {
            return;
        };
        let is_at_end = inbox.output(self.channel).chunks.take().is_none();
        if inbox.is_finished() {
            inboxes.remove(id);
        }
        if !is_at_end {
            let channel = self.channel;
            self.command.send(|id| Request::Discard { id, channel });
        }
    }
}

/// A command's input, closed on drop.
#[derive(Debug)]
pub(super) struct InputWriter {
    command: CommandHandle,
    credit: Arc<InputCredit>,
}

impl InputWriter {
    /// Sends all of the data, waiting for credit as the command reads.
    ///
    /// # Errors
    /// [`SandboxErrorKind::Closed`] if the command no longer reads.
    pub(super) async fn write(&mut self, mut data: Bytes) -> Result<(), SandboxError> {
        let CommandHandle { stream, id } = &self.command;
        while !data.is_empty() {
            let chunk = data.split_to(data.len().min(MAX_PAYLOAD));
            let length = u32::try_from(chunk.len()).unwrap_or(u32::MAX);
            let Ok(permit) = self.credit.credit.acquire_many(length).await else {
                stream.check()?;
                let message = "the command no longer reads its input";
                return Err(SandboxError::new(SandboxErrorKind::Closed, message));
            };
            permit.forget();
            let (id, length) = (*id, u64::from(length));
            let unacknowledged = &self.credit.unacknowledged;
            unacknowledged.fetch_add(length, Ordering::AcqRel);
            stream.send_input(Request::Input { id, length }, chunk);
        }
        Ok(())
    }
}

impl Drop for InputWriter {
    fn drop(&mut self) {
        let CommandHandle { stream, id } = &self.command;
        stream.send_input(Request::CloseInput { id: *id }, Bytes::new());
    }
}
