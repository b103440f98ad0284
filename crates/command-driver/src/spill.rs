//! Spilling: writes output beyond a threshold to a file in the sandbox.

use std::sync::Arc;

use bytes::Bytes;
use cantle_core::sandbox::Spill;
use futures_util::stream;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use crate::counters::ChannelCounters;
use crate::transport::Transport;

/// Chunks between a channel and its file.
const CHUNKS_IN_FLIGHT: usize = 4;

/// Writes one channel to its spill file once it has carried [`Spill::after_bytes`]. Holds at most that
/// much and a few chunks in memory. A file that can't be written does not stop the command.
pub(crate) struct SpillWriter<T> {
    limits: Spill,
    transport: Arc<T>,
    counters: Arc<ChannelCounters>,
    /// Bytes of the channel so far.
    seen_bytes: u64,
    /// Bytes of the channel that are held or were sent to the file.
    kept_bytes: u64,
    held: Vec<Bytes>,
    file: Option<FileTask>,
}

/// The task that writes the file.
struct FileTask {
    chunks: mpsc::Sender<Bytes>,
    task: AbortOnDropHandle<()>,
}

impl<T: Transport> SpillWriter<T> {
    pub(crate) fn new(limits: Spill, transport: Arc<T>, counters: Arc<ChannelCounters>) -> Self {
        Self {
            limits,
            transport,
            counters,
            seen_bytes: 0,
            kept_bytes: 0,
            held: Vec::new(),
            file: None,
        }
    }

    /// Takes the next bytes of the channel.
    pub(crate) async fn push(&mut self, mut bytes: Bytes) {
        self.seen_bytes += bytes.len() as u64;
        let room = self.limits.cap_bytes.saturating_sub(self.kept_bytes);
        bytes.truncate(usize::try_from(room).unwrap_or(usize::MAX));
        if !bytes.is_empty() {
            self.kept_bytes += bytes.len() as u64;
            self.held.push(bytes);
        }
        if self.seen_bytes <= self.limits.after_bytes || self.held.is_empty() {
            return;
        }
        let held = std::mem::take(&mut self.held);
        let file = self.file.get_or_insert_with(|| {
            FileTask::spawn(Arc::clone(&self.transport), Arc::clone(&self.counters))
        });
        for bytes in held {
            // Fails if the file can't be written.
            let _ = file.chunks.send(bytes).await;
        }
    }

    /// Waits until the file is complete.
    pub(crate) async fn finish(self) {
        if let Some(FileTask { chunks, task }) = self.file {
            drop(chunks);
            // A panic would have been reported; the file is then incomplete.
            let _ = task.await;
        }
    }
}

impl FileTask {
    fn spawn<T: Transport>(transport: Arc<T>, counters: Arc<ChannelCounters>) -> Self {
        let (chunks, receiver) = mpsc::channel(CHUNKS_IN_FLIGHT);
        let data = stream::unfold(receiver, async |mut receiver: mpsc::Receiver<Bytes>| {
            let bytes = receiver.recv().await?;
            Some((Ok(bytes), receiver))
        });
        let task = tokio::spawn(async move {
            let written_bytes = &counters.spilled_bytes;
            transport
                .write_spill(counters.channel, Box::pin(data), written_bytes)
                .await;
        });
        Self {
            chunks,
            task: AbortOnDropHandle::new(task),
        }
    }
}
