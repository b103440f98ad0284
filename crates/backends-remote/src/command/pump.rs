//! Reads a command's event stream: its output, and the marks that its script writes into it.
//!
//! A stream that breaks does not end a command while the sandbox lives: the pump connects again. What
//! was written in between is lost, which the command's exit reports.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use cantle_core::sandbox::{
    BackgroundProcess, Channel, ExitStatus, SandboxError, SandboxErrorKind,
};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout};

use super::marks::{Mark, MarkParser, MarkedPiece};
use crate::envd::{EventStream, Fault, ProcessEvent, STREAM_TIMEOUT};
use crate::shared::ActiveSandbox;

/// Time limit for the end of the stream after the last output: a connection read to its end is reused.
const STREAM_END_TIMEOUT: Duration = Duration::from_millis(100);

/// Maximum connections in a row that break immediately.
const MAX_IMMEDIATE_BREAKS: u32 = 5;
/// Pause before the second reconnect.
const RECONNECT_PAUSE: Duration = Duration::from_millis(100);

/// The state of a command as observed on its stream, shared with its transport and its input.
#[derive(Debug, Default)]
pub(super) struct Progress {
    pub(super) state: watch::Sender<CommandState>,
    received_bytes: [AtomicU64; 2],
}

#[derive(Clone, Debug, Default)]
pub(super) struct CommandState {
    /// The process that the service started, to which it sends input and signals.
    pub(super) outer: Option<u32>,
    /// The first process of the command itself.
    pub(super) leader: Option<u32>,
    pub(super) end: Option<End>,
    /// Whether some of its output may have been lost.
    pub(super) may_lack_output: bool,
}

/// The end of a command, as observed on its stream.
#[derive(Clone, Debug)]
pub(super) enum End {
    /// The script reported it.
    Reported {
        status: ExitStatus,
        duration: Option<Duration>,
        left: Vec<BackgroundProcess>,
    },
    /// It was not started for this reason.
    Refused(String),
    /// The process that the service started has ended.
    Ended(ExitStatus),
    /// The stream broke.
    Lost(Arc<Fault>),
    /// Part of its input may not have reached it.
    InputLost(Arc<Fault>),
}

impl Progress {
    fn counter(&self, channel: Channel) -> &AtomicU64 {
        let [stdout, stderr] = &self.received_bytes;
        match channel {
            Channel::Stdout => stdout,
            Channel::Stderr => stderr,
        }
    }

    /// Number of bytes that were received on a channel.
    pub(super) fn received_bytes(&self, channel: Channel) -> u64 {
        self.counter(channel).load(Ordering::Acquire)
    }

    fn set(&self, change: impl FnOnce(&mut CommandState)) {
        self.state.send_modify(change);
    }

    /// The first end counts.
    pub(super) fn end(&self, end: End) {
        self.set(|state| {
            state.end.get_or_insert(end);
        });
    }

    pub(super) fn outer(&self) -> Option<u32> {
        self.state.borrow().outer
    }

    /// Waits until `look` returns a value of the state.
    pub(super) async fn wait_for<T>(&self, look: impl Fn(&CommandState) -> Option<T>) -> T {
        let mut state = self.state.subscribe();
        loop {
            if let Some(found) = look(&state.borrow_and_update()) {
                return found;
            }
            if state.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Waits until the command has reported its process id, or has ended.
    pub(super) async fn started(&self) -> CommandState {
        let has_started = |state: &CommandState| state.leader.is_some() || state.end.is_some();
        self.wait_for(|state| has_started(state).then(|| state.clone()))
            .await
    }

    pub(super) fn may_lack_output(&self) -> bool {
        self.state.borrow().may_lack_output
    }

    pub(super) async fn ended(&self) -> End {
        self.wait_for(|state| state.end.clone()).await
    }
}

/// Sends the output of one channel to the driver; dropped, the channel is at its end.
pub(super) type ChannelSender = mpsc::Sender<Result<Bytes, SandboxError>>;

/// Reads a command's stream.
pub(super) struct Pump<'p> {
    active: &'p ActiveSandbox,
    progress: &'p Progress,
    channels: [MarkedChannel; 2],
    /// Number of consecutive breaks, and the start of the current connection.
    breaks: u32,
    listens_since: Instant,
}

struct MarkedChannel {
    channel: Channel,
    marks: MarkParser,
    /// `None` after the command's last mark on this channel.
    sender: Option<ChannelSender>,
}

impl<'p> Pump<'p> {
    pub(super) fn new(
        active: &'p ActiveSandbox,
        progress: &'p Progress,
        token: &str,
        [stdout, stderr]: [ChannelSender; 2],
    ) -> Self {
        let channel = |channel, sender| MarkedChannel {
            channel,
            marks: MarkParser::new(token),
            sender: Some(sender),
        };
        Self {
            active,
            progress,
            channels: [
                channel(Channel::Stdout, stdout),
                channel(Channel::Stderr, stderr),
            ],
            breaks: 0,
            listens_since: Instant::now(),
        }
    }

