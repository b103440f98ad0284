//! The journal: the append-only record that a run can be resumed from.
//!
//! A run has a directory of its own in a [`RunStore`]. In it are `journal.jsonl`, one record per line,
//! and `media`, where images and sounds are kept once each, named by the SHA-256 of their bytes. The
//! first record is the [`Header`]; what follows are the facts that the loop was told, in order, and
//! how it ended. What a crash leaves of the last lines is no record ([`seal`]), and is cut off when the
//! run goes on.
//!
//! A fact is on the disk (`fdatasync`) before anything is done that follows from it: an answer
//! before its first tool runs, a call's start before the call. So after a kill at any moment the
//! journal knows of every effect, or that it may have happened.

mod committer;
mod ended;
mod glance;
mod identity;
mod media;
mod reading;
mod record;
mod seal;
mod store;

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use cantle_core::event::{Finish, RunStatus};

use self::committer::Committer;
pub(crate) use self::ended::Ended;
pub(crate) use self::identity::Identity;
use self::media::MediaFiles;
pub(crate) use self::media::hex;
pub(crate) use self::record::{Files, Header, VERSION};
use self::record::{Line, Record};
use self::seal::Seal;
use self::store::Lock;
pub use self::store::{KeptRun, KeptStatus, RunStore, StoreError, StoreErrorKind};
pub(crate) use self::store::{Left, Reopened, is_finished};
use crate::machine::Fact;

/// The file with the records.
const FILE_NAME: &str = "journal.jsonl";

/// Writes down one run. Clones write to the same file.
#[derive(Clone, Debug)]
pub(crate) struct Journal {
    inner: Arc<Inner>,
    committer: Arc<Committer>,
}

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    media: MediaFiles,
    file: File,
    /// Held for as long as somebody works on the run.
    _lock: Lock,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Lines that are not written yet.
    waiting: Vec<Line>,
    /// The number of the next batch.
    batch: u64,
    /// What could not be written once is not tried again: a later line must not follow half of one.
    broken: Option<String>,
}

/// A journal that can't be written.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the journal {} can't be written: {message}", path.display())]
pub(crate) struct JournalError {
    path: PathBuf,
    message: String,
}

impl Journal {
    /// The journal in a directory, whose next batch has this number.
    fn new(
        directory: &Path,
        file: File,
        lock: Lock,
        batch: u64,
        committer: &Arc<Committer>,
    ) -> Self {
        Self {
            inner: Arc::new(Inner {
                path: directory.join(FILE_NAME),
                media: MediaFiles::new(directory),
                file,
                _lock: lock,
                state: Mutex::new(State {
                    waiting: Vec::new(),
                    batch,
                    broken: None,
                }),
            }),
            committer: Arc::clone(committer),
        }
    }

    /// Puts a record behind the others; [`commit`](Self::commit) writes it.
    pub(crate) fn record(&self, fact: &Fact) -> Result<(), JournalError> {
        self.append(&Record::Fact {
            fact: Cow::Borrowed(fact),
        })
    }

    /// Notes how the run ended, for those who list runs.
    pub(crate) fn ended(
        &self,
        status: RunStatus,
        error: Option<String>,
        finish: Option<Finish>,
        files: Files,
    ) -> Result<(), JournalError> {
        self.append(&Record::Ended {
            status,
            error,
            finish,
            files,
        })
    }

    fn append(&self, record: &Record<'_>) -> Result<(), JournalError> {
        let inner = &*self.inner;
        let line = Line::new(record).map_err(|error| inner.error(&error))?;
        inner.lock().waiting.push(line);
        Ok(())
    }

    /// Writes what waits, and waits until it is on the disk.
    pub(crate) async fn commit(&self) -> Result<(), JournalError> {
        if self.inner.waiting_bytes()? == 0 {
            return Ok(());
        }
        self.committer.commit(&self.inner).await
    }
}

impl Inner {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn error(&self, error: &io::Error) -> JournalError {
        self.error_of(error.to_string())
    }

    fn error_of(&self, message: String) -> JournalError {
        JournalError {
            path: self.path.clone(),
            message,
        }
    }

    /// How much waits to be written, about.
    fn waiting_bytes(&self) -> Result<usize, JournalError> {
        let state = self.lock();
        match &state.broken {
            Some(message) => Err(self.error_of(message.clone())),
            None => Ok(state.waiting.iter().map(Line::len).sum()),
        }
    }

    /// Blocks. One at a time: the lock is held while the disk works.
    fn write(&self) -> Result<(), JournalError> {
        let mut state = self.lock();
        if let Some(message) = &state.broken {
            return Err(self.error_of(message.clone()));
        }
        let waiting = std::mem::take(&mut state.waiting);
        let batch = state.batch;
        state.batch += 1;
        let written = || -> io::Result<()> {
            let mut left = waiting.len();
            let mut lines = Vec::new();
            for line in waiting {
                left -= 1;
                let mut line = line.finish(&self.media, Seal { batch, left })?;
                if lines.is_empty() {
                    lines = line;
                } else {
                    lines.append(&mut line);
                }
            }
            (&self.file).write_all(&lines)?;
            self.file.sync_data()
        };
        written().map_err(|error| {
            state.broken = Some(error.to_string());
            self.error(&error)
        })
    }
}
