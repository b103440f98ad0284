//! The inbox of a command: its reports, output channels and input credit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use cantle_core::sandbox::{SandboxError, SandboxErrorKind};
use cantle_supervisor::frames::{
    Channel, INPUT_WINDOW, MAX_PAYLOAD, OUTPUT_WINDOW, Request, StdioMode, cost,
};
use cantle_supervisor::wire::Report;
use tokio::sync::{Semaphore, mpsc};

use super::link::{ProtocolViolation, Stream};

/// An answer of the relay about one command.
#[derive(Debug)]
pub(super) enum CommandEvent {
    Report(Report),
    Gone,
    Output(Channel, Bytes),
    Count(Channel, u64),
    End(Channel, u64),
    Taken(u64),
    InputClosed,
}

/// The receiving side of a command, owned by the stream's reader.
#[derive(Debug)]
pub(super) struct Inbox {
    /// `None` after all of the command's processes have ended.
    reports: Option<mpsc::UnboundedSender<Report>>,
    channels: [OutputSender; 3],
    input: Arc<InputCredit>,
}

/// The sending side of a [`ChannelReader`].
#[derive(Debug)]
struct OutputSender {
    /// `None` after the channel's end, or without a reader.
    chunks: Option<mpsc::UnboundedSender<Bytes>>,
    shared: Arc<ChannelState>,
}

/// State shared by the two sides of an output channel.
#[derive(Debug, Default)]
struct ChannelState {
    /// Bytes received for which no new credit was granted.
    used_credit: AtomicU64,
    /// Bytes written by the command, as last reported.
    total: AtomicU64,
}

#[derive(Debug)]
struct InputCredit {
    credit: Semaphore,
    /// Bytes sent and not yet acknowledged.
    unacknowledged: AtomicU64,
}

impl Inbox {
    pub(super) fn new(stream: &Arc<Stream>, id: u32, stdio: StdioMode) -> (Self, Spawned) {
        let (reports, next_reports) = mpsc::unbounded_channel();
        let open_channel = |channel| {
            let (sender, chunks) = mpsc::unbounded_channel();
            let shared = Arc::new(ChannelState::default());
            let output = OutputSender {
                chunks: Some(sender),
                shared: Arc::clone(&shared),
            };
            let reader = ChannelReader {
                stream: Arc::clone(stream),
                id,
                channel,
                chunks,
                consumed: 0,
                shared,
            };
            (output, reader)
        };
        let (output, output_reader) = open_channel(Channel::Stdout);
        let (errors, errors_reader) = open_channel(Channel::Stderr);
        let input = Arc::new(InputCredit {
            credit: Semaphore::new(INPUT_WINDOW),
            unacknowledged: AtomicU64::new(0),
        });
        let inbox = Self {
            reports: Some(reports),
            channels: [
                output,
                errors,
                OutputSender {
                    chunks: None,
                    shared: Arc::default(),
                },
            ],
            input: Arc::clone(&input),
        };
        let has_input = stdio != StdioMode::Output;
        let spawned = Spawned {
            reports: next_reports,
            output: output_reader,
            errors: errors_reader,
            input: has_input.then(|| InputWriter {
                stream: Arc::clone(stream),
                id,
                input,
            }),
            command: CommandHandle {
                stream: Arc::clone(stream),
                id,
            },
        };
        (inbox, spawned)
    }

    pub(super) fn receive(&mut self, event: CommandEvent) -> Result<(), ProtocolViolation> {
        match event {
            // The receiver may have been dropped.
            CommandEvent::Report(report) => {
                let _ = self.reports.as_ref().map(|reports| reports.send(report));
            }
            CommandEvent::Gone => {
                self.reports = None;
                self.input.credit.close();
            }
            CommandEvent::Output(channel, bytes) => {
                let Some(output) = self.output(channel) else {
                    return Err(ProtocolViolation);
                };
                let cost = cost(bytes.len()) as u64;
                let used_credit = output.shared.used_credit.fetch_add(cost, Ordering::AcqRel);
                if used_credit + cost > OUTPUT_WINDOW as u64 {
                    return Err(ProtocolViolation);
                }
                if let Some(chunks) = &output.chunks {
                    // A dropped reader has requested that the output be discarded.
                    let _ = chunks.send(bytes);
                }
            }
            CommandEvent::Count(channel, total) => {
                if let Some(output) = self.output(channel) {
                    output.shared.total.store(total, Ordering::Release);
                }
            }
            CommandEvent::End(channel, total) => {
                if let Some(output) = self.output(channel) {
                    output.shared.total.store(total, Ordering::Release);
                    output.chunks = None;
                }
            }
            CommandEvent::Taken(bytes) => {
                let sent = self.input.unacknowledged.load(Ordering::Acquire);
                if bytes > sent {
                    return Err(ProtocolViolation);
                }
                self.input.unacknowledged.fetch_sub(bytes, Ordering::AcqRel);
                let bytes = usize::try_from(bytes).map_err(|_| ProtocolViolation)?;
                self.input.credit.add_permits(bytes);
            }
            CommandEvent::InputClosed => self.input.credit.close(),
        }
        Ok(())
    }

    fn output(&mut self, channel: Channel) -> Option<&mut OutputSender> {
        self.channels.get_mut(channel as usize)
    }

