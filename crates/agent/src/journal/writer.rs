//! Writing a journal.

use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::commit_queue::CommitQueue;
use super::format::{End, Entry, Line};
use super::lock::Lock;
use super::media::MediaFiles;
use super::seal::Seal;
use crate::error::RunError;
use crate::rules::Fact;

/// The file with the entries.
pub(super) const FILE_NAME: &str = "journal.jsonl";

/// Writes the journal of one run. Clones write to the same file.
#[derive(Clone, Debug)]
pub(crate) struct Journal {
    file: Arc<JournalFile>,
    queue: Arc<CommitQueue>,
}

#[derive(Debug)]
struct JournalFile {
    path: PathBuf,
    media: MediaFiles,
    file: File,
    /// Held while a process works on the run.
    _lock: Lock,
    state: Mutex<WriterState>,
}

#[derive(Debug)]
struct WriterState {
    /// Lines that are not written yet.
    waiting: Vec<Line>,
    /// The number of the next batch.
    batch: u64,
    /// The first error. Later lines are not written: they must not follow a damaged one.
    error: Option<String>,
}

impl Journal {
    /// The journal in a directory. `batch` is the number of its next batch.
    pub(super) fn new(
        directory: &Path,
        file: File,
        lock: Lock,
        batch: u64,
        queue: &Arc<CommitQueue>,
    ) -> Self {
        Self {
            file: Arc::new(JournalFile {
                path: directory.join(FILE_NAME),
                media: MediaFiles::new(directory),
                file,
                _lock: lock,
                state: Mutex::new(WriterState {
                    waiting: Vec::new(),
                    batch,
                    error: None,
                }),
            }),
            queue: Arc::clone(queue),
        }
    }

    /// Appends a fact. [`commit`](Self::commit) writes it.
    pub(crate) fn record(&self, fact: &Fact) -> Result<(), RunError> {
        self.append(&Entry::Fact {
            fact: Cow::Borrowed(fact),
        })
    }

    /// Appends the end of the run.
    pub(crate) fn end(&self, end: End) -> Result<(), RunError> {
        self.append(&Entry::End(end))
    }

    fn append(&self, entry: &Entry<'_>) -> Result<(), RunError> {
        let line = Line::new(entry).map_err(|error| self.file.error(&error))?;
        self.file.state.lock().waiting.push(line);
        Ok(())
    }

    /// Writes the waiting entries, and returns when they are on disk.
    pub(crate) async fn commit(&self) -> Result<(), RunError> {
        let bytes = self.file.waiting_bytes()?;
        if bytes == 0 {
            return Ok(());
        }
        // The job drops the journal, and with it the lock of the run, before its caller continues.
        let file = Arc::clone(&self.file);
        let committed = self.queue.commit(bytes, move || file.write()).await;
        let stopped = |_| Err("the program is ending".to_owned());
        let committed = committed.unwrap_or_else(stopped);
        committed.map_err(|message| self.file.error(&message))
    }
}

impl JournalFile {
    fn error(&self, cause: &dyn fmt::Display) -> RunError {
        let path = self.path.display();
        RunError::journal(&format_args!(
            "the journal {path} can't be written: {cause}"
        ))
    }

    /// Approximate size of the waiting entries.
    fn waiting_bytes(&self) -> Result<usize, RunError> {
        let state = self.state.lock();
        match &state.error {
            Some(message) => Err(self.error(message)),
            None => Ok(state.waiting.iter().map(Line::len).sum()),
        }
    }

    fn write_batch(&self, batch: u64, waiting: Vec<Line>) -> io::Result<()> {
        let mut following = waiting.len();
        let mut lines = Vec::new();
        for line in waiting {
            following -= 1;
            lines.append(&mut line.finish(&self.media, Seal { batch, following })?);
        }
        (&self.file).write_all(&lines)?;
        self.file.sync_data()
    }

    /// Writes everything that waits. Blocks, and holds the lock of the state, so that batches don't interleave.
    fn write(&self) -> Result<(), String> {
        let mut state = self.state.lock();
        if let Some(message) = &state.error {
            return Err(message.clone());
        }
        let waiting = std::mem::take(&mut state.waiting);
        let batch = state.batch;
        state.batch += 1;
        self.write_batch(batch, waiting).map_err(|error| {
            let message = error.to_string();
            state.error = Some(message.clone());
            message
        })
    }
}
