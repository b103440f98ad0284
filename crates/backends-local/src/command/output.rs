//! A command's output on its way from the pipe to the reader.
//!
//! The pipe is always emptied by the command's own task: what nobody wants is counted and thrown
//! away, so that a command never waits for a reader that doesn't exist. A reader that exists sets
//! the pace, through a short channel.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use cantle_core::sandbox::{Channel, ChannelReport, OutputChunk, SandboxError};
use futures_core::Stream;
use tokio::select;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::source::Source;
use super::spill::{SpillPlace, Spiller};

/// Pieces of output between the pipe and the reader.
pub(super) const PIECES_IN_FLIGHT: usize = 4;

/// Most commands write little: the first piece is small, and pieces grow as long as they are full.
const SMALLEST_PIECE: usize = 8 * 1024;
const LARGEST_PIECE: usize = 256 * 1024;

/// What a pipe holds unless it is enlarged, less some slack.
const FULL_PIPE: usize = 60 * 1024;
/// What a pipe is enlarged to once it was full. Not before: an ordinary user may have only so
/// much memory in large pipes (`fs.pipe-user-pages-soft`), and then gets tiny ones.
const LARGE_PIPE: usize = 256 * 1024;

/// After the command's end, output by processes that it left ends when nothing came for this long …
const QUIET: Duration = Duration::from_millis(100);
/// … or after this long in any case.
const DRAIN: Duration = Duration::from_millis(500);

type Piece = Result<OutputChunk, SandboxError>;

/// Where one channel of a command comes out.
#[derive(Debug)]
pub(super) struct Outlet {
    channel: Channel,
    source: Source,
    read_bytes: AtomicU64,
    spill: Option<Arc<SpillPlace>>,
    allowance: Allowance,
}

/// How much a channel may carry.
#[derive(Debug)]
pub(super) struct Allowance {
    pub(super) bytes: u64,
    /// Cancelled when there is more.
    pub(super) exceeded: CancellationToken,
}

impl Outlet {
    /// What is read from `source`, and where it is kept.
    pub(super) fn new(
        channel: Channel,
        source: Source,
        spill: Option<SpillPlace>,
        allowance: Allowance,
    ) -> Self {
        Self {
            channel,
            source,
            read_bytes: AtomicU64::new(0),
            spill: spill.map(Arc::new),
            allowance,
        }
    }

    /// Empties the pipe until all writers have closed it, or soon after the command has `ended`.
    /// Returns whether it came to the pipe's end.
    pub(super) async fn pump(
        &self,
        reader: mpsc::Sender<Piece>,
        ended: &CancellationToken,
    ) -> bool {
        let mut reader = Some(reader);
        let mut spiller = self.spill.clone().map(Spiller::new);
        let mut buffer = BytesMut::new();
        let mut piece = SMALLEST_PIECE;
        let mut enlarged = false;
        let mut pace = Pace::Running;
        let closed = loop {
            if !pace.wait(self, ended).await {
                break false;
            }
            if buffer.capacity() < piece / 2 {
                buffer.reserve(piece);
            }
            let room = buffer.capacity();
            let count = match self.source.try_read(&mut buffer) {
                Ok(0) => break true,
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    pace.nothing_left();
                    continue;
                }
                Err(error) => {
                    if let Some(reader) = reader {
                        let error = SandboxError::io("failed to read the command's output", error);
                        // Where nobody listens, nobody misses it.
                        let _ = reader.send(Err(error)).await;
                    }
                    break true;
                }
            };
            let before = self.read_bytes.fetch_add(count as u64, Ordering::Relaxed);
            if before + count as u64 > self.allowance.bytes {
                self.allowance.exceeded.cancel();
            }
            pace.read(count);
            if count == room {
                piece = (piece * 4).min(LARGEST_PIECE);
            }
            if count >= FULL_PIPE && !enlarged {
                enlarged = true;
                self.source.enlarge(LARGE_PIPE);
            }
            if reader.is_none() && spiller.is_none() {
                buffer.clear();
                continue;
            }
            let bytes = buffer.split().freeze();
            if let Some(spiller) = &mut spiller {
                spiller.push(bytes.clone()).await;
            }
            if let Some(sender) = &reader {
                let channel = self.channel;
                if sender
                    .send(Ok(OutputChunk { channel, bytes }))
                    .await
                    .is_err()
                {
                    reader = None;
                }
            }
        };
        if let Some(mut spiller) = spiller {
            spiller.finish().await;
        }
        closed
    }

    /// What became of the channel so far.
    pub(super) fn report(&self) -> ChannelReport {
        let read = self.read_bytes.load(Ordering::Relaxed);
        let spilled = self.spill.as_deref().and_then(SpillPlace::spilled);
        ChannelReport::new(read + self.source.unread_bytes(), spilled)
    }

    pub(super) fn into_source(self) -> Source {
        self.source
    }
}

/// How long to wait for more.
enum Pace {
    /// As long as the command runs.
    Running,
    /// The command has ended. What was in the pipe then is delivered however slow the reader is.
    Draining { until: Instant, owed: u64 },
}

impl Pace {
    /// Waits until the pipe may have something; `false` where it is time to stop.
    async fn wait(&mut self, outlet: &Outlet, ended: &CancellationToken) -> bool {
        if let Self::Running = self {
            select! {
                biased;
                _ = outlet.source.readable() => return true,
                () = ended.cancelled() => {
                    *self = Self::Draining {
                        until: Instant::now() + DRAIN,
                        owed: outlet.source.unread_bytes(),
                    };
                }
            }
        }
        match self {
            Self::Draining { until, owed: 0 } => {
                let left = until.saturating_duration_since(Instant::now());
                timeout(QUIET.min(left), outlet.source.readable())
                    .await
                    .is_ok()
            }
            Self::Draining { .. } | Self::Running => true,
        }
    }

    fn read(&mut self, count: usize) {
        if let Self::Draining { owed, .. } = self {
            *owed = owed.saturating_sub(count as u64);
        }
    }

    fn nothing_left(&mut self) {
        if let Self::Draining { owed, .. } = self {
            *owed = 0;
        }
    }
}

/// The reader's end of both channels.
#[derive(Debug)]
pub(super) struct LocalOutput {
    pub(super) pieces: mpsc::Receiver<Piece>,
    /// Output that was not read yet needs the task that reads the pipes.
    pub(super) _driver: Arc<AbortOnDropHandle<()>>,
}

impl Stream for LocalOutput {
    type Item = Piece;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Piece>> {
        self.pieces.poll_recv(cx)
    }
}

/// Reads a source until its end, for the sake of those who write to it.
pub(crate) async fn discard(source: Source) {
    let mut buffer = BytesMut::with_capacity(SMALLEST_PIECE);
    while source.readable().await.is_ok() {
        match source.try_read(&mut buffer) {
            Ok(0) => return,
            Ok(_) => buffer.clear(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}
