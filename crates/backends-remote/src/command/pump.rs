//! A command's output on its way to the reader, and what is learned from it.
//!
//! A stream that breaks is no end of a command where the sandbox lives: we listen again. What was written
//! in between nobody has, so that the command's exit says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use cantle_core::sandbox::{
    BackgroundProcess, Channel, ChannelReport, ExitStatus, OutputChunk, SandboxError,
    SandboxErrorKind,
};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::marks::{Mark, Marks, Piece};
use super::spill::Spiller;
use crate::envd::{Ended, Envd, EventStream, Fault, Happened, SILENCE};
use crate::sandbox::Shared;

/// After the last of a command's output, for the end of its stream: a connection that was read to the
/// end can be used again.
const END_OF_STREAM: Duration = Duration::from_millis(100);

/// How often in a row a stream may break as soon as it is there.
const BREAKS: u32 = 5;
/// Before we listen again for the second time.
const PAUSE: Duration = Duration::from_millis(100);

/// What is known of a command, for everyone who deals with it.
#[derive(Debug)]
pub(super) struct Progress {
    pub(super) state: watch::Sender<State>,
    written_bytes: [AtomicU64; 2],
    allowed_bytes: u64,
    /// Cancelled when a channel has carried more than it may.
    pub(super) too_much_output: CancellationToken,
}

#[derive(Clone, Debug, Default)]
pub(super) struct State {
    /// The process that was started, which input and signals of the protocol go to.
    pub(super) outer: Option<u32>,
    /// The command's own process.
    pub(super) leader: Option<u32>,
    pub(super) end: Option<End>,
    /// Whether some of its output may have been lost.
    pub(super) has_hole: bool,
}

/// How it ended, as far as the stream tells.
#[derive(Clone, Debug)]
pub(super) enum End {
    /// The script has told.
    Told {
        status: ExitStatus,
        duration: Option<Duration>,
        left: Vec<BackgroundProcess>,
    },
    /// It was not started, for this reason.
    Refused(String),
    /// The process that was started has ended.
    Ended(Ended),
    /// The stream has.
    Lost(Arc<Fault>),
}

impl Progress {
    pub(super) fn new(allowed_bytes: Option<u64>) -> Self {
        Self {
            state: watch::Sender::default(),
            written_bytes: [const { AtomicU64::new(0) }; 2],
            allowed_bytes: allowed_bytes.unwrap_or(u64::MAX),
            too_much_output: CancellationToken::new(),
        }
    }

    fn counter(&self, channel: Channel) -> &AtomicU64 {
        let [stdout, stderr] = &self.written_bytes;
        match channel {
            Channel::Stdout => stdout,
            Channel::Stderr => stderr,
        }
    }

    fn count(&self, channel: Channel, bytes: usize) {
        let bytes = bytes as u64;
        let before = self.counter(channel).fetch_add(bytes, Ordering::Relaxed);
        if before + bytes > self.allowed_bytes {
            self.too_much_output.cancel();
        }
    }

    pub(super) fn report(&self, channel: Channel, spiller: Option<&Spiller>) -> ChannelReport {
        let written = self.counter(channel).load(Ordering::Relaxed);
        ChannelReport::new(written, spiller.and_then(Spiller::spilled))
    }

    fn set(&self, change: impl FnOnce(&mut State)) {
        self.state.send_modify(change);
    }

    /// The first end counts.
    fn end(&self, end: End) {
        self.set(|state| {
            state.end.get_or_insert(end);
        });
    }

    pub(super) fn outer(&self) -> Option<u32> {
        self.state.borrow().outer
    }

    /// Waits until something of the state is there.
    pub(super) async fn wait_for<T>(&self, look: impl Fn(&State) -> Option<T>) -> T {
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

    pub(super) fn has_hole(&self) -> bool {
        self.state.borrow().has_hole
    }

    pub(super) async fn ended(&self) -> End {
        self.wait_for(|state| state.end.clone()).await
    }
}

/// Reads a command's stream.
pub(super) struct Pump<'p> {
    shared: &'p Shared,
    envd: &'p Envd,
    progress: &'p Progress,
    spillers: &'p [Option<Spiller>; 2],
    reader: Option<mpsc::Sender<Result<OutputChunk, SandboxError>>>,
    channels: [Outlet; 2],
    /// How often in a row the stream broke, and when it began.
    breaks: u32,
    listens_since: Instant,
}

struct Outlet {
    channel: Channel,
    marks: Marks,
    ended: bool,
}

impl<'p> Pump<'p> {
    pub(super) fn new(
        (shared, envd): (&'p Shared, &'p Envd),
        progress: &'p Progress,
        spillers: &'p [Option<Spiller>; 2],
        token: &str,
        reader: mpsc::Sender<Result<OutputChunk, SandboxError>>,
    ) -> Self {
        let outlet = |channel| Outlet {
            channel,
            marks: Marks::new(token),
            ended: false,
        };
        Self {
            shared,
            envd,
            progress,
            spillers,
            reader: Some(reader),
            channels: [outlet(Channel::Stdout), outlet(Channel::Stderr)],
            breaks: 0,
            listens_since: Instant::now(),
        }
    }

