//! The stream to a relay as its users see it: requests, and for each command or connection an inbox of its answers.
//!
//! An inbox holds a command's reports, the credit of its input and the senders of its output channels. The
//! stream's reader (see `link`) fills it without waiting for a consumer.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use cantle_command_driver::InputChannel;
use cantle_core::sandbox::{SandboxError, SandboxErrorKind};
use cantle_supervisor::frames::{
    Answer, CONNECTION_ID, CONNECTION_WINDOW, Channel, INPUT_WINDOW, MAX_BODY, MAX_CONNECTIONS,
    MAX_PAYLOAD, OUTPUT_WINDOW, Request, StdioMode, cost,
};
use cantle_supervisor::wire::Report;
use parking_lot::Mutex;
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
    /// Receives the connections of clients to the proxy, if there is one.
    clients: Option<mpsc::Sender<AcceptedConnection>>,
    /// The number of [`ConnectionSlot`]s.
    connections: AtomicUsize,
    /// Cancelled when the stream has ended.
    pub(super) gone: CancellationToken,
    pub(super) closing: CancellationToken,
    is_closed: AtomicBool,
}

impl Stream {
    /// Creates a stream whose frames are sent to these queues, and whose connections to `clients`.
    pub(super) fn new(
        urgent: mpsc::UnboundedSender<Frame>,
        input: mpsc::UnboundedSender<Frame>,
        clients: Option<mpsc::Sender<AcceptedConnection>>,
    ) -> Self {
        Self {
            urgent,
            input,
            inboxes: Mutex::default(),
            last_id: AtomicU32::new(0),
            clients,
            connections: AtomicUsize::new(0),
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
        self.inboxes.lock().clear();
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
        self.inboxes.lock().insert(id, inbox);
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
            self.inboxes.lock().remove(&id);
            return Err(error);
        }
        Ok(spawned)
    }

    /// Dispatches an answer to its command's inbox. The payload of an output frame may arrive in pieces, each
    /// in an answer whose length is that of the rest.
    pub(super) fn dispatch(
        self: &Arc<Self>,
        answer: Answer,
        payload: Bytes,
    ) -> Result<(), ProtocolViolation> {
        if let Answer::Connected { id } = answer {
            return self.connect(id);
        }
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
        // Answers may still arrive for a command whose handles were dropped.
        self.with_inbox(id, |inbox| inbox.receive(answer, payload))
            .unwrap_or(Ok(()))
    }

    /// Changes an inbox, and removes it if it is finished; `None` if there is none.
    fn with_inbox<T>(&self, id: u32, change: impl FnOnce(&mut Inbox) -> T) -> Option<T> {
        let mut inboxes = self.inboxes.lock();
        let inbox = inboxes.get_mut(&id)?;
        let changed = change(inbox);
        if inbox.is_finished() {
            inboxes.remove(&id);
        }
        Some(changed)
    }

    /// Passes a new connection on.
    fn connect(self: &Arc<Self>, id: u32) -> Result<(), ProtocolViolation> {
        let clients = self.clients.as_ref().ok_or(ProtocolViolation)?;
        let connections = self.connections.fetch_add(1, Ordering::AcqRel);
        let (inbox, connection) = Inbox::connection(self, id);
        let is_new = self.inboxes.lock().insert(id, inbox).is_none();
        if id & CONNECTION_ID == 0 || !is_new || connections >= MAX_CONNECTIONS {
            return Err(ProtocolViolation);
        }
        // The queue has room for all; without a receiver the stream is about to end.
        let _ = clients.try_send(connection);
        Ok(())
    }
}

/// The receiving side of a command or connection, owned by the stream's reader.
#[derive(Debug)]
struct Inbox {
    /// `None` after all of the command's processes have ended, and for a connection.
    reports: Option<mpsc::Sender<Report>>,
    /// Each at the index of its channel's number.
    channels: [OutputSender; 3],
    input: Arc<InputCredit>,
}

/// The sending side of a [`ChannelReader`].
#[derive(Debug)]
struct OutputSender {
    /// Bytes with the credit that they use. `None` after the channel's end, or without a reader.
    chunks: Option<mpsc::UnboundedSender<(Bytes, u64)>>,
    state: Arc<ChannelState>,
}

/// State shared by the two sides of an output channel.
#[derive(Debug)]
pub(super) struct ChannelState {
    /// The most credit that may be used.
    window: u64,
    /// Credit used by received bytes and not granted again.
    used_credit: AtomicU64,
    /// Bytes written by the command, as last reported.
    total: AtomicU64,
}

impl ChannelState {
    fn new(window: usize) -> Arc<Self> {
        Arc::new(Self {
            window: window as u64,
            used_credit: AtomicU64::new(0),
            total: AtomicU64::new(0),
        })
    }

    /// Returns the reported number of bytes written; 0 before the command has ended.
    pub(super) fn total_bytes(&self) -> u64 {
        self.total.load(Ordering::Acquire)
    }
}

#[derive(Debug)]
struct InputCredit {
    credit: Arc<Semaphore>,
    /// Bytes sent and not yet acknowledged.
    unacknowledged: AtomicU64,
}

impl InputCredit {
    fn new(window: usize) -> Arc<Self> {
        Arc::new(Self {
            credit: Arc::new(Semaphore::new(window)),
            unacknowledged: AtomicU64::new(0),
        })
    }
}

