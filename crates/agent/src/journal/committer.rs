//! Commits of many runs at once: a few threads take what waits, as long as something does.
//!
//! A thread of its own for each commit costs more than the writing, and one alone would wait for the
//! disk where the file system could put many commits into one.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::{Inner, JournalError};

/// Threads that write at once.
const MAX_WORKERS: usize = 8;

/// Commits that a thread takes at once.
const BATCH: usize = 16;

/// Writes the journals of one store.
#[derive(Debug, Default)]
pub(super) struct Committer(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    commits: VecDeque<Commit>,
    workers: usize,
}

#[derive(Debug)]
struct Commit {
    journal: Arc<Inner>,
    done: oneshot::Sender<Result<(), JournalError>>,
}

impl Committer {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes what waits in a journal, and waits until it is on the disk.
    pub(super) async fn commit(self: &Arc<Self>, journal: &Arc<Inner>) -> Result<(), JournalError> {
        let (done, written) = oneshot::channel();
        let starts_worker = {
            let mut waiting = self.waiting();
            waiting.commits.push_back(Commit {
                journal: Arc::clone(journal),
                done,
            });
            let starts = waiting.workers < MAX_WORKERS;
            waiting.workers += usize::from(starts);
            starts
        };
        if starts_worker {
            let this = Arc::clone(self);
            tokio::task::spawn_blocking(move || this.work());
        }
        let stopped = |_| Err(journal.error_of("the program is ending".to_owned()));
        written.await.unwrap_or_else(stopped)
    }

    /// Writes until nothing waits. Blocks.
    fn work(&self) {
        loop {
            let mut waiting = self.waiting();
            let count = waiting.commits.len().min(BATCH);
            if count == 0 {
                waiting.workers -= 1;
                return;
            }
            let batch: Vec<Commit> = waiting.commits.drain(..count).collect();
            drop(waiting);
            for Commit { journal, done } in batch {
                let written = journal.write();
                // The lock of the run goes with it, and whoever waits may be about to take that.
                drop(journal);
                // Whoever waited may have been dropped; what was recorded is written all the same.
                let _ = done.send(written);
            }
        }
    }
}