    /// Reads until both channels are at their end, or the stream is.
    pub(super) async fn run(mut self, mut events: EventStream) {
        loop {
            match events.next().await {
                Ok(Some(Happened::Started(pid))) => {
                    self.progress.set(|state| state.outer = Some(pid));
                }
                Ok(Some(Happened::Wrote(channel, bytes))) => {
                    self.take(channel, bytes).await;
                    if self.channels.iter().all(|outlet| outlet.ended) {
                        // What comes now is written by what the command left, for nobody.
                        let _ = timeout(END_OF_STREAM, drain(&mut events)).await;
                        break;
                    }
                }
                Ok(Some(Happened::Ended(ended))) => {
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
                    self.say_what_is_missing(&fault).await;
                    self.progress.end(End::Lost(Arc::new(fault)));
                    break;
                }
            }
        }
        for spiller in self.spillers.iter().flatten() {
            spiller.finish().await;
        }
    }

    /// Tells the reader of output that is lost, where the command's end, which is known, does not.
    async fn say_what_is_missing(&mut self, fault: &Fault) {
        let has_told = matches!(self.progress.state.borrow().end, Some(End::Told { .. }));
        if let (true, Some(reader)) = (has_told, self.reader.take()) {
            let message = format!("the rest of the command's output is lost: {fault}");
            let error = SandboxError::new(SandboxErrorKind::Io, message);
            // Where nobody reads, nobody misses it.
            let _ = reader.send(Err(error)).await;
        }
    }

    /// The rest of the stream, where only the connection was lost.
    async fn listen_again(&mut self, fault: &Fault) -> Option<EventStream> {
        let pid = {
            let state = self.progress.state.borrow();
            // Without its beginning, nobody knows what it is.
            let is_known = state.leader.is_some() && state.end.is_none();
            state.outer.filter(|_| is_known && fault.is_unanswered())?
        };
        if self.listens_since.elapsed() >= SILENCE {
            self.breaks = 0;
        }
        while self.breaks < BREAKS {
            sleep(PAUSE * self.breaks).await;
            self.breaks += 1;
            if self.shared.look_after(self.envd, fault).await.is_some() {
                return None;
            }
            match self.envd.listen(pid).await {
                Ok(events) => {
                    tracing::debug!(pid, why = %fault, "listening again to a command");
                    self.listens_since = Instant::now();
                    self.progress.set(|state| state.has_hole = true);
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
        let Some(outlet) = self.channels.get_mut(at) else {
            return;
        };
        if outlet.ended {
            return;
        }
        for piece in outlet.marks.push(bytes) {
            match piece {
                Piece::Output(bytes) => self.hand_on(channel, bytes).await,
                Piece::Mark(Mark::Started(pid)) => {
                    self.progress.set(|state| state.leader = pid.parse().ok());
                }
                Piece::Mark(Mark::Refused(why)) => self.progress.end(End::Refused(why)),
                Piece::Mark(Mark::Ended(words)) => {
                    if let Some(outlet) = self.channels.get_mut(at) {
                        outlet.ended = true;
                    }
                    if let Some(end) = told(&words) {
                        self.progress.end(end);
                    }
                    return;
                }
            }
        }
    }

    async fn flush(&mut self) {
        let mut held = Vec::new();
        for outlet in &mut self.channels {
            held.extend(outlet.marks.finish().map(|bytes| (outlet.channel, bytes)));
        }
        for (channel, bytes) in held {
            self.hand_on(channel, bytes).await;
        }
    }

    async fn hand_on(&mut self, channel: Channel, bytes: Bytes) {
        self.progress.count(channel, bytes.len());
        let at = usize::from(channel == Channel::Stderr);
        if let Some(Some(spiller)) = self.spillers.get(at) {
            spiller.push(bytes.clone()).await;
        }
        if let Some(reader) = &self.reader
            && reader
                .send(Ok(OutputChunk { channel, bytes }))
                .await
                .is_err()
        {
            self.reader = None;
        }
    }
}

async fn drain(events: &mut EventStream) {
    while let Ok(Some(_)) = events.next().await {}
}

/// What the script says at the end: how, which number, how many microseconds, and a line for each
/// process that is left.
fn told(words: &str) -> Option<End> {
    let mut lines = words.lines();
    let mut first = lines.next()?.split(' ');
    let how = first.next()?;
    let number = first.next()?.parse().ok()?;
    let microseconds: u64 = first.next()?.parse().unwrap_or_default();
    Some(End::Told {
        status: match how {
            "signal" => ExitStatus::Signal(number),
            _ => ExitStatus::Code(number),
        },
        duration: (microseconds > 0).then(|| Duration::from_micros(microseconds)),
        left: listed(lines),
    })
}

/// Processes, a line each.
pub(super) fn listed<'l>(lines: impl Iterator<Item = &'l str>) -> Vec<BackgroundProcess> {
    lines.filter_map(BackgroundProcess::listed).collect()
}