    /// Reads until both channels are at their end, or the stream is.
    pub(super) async fn run(mut self, mut events: EventStream) {
        loop {
            match events.next().await {
                Ok(Some(ProcessEvent::Started(pid))) => {
                    self.progress.set(|state| state.outer = Some(pid));
                }
                Ok(Some(ProcessEvent::Output(channel, bytes))) => {
                    self.take(channel, bytes).await;
                    if self.channels.iter().all(|it| it.sender.is_none()) {
                        // The rest is output of background processes, which is dropped.
                        let _ = timeout(STREAM_END_TIMEOUT, drain(&mut events)).await;
                        break;
                    }
                }
                Ok(Some(ProcessEvent::Ended(ended))) => {
                    self.flush().await;
                    self.progress.end(End::Ended(ended));
                }
                Ok(None) => break,
                Err(fault) => {
                    self.flush().await;
                    if let Some(again) = self.listen_again(&fault).await {
                        events = again;
                        continue;
                    }
                    self.report_lost_output(&fault).await;
                    self.progress.end(End::Lost(Arc::new(fault)));
                    break;
                }
            }
        }
    }

    /// Reports lost output to the reader, if the command's end is known and doesn't imply it.
    async fn report_lost_output(&mut self, fault: &Fault) {
        let is_reported = matches!(self.progress.state.borrow().end, Some(End::Reported { .. }));
        let sender = self.channels.iter().find_map(|it| it.sender.as_ref());
        if let (true, Some(sender)) = (is_reported, sender) {
            let message = format!("the rest of the command's output is lost: {fault}");
            let error = SandboxError::new(SandboxErrorKind::Io, message);
            // Without a reader, the error has no recipient.
            let _ = sender.send(Err(error)).await;
        }
    }

    /// Connects again to a stream whose connection was lost.
    async fn listen_again(&mut self, fault: &Fault) -> Option<EventStream> {
        let pid = {
            let state = self.progress.state.borrow();
            // A command that was not reported as started can't be identified.
            let is_known = state.leader.is_some() && state.end.is_none();
            state.outer.filter(|_| is_known && fault.is_unanswered())?
        };
        if self.listens_since.elapsed() >= STREAM_TIMEOUT {
            self.breaks = 0;
        }
        while self.breaks < MAX_IMMEDIATE_BREAKS {
            sleep(RECONNECT_PAUSE * self.breaks).await;
            self.breaks += 1;
            if self.active.check_gone(fault).await.is_some() {
                return None;
            }
            match self.active.envd.listen(pid).await {
                Ok(events) => {
                    tracing::debug!(pid, why = %fault, "listening again to a command");
                    self.listens_since = Instant::now();
                    self.progress.set(|state| state.may_lack_output = true);
                    return Some(events);
                }
                Err(fault) if fault.is_unanswered() => {}
                Err(_) => return None,
            }
        }
        None
    }

    async fn take(&mut self, channel: Channel, bytes: Bytes) {
        let at = usize::from(channel == Channel::Stderr);
        let Some(marked) = self.channels.get_mut(at) else {
            return;
        };
        if marked.sender.is_none() {
            return;
        }
        for piece in marked.marks.push(bytes) {
            match piece {
                MarkedPiece::Output(bytes) => marked.send(self.progress, bytes).await,
                MarkedPiece::Mark(Mark::Started(pid)) => {
                    self.progress.set(|state| state.leader = pid.parse().ok());
                }
                MarkedPiece::Mark(Mark::Refused(why)) => self.progress.end(End::Refused(why)),
                MarkedPiece::Mark(Mark::Ended(words)) => {
                    marked.sender = None;
                    if let Some(end) = parse_end(&words) {
                        self.progress.end(end);
                    }
                    return;
                }
            }
        }
    }

    async fn flush(&mut self) {
        for marked in &mut self.channels {
            if let Some(bytes) = marked.marks.finish() {
                marked.send(self.progress, bytes).await;
            }
        }
    }
}

impl MarkedChannel {
    async fn send(&self, progress: &Progress, bytes: Bytes) {
        let count = bytes.len() as u64;
        progress
            .counter(self.channel)
            .fetch_add(count, Ordering::AcqRel);
        if let Some(sender) = &self.sender {
            // The driver may have stopped reading.
            let _ = sender.send(Ok(bytes)).await;
        }
    }
}

async fn drain(events: &mut EventStream) {
    while let Ok(Some(_)) = events.next().await {}
}

/// Parses the script's last mark: the kind of end, its code or signal, its duration in
/// microseconds, and a line for each process that is left.
fn parse_end(words: &str) -> Option<End> {
    let mut lines = words.lines();
    let mut first = lines.next()?.split(' ');
    let kind = first.next()?;
    let number = first.next()?.parse().ok()?;
    let microseconds: u64 = first.next()?.parse().unwrap_or_default();
    Some(End::Reported {
        status: match kind {
            "signal" => ExitStatus::Signal(number),
            _ => ExitStatus::Code(number),
        },
        duration: (microseconds > 0).then(|| Duration::from_micros(microseconds)),
        left: lines.filter_map(BackgroundProcess::parse).collect(),
    })
}