impl Inbox {
    fn new(stream: &Arc<Stream>, id: u32, stdio: StdioMode) -> (Self, Spawned) {
        let (report_sender, reports) = mpsc::channel(MAX_REPORTS);
        let command = CommandHandle::new(stream, id);
        let open = |channel| ChannelReader::open(&command, channel, OUTPUT_WINDOW);
        let (stdout_sender, stdout) = open(Channel::Stdout);
        let (stderr_sender, stderr) = open(Channel::Stderr);
        let credit = InputCredit::new(INPUT_WINDOW);
        let inbox = Self {
            reports: Some(report_sender),
            channels: [stdout_sender, stderr_sender, OutputSender::ended()],
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

    fn connection(stream: &Arc<Stream>, id: u32) -> (Self, AcceptedConnection) {
        let command = CommandHandle::new(stream, id);
        let (sender, reader) = ChannelReader::open(&command, Channel::Stdout, CONNECTION_WINDOW);
        let credit = InputCredit::new(CONNECTION_WINDOW);
        let inbox = Self {
            reports: None,
            channels: [sender, OutputSender::ended(), OutputSender::ended()],
            input: Arc::clone(&credit),
        };
        let accepted = AcceptedConnection {
            reader,
            writer: InputWriter { command, credit },
            slot: ConnectionSlot(Arc::clone(stream)),
        };
        (inbox, accepted)
    }

    fn receive(&mut self, answer: Answer, payload: Bytes) -> Result<(), ProtocolViolation> {
        match answer {
            Answer::Ready { .. } | Answer::Connected { .. } => return Err(ProtocolViolation),
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
                if used_credit + credit > output.state.window {
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

    /// Whether the command has ended, no channel has a reader and nothing more is written.
    fn is_finished(&self) -> bool {
        self.reports.is_none()
            && self.input.credit.is_closed()
            && self.channels.iter().all(|channel| channel.chunks.is_none())
    }
}

impl OutputSender {
    /// A channel at its end.
    fn ended() -> Self {
        Self {
            chunks: None,
            state: ChannelState::new(0),
        }
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.input.credit.close();
    }
}

/// A connection to the proxy that a client has opened.
#[derive(Debug)]
pub(super) struct AcceptedConnection {
    pub(super) reader: ChannelReader,
    pub(super) writer: InputWriter,
    pub(super) slot: ConnectionSlot,
}

/// A place among the connections that may be open at once.
#[derive(Debug)]
pub(super) struct ConnectionSlot(Arc<Stream>);

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::AcqRel);
        self.0.send(Request::Accept);
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
    fn new(stream: &Arc<Stream>, id: u32) -> Self {
        let stream = Arc::clone(stream);
        Self { stream, id }
    }

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
        let (sender, mut reader) = ChannelReader::open(self, channel, OUTPUT_WINDOW);
        let is_known = {
            let mut inboxes = self.stream.inboxes.lock();
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
    fn open(command: &CommandHandle, channel: Channel, window: usize) -> (OutputSender, Self) {
        let (sender, chunks) = mpsc::unbounded_channel();
        let state = ChannelState::new(window);
        let sender = OutputSender {
            chunks: Some(sender),
            state: Arc::clone(&state),
        };
        let reader = Self {
            command: command.clone(),
            channel,
            chunks,
            consumed: 0,
            state,
        };
        (sender, reader)
    }

    /// Returns the next chunk; `None` at the end. Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<Bytes> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let Some((chunk, credit)) = ready!(self.chunks.poll_recv(cx)) else {
            return Poll::Ready(None);
        };
        self.consumed += credit;
        if self.consumed >= self.state.window / 2 {
            let credit = std::mem::take(&mut self.consumed);
            self.state.used_credit.fetch_sub(credit, Ordering::AcqRel);
            let channel = self.channel;
            self.command.send(|id| Request::Grant {
                id,
                channel,
                credit,
            });
        }
        Poll::Ready(Some(chunk))
    }
}

impl Drop for ChannelReader {
    fn drop(&mut self) {
        let CommandHandle { stream, id } = &self.command;
        let channel = self.channel;
        let chunks = stream.with_inbox(*id, |inbox| inbox.output(channel).chunks.take());
        if chunks.flatten().is_some() {
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
    /// Returns the number of bytes that may be written, as permits; closed if nothing is read any more.
    pub(super) fn credit(&self) -> Arc<Semaphore> {
        Arc::clone(&self.credit.credit)
    }

    /// Sends at most [`MAX_PAYLOAD`] bytes, for which the caller has taken credit.
    pub(super) fn send(&self, data: Bytes) {
        let CommandHandle { stream, id } = &self.command;
        let (id, length) = (*id, data.len() as u64);
        let unacknowledged = &self.credit.unacknowledged;
        unacknowledged.fetch_add(length, Ordering::AcqRel);
        stream.send_input(Request::Input { id, length }, data);
    }
}

impl InputChannel for InputWriter {
    /// Sends all of the data, waiting for credit as the command reads.
    async fn write(&mut self, mut data: Bytes) -> Result<(), SandboxError> {
        while !data.is_empty() {
            let chunk = data.split_to(data.len().min(MAX_PAYLOAD));
            let length = u32::try_from(chunk.len()).unwrap_or(u32::MAX);
            let Ok(permit) = self.credit.credit.acquire_many(length).await else {
                self.command.stream.check()?;
                let message = "the command no longer reads its input";
                return Err(SandboxError::new(SandboxErrorKind::Closed, message));
            };
            permit.forget();
            self.send(chunk);
        }
        Ok(())
    }
}

impl Drop for InputWriter {
    fn drop(&mut self) {
        let CommandHandle { stream, id } = &self.command;
        stream.send_input(Request::CloseInput { id: *id }, Bytes::new());
        self.credit.credit.close();
        // A connection may be finished.
        stream.with_inbox(*id, |_| ());
    }
}
