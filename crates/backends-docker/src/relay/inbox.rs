//! What comes of one command, and to whom it goes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use cantle_core::sandbox::{SandboxError, SandboxErrorKind};
use cantle_supervisor::frames::{
    Channels, INPUT_WINDOW, Lane, MOST_PAYLOAD, OUTPUT_WINDOW, Request, cost,
};
use cantle_supervisor::wire::Report;
use tokio::sync::{Semaphore, mpsc};

use super::link::{Stream, Violation};

/// What has come.
#[derive(Debug)]
pub(super) enum Event {
    Report(Report),
    Gone,
    Output(Lane, Bytes),
    Count(Lane, u64),
    End(Lane, u64),
    Taken(u64),
    Staged(u64),
    InputClosed,
}

/// Where it goes. Held by the reader of the stream.
#[derive(Debug)]
pub(super) struct Inbox {
    reports: mpsc::UnboundedSender<Report>,
    staged: mpsc::UnboundedSender<u64>,
    is_gone: bool,
    lanes: [Outlet; 3],
    input: Arc<Input>,
}

/// A channel, as the reader of the stream sees it.
#[derive(Debug)]
struct Outlet {
    /// None once it is at its end, or not wanted.
    pieces: Option<mpsc::UnboundedSender<Bytes>>,
    shared: Arc<Shared>,
}

/// What both sides of a channel know.
#[derive(Debug, Default)]
struct Shared {
    /// What came and was not granted again.
    used: AtomicU64,
    /// Bytes that were written to it, as far as that was told.
    total: AtomicU64,
    is_at_end: AtomicBool,
}

#[derive(Debug)]
struct Input {
    credit: Semaphore,
    /// What was sent and not taken.
    sent: AtomicU64,
}

impl Inbox {
    pub(super) fn new(stream: &Arc<Stream>, id: u32, channels: Channels) -> (Self, Spawned) {
        let (reports, next_reports) = mpsc::unbounded_channel();
        let (staged, next_staged) = mpsc::unbounded_channel();
        let lane = |lane| {
            let (sender, pieces) = mpsc::unbounded_channel();
            let shared = Arc::new(Shared::default());
            let outlet = Outlet {
                pieces: Some(sender),
                shared: Arc::clone(&shared),
            };
            let reader = LaneReader {
                stream: Arc::clone(stream),
                id,
                lane,
                pieces,
                taken: 0,
                shared,
            };
            (outlet, reader)
        };
        let (output, output_reader) = lane(Lane::Output);
        let (errors, errors_reader) = lane(Lane::Errors);
        let input = Arc::new(Input {
            credit: Semaphore::new(INPUT_WINDOW),
            sent: AtomicU64::new(0),
        });
        let inbox = Self {
            reports,
            staged,
            is_gone: false,
            lanes: [
                output,
                errors,
                Outlet {
                    pieces: None,
                    shared: Arc::default(),
                },
            ],
            input: Arc::clone(&input),
        };
        let has_input = channels != Channels::Output;
        let spawned = Spawned {
            reports: next_reports,
            staged: next_staged,
            output: output_reader,
            errors: errors_reader,
            input: has_input.then(|| InputWriter {
                stream: Arc::clone(stream),
                id,
                input,
            }),
            command: CommandId {
                stream: Arc::clone(stream),
                id,
            },
        };
        (inbox, spawned)
    }

    pub(super) fn take(&mut self, event: Event) -> Result<(), Violation> {
        match event {
            // Where nobody waits for it, nobody needs it.
            Event::Report(report) => drop(self.reports.send(report)),
            Event::Gone => {
                self.is_gone = true;
                self.reports = mpsc::unbounded_channel().0;
                self.staged = mpsc::unbounded_channel().0;
                self.input.credit.close();
            }
            Event::Output(lane, bytes) => {
                let Some(outlet) = self.outlet(lane) else {
                    return Err(Violation);
                };
                let cost = cost(bytes.len()) as u64;
                let used = outlet.shared.used.fetch_add(cost, Ordering::AcqRel);
                if used + cost > OUTPUT_WINDOW as u64 {
                    return Err(Violation);
                }
                if let Some(pieces) = &outlet.pieces {
                    // A reader that is gone has said so.
                    let _ = pieces.send(bytes);
                }
            }
            Event::Count(lane, total) => {
                if let Some(outlet) = self.outlet(lane) {
                    outlet.shared.total.store(total, Ordering::Release);
                }
            }
            Event::End(lane, total) => {
                if let Some(outlet) = self.outlet(lane) {
                    outlet.shared.total.store(total, Ordering::Release);
                    outlet.shared.is_at_end.store(true, Ordering::Release);
                    outlet.pieces = None;
                }
            }
            Event::Taken(bytes) => {
                let sent = self.input.sent.load(Ordering::Acquire);
                if bytes > sent {
                    return Err(Violation);
                }
                self.input.sent.fetch_sub(bytes, Ordering::AcqRel);
                let bytes = usize::try_from(bytes).map_err(|_| Violation)?;
                self.input.credit.add_permits(bytes);
            }
            Event::Staged(inode) => drop(self.staged.send(inode)),
            Event::InputClosed => self.input.credit.close(),
        }
        Ok(())
    }

    fn outlet(&mut self, lane: Lane) -> Option<&mut Outlet> {
        self.lanes.get_mut(lane as usize)
    }

    /// Whether nothing more can come that anybody wants.
    pub(super) fn is_over(&self) -> bool {
        self.is_gone && self.lanes.iter().all(|lane| lane.pieces.is_none())
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.input.credit.close();
    }
}

