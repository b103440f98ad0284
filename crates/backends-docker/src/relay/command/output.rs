//! A command's output on its way from the stream to the reader.
//!
//! What comes is always taken by the command's own task: what nobody wants is counted and thrown
//! away, so that a command never waits for a reader that doesn't exist. A reader that exists sets
//! the pace, through a short channel and the credit behind it.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use cantle_core::sandbox::{Channel, ChannelReport, OutputChunk, SandboxError, SpillFile};
use futures_core::Stream;
use tokio::select;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::super::inbox::{LaneReader, LaneTotal};
use super::spill::Spiller;

/// Pieces of output between the stream and the reader.
pub(super) const PIECES_IN_FLIGHT: usize = 4;

/// After the command's end, output by processes that it left ends when nothing came for this long …
const QUIET: Duration = Duration::from_millis(100);
/// … or after this long in any case.
const DRAIN: Duration = Duration::from_millis(500);

type Piece = Result<OutputChunk, SandboxError>;

/// Where one channel of a command comes out.
#[derive(Debug)]
pub(super) struct Outlet {
    pub(super) channel: Channel,
    pub(super) lane: LaneReader,
    pub(super) spiller: Option<Spiller>,
    pub(super) allowance: Allowance,
    pub(super) counted: Arc<Counted>,
}

/// How much a channel may carry.
#[derive(Debug)]
pub(super) struct Allowance {
    pub(super) bytes: u64,
    /// Cancelled when there is more.
    pub(super) exceeded: CancellationToken,
}

/// What became of a channel so far.
#[derive(Debug)]
pub(super) struct Counted {
    written: LaneTotal,
    read_bytes: AtomicU64,
    spilled: OnceLock<SpillFile>,
}

impl Counted {
    pub(super) fn new(lane: &LaneReader) -> Self {
        Self {
            written: lane.total(),
            read_bytes: AtomicU64::new(0),
            spilled: OnceLock::new(),
        }
    }

    pub(super) fn report(&self) -> ChannelReport {
        ChannelReport::new(self.total_bytes(), self.spilled.get().cloned())
    }

    /// What was written, read or not.
    fn total_bytes(&self) -> u64 {
        self.read_bytes().max(self.written.bytes())
    }

    fn read_bytes(&self) -> u64 {
        self.read_bytes.load(Ordering::Acquire)
    }

    /// Counts what was read; how much that is by now.
    fn read(&self, bytes: &Bytes) -> u64 {
        let count = bytes.len() as u64;
        self.read_bytes.fetch_add(count, Ordering::AcqRel) + count
    }
}

impl Outlet {
    /// Takes what comes until all writers have closed the channel, or soon after the command has
    /// `ended`. What comes after that is thrown away where it comes from.
    pub(super) async fn pump(mut self, reader: mpsc::Sender<Piece>, ended: &CancellationToken) {
        let mut reader = Some(reader);
        let counted = Arc::clone(&self.counted);
        let mut pace = Pace::Running;
        while let Some(bytes) = pace.next(&mut self.lane, &counted, ended).await {
            if counted.read(&bytes) > self.allowance.bytes {
                self.allowance.exceeded.cancel();
            }
            if let Some(spiller) = &mut self.spiller {
                spiller.push(bytes.clone()).await;
            }
            if let Some(sender) = &reader {
                let channel = self.channel;
                let chunk = OutputChunk { channel, bytes };
                if sender.send(Ok(chunk)).await.is_err() {
                    reader = None;
                }
            }
        }
        if let Some(spiller) = &mut self.spiller
            && let Some(file) = spiller.finish().await
        {
            // Nobody else sets it.
            let _ = counted.spilled.set(file);
        }
    }
}

/// How long to wait for more.
enum Pace {
    /// As long as the command runs.
    Running,
    /// The command has ended. What was written by then is delivered however slow the reader is.
    Draining { until: Instant },
}

impl Pace {
    /// The next piece; `None` where it is time to stop.
    async fn next(
        &mut self,
        lane: &mut LaneReader,
        counted: &Counted,
        ended: &CancellationToken,
    ) -> Option<Bytes> {
        if let Self::Running = self {
            select! {
                biased;
                piece = lane.next() => return piece,
                () = ended.cancelled() => *self = Self::Draining { until: Instant::now() + DRAIN },
            }
        }
        match self {
            Self::Draining { until } if counted.read_bytes() >= counted.written.bytes() => {
                let left = until.saturating_duration_since(Instant::now());
                timeout(QUIET.min(left), lane.next()).await.ok().flatten()
            }
            Self::Draining { .. } | Self::Running => lane.next().await,
        }
    }
}

/// The reader's end of both channels.
#[derive(Debug)]
pub(super) struct RelayOutput {
    pub(super) pieces: mpsc::Receiver<Piece>,
    /// Output that was not read yet needs the task that takes it.
    pub(super) _driver: Arc<AbortOnDropHandle<()>>,
}

impl Stream for RelayOutput {
    type Item = Piece;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.pieces.poll_recv(cx)
    }
}
