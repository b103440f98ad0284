//! Output that is kept in a file inside the sandbox, because there is more than a reader wants.

use std::fs::File;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use cantle_core::sandbox::{Spill, SpillFile};
use tokio::task::{JoinHandle, spawn_blocking};

use crate::sandbox::Shared;

/// Bytes that are written at once: a trip off the runtime costs more than the write of a few.
const BATCH_BYTES: u64 = 256 * 1024;

/// The file for one channel of one command: made once there is something to put in it.
#[derive(Debug)]
pub(super) struct SpillPlace {
    limits: Spill,
    shared: Arc<Shared>,
    /// In the sandbox's temporary directory.
    name: String,
    written_bytes: AtomicU64,
}

impl SpillPlace {
    pub(super) fn new(limits: Spill, shared: Arc<Shared>, name: String) -> Self {
        Self {
            limits,
            shared,
            name,
            written_bytes: AtomicU64::new(0),
        }
    }

    /// The file, where there is one.
    pub(super) fn spilled(&self) -> Option<SpillFile> {
        let written = self.written_bytes.load(Ordering::Relaxed);
        let path = self.shared.root.temporary_path(&self.name).ok()?;
        (written > 0).then(|| SpillFile::new(path, written))
    }

    /// Appends to the file. Where that fails (the disk is full, the directory gone) the file keeps
    /// what it has and gets no more: that is no reason to stop the command.
    fn write(&self, file: SpillState, pieces: &[Bytes]) -> SpillState {
        let file = match file {
            SpillState::NotMade => self.shared.root.create_temporary(&self.name).ok(),
            SpillState::Open(file) => Some(file),
            SpillState::Failed => None,
        };
        let Some(mut file) = file else {
            return SpillState::Failed;
        };
        for piece in pieces {
            if file.write_all(piece).is_err() {
                return SpillState::Failed;
            }
            let written = piece.len() as u64;
            self.written_bytes.fetch_add(written, Ordering::Relaxed);
        }
        SpillState::Open(file)
    }
}

#[derive(Debug)]
enum SpillState {
    NotMade,
    Open(File),
    Failed,
}

/// Writes one channel to its file once there is enough of it. Holds at most
/// [`Spill::after_bytes`] and two batches in memory.
#[derive(Debug)]
pub(super) struct Spiller {
    place: Arc<SpillPlace>,
    held: Vec<Bytes>,
    held_bytes: u64,
    /// Bytes of the channel so far.
    seen_bytes: u64,
    /// Of these, how many are held or in the file.
    kept_bytes: u64,
    file: SpillState,
    writing: Option<JoinHandle<SpillState>>,
}

impl Spiller {
    pub(super) fn new(place: Arc<SpillPlace>) -> Self {
        Self {
            place,
            held: Vec::new(),
            held_bytes: 0,
            seen_bytes: 0,
            kept_bytes: 0,
            file: SpillState::NotMade,
            writing: None,
        }
    }

    /// Takes the next bytes of the channel.
    pub(super) async fn push(&mut self, mut bytes: Bytes) {
        self.seen_bytes += bytes.len() as u64;
        let room = self.place.limits.cap_bytes.saturating_sub(self.kept_bytes);
        bytes.truncate(usize::try_from(room).unwrap_or(usize::MAX));
        if bytes.is_empty() {
            return;
        }
        self.kept_bytes += bytes.len() as u64;
        self.held_bytes += bytes.len() as u64;
        self.held.push(bytes);
        if self.is_due() && self.held_bytes >= BATCH_BYTES {
            self.flush().await;
        }
    }

    /// Writes what is held, where there was enough for a file.
    pub(super) async fn finish(&mut self) {
        if self.is_due() {
            self.flush().await;
        }
        self.settle().await;
    }

    fn is_due(&self) -> bool {
        self.seen_bytes > self.place.limits.after_bytes
    }

    /// Starts writing what is held, once what was held before is written.
    async fn flush(&mut self) {
        self.settle().await;
        let place = Arc::clone(&self.place);
        let file = std::mem::replace(&mut self.file, SpillState::Failed);
        let pieces = std::mem::take(&mut self.held);
        self.held_bytes = 0;
        self.writing = Some(spawn_blocking(move || place.write(file, &pieces)));
    }

    async fn settle(&mut self) {
        if let Some(writing) = self.writing.take() {
            self.file = writing.await.unwrap_or(SpillState::Failed);
        }
    }
}