    /// Whether the command has ended and no channel has a reader.
    pub(super) fn is_finished(&self) -> bool {
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
    pub(super) reports: mpsc::UnboundedReceiver<Report>,
    pub(super) output: ChannelReader,
    pub(super) errors: ChannelReader,
    pub(super) input: Option<InputWriter>,
    pub(super) command: CommandHandle,
}

/// Sends requests about a command.
#[derive(Clone, Debug)]
pub(super) struct CommandHandle {
    pub(super) stream: Arc<Stream>,
    pub(super) id: u32,
}

impl CommandHandle {
    pub(super) fn kill(&self) {
        self.stream.send(Request::Kill { id: self.id });
    }

    pub(super) fn terminate(&self) {
        self.stream.send(Request::Terminate { id: self.id });
    }

    pub(super) fn signal(&self, signal: i32) {
        self.stream.send(Request::Signal {
            id: self.id,
            signal,
        });
    }

    pub(super) fn resize(&self, rows: u16, columns: u16) {
        self.stream.send(Request::Resize {
            id: self.id,
            rows,
            columns,
        });
    }

    /// Lists the command's processes: for each its id, a space, its command line and a NUL.
    pub(super) async fn list(&self) -> Vec<u8> {
        let (sender, chunks) = mpsc::unbounded_channel();
        let channel = Channel::Processes;
        let shared = Arc::new(ChannelState::default());
        let mut reader = {
            let mut inboxes = self.stream.inboxes();
            let Some(output) = inboxes.get_mut(&self.id).and_then(|it| it.output(channel)) else {
                return Vec::new();
            };
            output.chunks = Some(sender);
            output.shared = Arc::clone(&shared);
            ChannelReader {
                stream: Arc::clone(&self.stream),
                id: self.id,
                channel,
                chunks,
                consumed: 0,
                shared,
            }
        };
        self.stream.send(Request::List { id: self.id });
        let mut listed = Vec::new();
        while let Some(chunk) = reader.next().await {
            listed.extend_from_slice(&chunk);
        }
        listed
    }
}

/// An output channel of a command. Further output is discarded after it is dropped.
#[derive(Debug)]
pub(super) struct ChannelReader {
    stream: Arc<Stream>,
    id: u32,
    channel: Channel,
    chunks: mpsc::UnboundedReceiver<Bytes>,
    /// Bytes read for which no new credit was granted.
    consumed: u64,
    shared: Arc<ChannelState>,
}

impl ChannelReader {
    /// Returns the next chunk; `None` at the end. Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<Bytes> {
        let chunk = self.chunks.recv().await?;
        self.consumed += cost(chunk.len()) as u64;
        if self.consumed >= OUTPUT_WINDOW as u64 / 2 {
            let credit = self.consumed;
            self.consumed = 0;
            self.shared.used_credit.fetch_sub(credit, Ordering::AcqRel);
            let (id, channel) = (self.id, self.channel);
            self.stream.send(Request::Grant {
                id,
                channel,
                credit,
            });
        }
        Some(chunk)
    }

    /// Returns a handle to the number of bytes written.
    pub(super) fn total(&self) -> ChannelTotal {
        ChannelTotal(Arc::clone(&self.shared))
    }
}

/// The number of bytes written to a channel.
#[derive(Clone, Debug)]
pub(super) struct ChannelTotal(Arc<ChannelState>);

impl ChannelTotal {
    /// Returns the reported number of bytes; 0 before the command has ended.
    pub(super) fn bytes(&self) -> u64 {
        self.0.total.load(Ordering::Acquire)
    }
}

impl Drop for ChannelReader {
    fn drop(&mut self) {
        let mut inboxes = self.stream.inboxes();
        let Some(inbox) = inboxes.get_mut(&self.id) else {
            return;
        };
        let output = inbox.output(self.channel);
        let is_at_end = output.is_none_or(|output| output.chunks.take().is_none());
        if inbox.is_finished() {
            inboxes.remove(&self.id);
        }
        if !is_at_end {
            let (id, channel) = (self.id, self.channel);
            self.stream.send(Request::Discard { id, channel });
        }
    }
}

/// A command's input, closed on drop.
#[derive(Debug)]
pub(super) struct InputWriter {
    stream: Arc<Stream>,
    id: u32,
    input: Arc<InputCredit>,
}

impl InputWriter {
    /// Sends all of the data, waiting for credit as the command reads.
    ///
    /// # Errors
    /// [`SandboxErrorKind::Closed`] if the command no longer reads.
    pub(super) async fn write(&mut self, mut data: Bytes) -> Result<(), SandboxError> {
        while !data.is_empty() {
            let chunk = data.split_to(data.len().min(MAX_PAYLOAD));
            let length = u32::try_from(chunk.len()).unwrap_or(u32::MAX);
            match self.input.credit.acquire_many(length).await {
                Ok(permit) => permit.forget(),
                Err(_) => {
                    self.stream.check()?;
                    let message = "the command no longer reads its input";
                    return Err(SandboxError::new(SandboxErrorKind::Closed, message));
                }
            }
            let length = u64::from(length);
            self.input
                .unacknowledged
                .fetch_add(length, Ordering::AcqRel);
            let id = self.id;
            self.stream.send_input(Request::Input { id, length }, chunk);
        }
        Ok(())
    }
}

impl Drop for InputWriter {
    fn drop(&mut self) {
        let request = Request::CloseInput { id: self.id };
        self.stream.send_input(request, Bytes::new());
    }
}
