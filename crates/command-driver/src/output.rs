//! Output of a command, from the transport to the reader.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use cantle_core::sandbox::{Channel, OutputChunk, SandboxError, Spill};
use futures_util::Stream;
use tokio::select;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::counters::ChannelCounters;
use crate::phase::{Phase, ended};
use crate::spill::SpillWriter;
use crate::transport::{OutputChannel as _, Transport};

/// Chunks between the pumps and the reader.
pub(crate) const CHUNKS_IN_FLIGHT: usize = 4;

/// After the end of a command, its background processes keep a channel open. The driver stops reading
/// when there was no output for this long …
const QUIET_PERIOD: Duration = Duration::from_millis(100);
/// … and after this long in any case.
const DRAIN_PERIOD: Duration = Duration::from_millis(500);
/// How long to wait for the next piece of output that is certain to come. A background process that reads the
/// command's output from its pipe can prevent it.
const OWED_PERIOD: Duration = Duration::from_secs(10);

pub(crate) type ChunkSender = mpsc::Sender<Result<OutputChunk, SandboxError>>;

/// Moves the output of one channel to its reader and its spill file.
pub(crate) struct ChannelPump<T: Transport> {
    transport: Arc<T>,
    output: T::Output,
    spill: Option<SpillWriter<T>>,
    counters: Arc<ChannelCounters>,
    limit_bytes: u64,
    limit_exceeded: CancellationToken,
}

impl<T: Transport> ChannelPump<T> {
    pub(crate) fn new(
        transport: Arc<T>,
        channel: Channel,
        output: T::Output,
        spill: Option<Spill>,
        (limit_bytes, limit_exceeded): (u64, CancellationToken),
    ) -> Self {
        let spill = spill.zip(transport.spill_path(channel));
        let file = spill.as_ref();
        let file = file.map(|(limits, path)| (path.clone(), limits.after_bytes));
        let counters = Arc::new(ChannelCounters::new(channel, file));
        Self {
            spill: spill.map(|(limits, _)| {
                SpillWriter::new(limits, Arc::clone(&transport), Arc::clone(&counters))
            }),
            transport,
            output,
            counters,
            limit_bytes,
            limit_exceeded,
        }
    }

    pub(crate) fn counters(&self) -> Arc<ChannelCounters> {
        Arc::clone(&self.counters)
    }

    /// Reads until the channel ends, or until it is drained after the end of the command. Returns the
    /// channel if it has not ended.
    pub(crate) async fn run(
        mut self,
        chunks: ChunkSender,
        mut phase: watch::Receiver<Phase>,
    ) -> Option<T::Output> {
        let mut chunks = Some(chunks);
        let mut drain = None;
        let has_ended = loop {
            let next = match &drain {
                None => select! {
                    biased;
                    next = self.output.next() => next,
                    () = ended(&mut phase) => {
                        drain = Some(Drain::new(self.written_bytes()));
                        continue;
                    }
                },
                Some(drain) => match self.patience(drain) {
                    // A background process may write without a pause.
                    Duration::ZERO => break false,
                    patience => match timeout(patience, self.output.next()).await {
                        Ok(next) => next,
                        Err(_) => break false,
                    },
                },
            };
            let mut bytes = match next {
                None => break true,
                Some(Err(error)) => {
                    if let Some(chunks) = chunks {
                        // Without a reader, the error has no recipient.
                        let _ = chunks.send(Err(error)).await;
                    }
                    break true;
                }
                Some(Ok(bytes)) => bytes,
            };
            let excess = self
                .counters
                .add_read(&bytes)
                .saturating_sub(self.limit_bytes);
            if excess > 0 {
                self.limit_exceeded.cancel();
                let excess = usize::try_from(excess).unwrap_or(usize::MAX);
                bytes.truncate(bytes.len().saturating_sub(excess));
                if bytes.is_empty() {
                    continue;
                }
            }
            if let Some(spill) = &mut self.spill {
                spill.push(bytes.clone()).await;
            }
            if let Some(sender) = &chunks {
                let channel = self.counters.channel;
                let sent = sender.send(Ok(OutputChunk { channel, bytes })).await;
                if sent.is_err() {
                    chunks = None;
                }
            }
        };
        if let Some(spill) = self.spill {
            spill.finish().await;
            self.counters.set_complete();
        }
        (!has_ended).then_some(self.output)
    }

    fn written_bytes(&self) -> u64 {
        self.counters.written_bytes(&*self.transport)
    }

    /// How long to wait for the next output after the end of the command.
    fn patience(&self, drain: &Drain) -> Duration {
        if T::CHANNELS_END || self.is_owed(drain) {
            OWED_PERIOD
        } else {
            drain.patience()
        }
    }

    /// Whether output is still to come that was written before the command ended. The reader of a
    /// pipe can't be certain of that: the command may have read its own output.
    fn is_owed(&self, drain: &Drain) -> bool {
        self.counters.read_bytes() < drain.target_bytes.min(self.written_bytes())
    }
}

/// The period after the end of a command in which output is still delivered.
struct Drain {
    /// Bytes that were written to the channel before the command ended.
    target_bytes: u64,
    deadline: Instant,
}

impl Drain {
    fn new(target_bytes: u64) -> Self {
        Self {
            target_bytes,
            deadline: Instant::now() + DRAIN_PERIOD,
        }
    }

    fn patience(&self) -> Duration {
        QUIET_PERIOD.min(self.deadline.saturating_duration_since(Instant::now()))
    }
}

/// The reader's end of both channels.
#[derive(Debug)]
pub(crate) struct DrivenOutput {
    pub(crate) chunks: mpsc::Receiver<Result<OutputChunk, SandboxError>>,
    /// Keeps the task alive that delivers the rest of the output.
    pub(crate) _task: Arc<AbortOnDropHandle<()>>,
}

impl Stream for DrivenOutput {
    type Item = Result<OutputChunk, SandboxError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.chunks.poll_recv(cx)
    }
}
