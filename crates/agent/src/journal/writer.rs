//! Writing a journal.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::commit_queue::{Commit, CommitQueue};
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

/// An error of writing a journal.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the journal {} can't be written: {message}", path.display())]
pub(crate) struct JournalError {
    path: PathBuf,
    message: String,
}

impl From<JournalError> for RunError {
    fn from(error: JournalError) -> Self {
        Self::journal(&error)
    }
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
    pub(crate) fn record(&self, fact: &Fact) -> Result<(), JournalError> {
        self.append(&Entry::Fact {
            fact: Cow::Borrowed(fact),
        })
    }

    /// Appends the end of the run.
    pub(crate) fn end(&self, end: End) -> Result<(), JournalError> {
        self.append(&Entry::End(end))
    }

    fn append(&self, entry: &Entry<'_>) -> Result<(), JournalError> {
        let line = Line::new(entry).map_err(|error| self.file.error(error.to_string()))?;
        self.file.state().waiting.push(line);
        Ok(())
    }

    /// Writes the waiting entries, and returns when they are on disk.
    pub(crate) async fn commit(&self) -> Result<(), JournalError> {
        let bytes = self.file.waiting_bytes()?;
        if bytes == 0 {
            return Ok(());
        }
        let commit: Arc<dyn Commit> = Arc::<JournalFile>::clone(&self.file);
        let committed = self.queue.commit(commit, bytes).await;
        let stopped = |_| Err("the program is ending".to_owned());
        committed
            .unwrap_or_else(stopped)
            .map_err(|message| self.file.error(message))
    }
}

impl JournalFile {
    fn state(&self) -> MutexGuard<'_, WriterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn error(&self, message: String) -> JournalError {
        JournalError {
            path: self.path.clone(),
            message,
        }
    }

    /// Approximate size of the waiting entries.
    fn waiting_bytes(&self) -> Result<usize, JournalError> {
        let state = self.state();
        match &state.error {
            Some(message) => Err(self.error(message.clone())),
            None => Ok(state.waiting.iter().map(Line::len).sum()),
        }
    }

    fn write_batch(&self, batch: u64, waiting: Vec<Line>) -> io::Result<()> {
        let mut following = waiting.len();
        let mut lines = Vec::new();
        for line in waiting {
            following -= 1;
            let mut line = line.finish(&self.media, Seal { batch, following })?;
            if lines.is_empty() {
                lines = line;
            } else {
                lines.append(&mut line);
            }
        }
        (&self.file).write_all(&lines)?;
        self.file.sync_data()
    }
}

impl Commit for JournalFile {
    /// Holds the lock of the state, so that batches don't interleave.
    fn write(&self) -> Result<(), String> {
        let mut state = self.state();
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