/// A command that the relay was asked to start.
#[derive(Debug)]
pub(super) struct Spawned {
    /// At its end when nothing of the command is left.
    pub(super) reports: mpsc::UnboundedReceiver<Report>,
    /// What the relay says of files that were brought or offered for it.
    pub(super) staged: mpsc::UnboundedReceiver<u64>,
    pub(super) output: LaneReader,
    pub(super) errors: LaneReader,
    pub(super) input: Option<InputWriter>,
    pub(super) command: CommandId,
}

/// What is said about a command.
#[derive(Clone, Debug)]
pub(super) struct CommandId {
    pub(super) stream: Arc<Stream>,
    pub(super) id: u32,
}

impl CommandId {
    pub(super) fn kill(&self) {
        self.stream.say(Request::Kill { id: self.id });
    }

    pub(super) fn terminate(&self) {
        self.stream.say(Request::Terminate { id: self.id });
    }

    pub(super) fn signal(&self, signal: i32) {
        self.stream.say(Request::Signal {
            id: self.id,
            signal,
        });
    }

    pub(super) fn resize(&self, rows: u16, columns: u16) {
        self.stream.say(Request::Resize {
            id: self.id,
            rows,
            columns,
        });
    }

    /// Asks for what of it is running: for each process its id, a space, its command line and a NUL.
    pub(super) async fn list(&self) -> Vec<u8> {
        let (sender, pieces) = mpsc::unbounded_channel();
        let lane = Lane::Processes;
        let shared = Arc::new(Shared::default());
        let mut reader = {
            let mut inboxes = self.stream.inboxes();
            let Some(outlet) = inboxes.get_mut(&self.id).and_then(|it| it.outlet(lane)) else {
                return Vec::new();
            };
            outlet.pieces = Some(sender);
            outlet.shared = Arc::clone(&shared);
            LaneReader {
                stream: Arc::clone(&self.stream),
                id: self.id,
                lane,
                pieces,
                taken: 0,
                shared,
            }
        };
        self.stream.say(Request::List { id: self.id });
        let mut listed = Vec::new();
        while let Some(piece) = reader.next().await {
            listed.extend_from_slice(&piece);
        }
        listed
    }
}

/// An output channel of a command. Dropped, what still comes is thrown away.
#[derive(Debug)]
pub(super) struct LaneReader {
    stream: Arc<Stream>,
    id: u32,
    lane: Lane,
    pieces: mpsc::UnboundedReceiver<Bytes>,
    /// What was read and not granted again.
    taken: u64,
    shared: Arc<Shared>,
}

impl LaneReader {
    /// What comes next; `None` at the end. Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<Bytes> {
        let piece = self.pieces.recv().await?;
        self.taken += cost(piece.len()) as u64;
        if self.taken >= OUTPUT_WINDOW as u64 / 2 {
            let credit = self.taken;
            self.taken = 0;
            self.shared.used.fetch_sub(credit, Ordering::AcqRel);
            let (id, lane) = (self.id, self.lane);
            self.stream.say(Request::Grant { id, lane, credit });
        }
        Some(piece)
    }

    /// What is known of it, also while somebody else reads it.
    pub(super) fn total(&self) -> LaneTotal {
        LaneTotal(Arc::clone(&self.shared))
    }
}

/// How much was written to a channel.
#[derive(Clone, Debug)]
pub(super) struct LaneTotal(Arc<Shared>);

impl LaneTotal {
    /// Bytes, as far as that was told: none before the command has ended.
    pub(super) fn bytes(&self) -> u64 {
        self.0.total.load(Ordering::Acquire)
    }
}

impl Drop for LaneReader {
    fn drop(&mut self) {
        if self.shared.is_at_end.load(Ordering::Acquire) {
            return;
        }
        let mut inboxes = self.stream.inboxes();
        if let Some(inbox) = inboxes.get_mut(&self.id) {
            if let Some(outlet) = inbox.outlet(self.lane) {
                outlet.pieces = None;
            }
            if inbox.is_over() {
                inboxes.remove(&self.id);
            }
            let (id, lane) = (self.id, self.lane);
            self.stream.say(Request::Discard { id, lane });
        }
    }
}

/// A command's input. Dropped, it is at its end.
#[derive(Debug)]
pub(super) struct InputWriter {
    stream: Arc<Stream>,
    id: u32,
    input: Arc<Input>,
}

impl InputWriter {
    /// Sends all of it, at the pace the command reads.
    ///
    /// # Errors
    /// [`SandboxErrorKind::Closed`] where nobody reads any more.
    pub(super) async fn write(&mut self, mut data: Bytes) -> Result<(), SandboxError> {
        while !data.is_empty() {
            let piece = data.split_to(data.len().min(MOST_PAYLOAD));
            let length = u32::try_from(piece.len()).unwrap_or(u32::MAX);
            match self.input.credit.acquire_many(length).await {
                Ok(permit) => permit.forget(),
                Err(_) => {
                    self.stream.check()?;
                    let message = "the command no longer reads its input";
                    return Err(SandboxError::new(SandboxErrorKind::Closed, message));
                }
            }
            let length = u64::from(length);
            self.input.sent.fetch_add(length, Ordering::AcqRel);
            let id = self.id;
            self.stream.carry(Request::Input { id, length }, piece);
        }
        Ok(())
    }
}

impl Drop for InputWriter {
    fn drop(&mut self) {
        let request = Request::CloseInput { id: self.id };
        self.stream.carry(request, Bytes::new());
    }
}
