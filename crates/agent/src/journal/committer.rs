//! What many runs write at once: a few threads take what waits, as long as something does.
//!
//! A thread of its own for each commit costs more than the writing, and one alone would wait for the
//! disk where the file system could put many commits into one. Where commits are over in less time than
//! a thread takes to wake up, because the file system is in memory or the disk's cache keeps what it is
//! given, short ones are written by whoever wants them.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::{Inner, JournalError};

/// Threads that write at once.
const MAX_WORKERS: usize = 8;

/// Pieces of work that a thread takes at once.
const BATCH: usize = 16;

/// A commit that takes less than this is over before another thread could help.
const WORTH_A_THREAD: Duration = Duration::from_micros(100);

/// A commit that takes less than this is over before a thread would have begun with it.
const AT_ONCE: Duration = Duration::from_micros(40);

/// So many commits in a row that were over at once let the next one be written in place.
const ENOUGH_AT_ONCE: usize = 8;

/// The longest commit that is written in place, in bytes.
const SHORT: usize = 64 * 1024;

/// Writes the journals of one store.
#[derive(Debug, Default)]
pub(super) struct Committer(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    work: VecDeque<Work>,
    workers: usize,
    /// Whether a commit takes long on this disk: as the last batch had it.
    slow: bool,
    /// The latest commits that were over at once.
    at_once: usize,
}

enum Work {
    Commit {
        journal: Arc<Inner>,
        done: oneshot::Sender<Result<(), JournalError>>,
    },
    Other(Box<dyn FnOnce() + Send>),
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Commit { .. } => "Commit",
            Self::Other(_) => "Other",
        })
    }
}

impl Committer {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes what waits in a journal, and waits until it is on the disk.
    pub(super) async fn commit(self: &Arc<Self>, journal: &Arc<Inner>) -> Result<(), JournalError> {
        if self.waiting().at_once >= ENOUGH_AT_ONCE && journal.waiting_bytes()? <= SHORT {
            let started = Instant::now();
            let written = journal.write();
            self.note(started.elapsed(), 1);
            return written;
        }
        let (done, written) = oneshot::channel();
        self.enqueue(Work::Commit {
            journal: Arc::clone(journal),
            done,
        });
        let stopped = |_| Err(journal.error_of("the program is ending".to_owned()));
        written.await.unwrap_or_else(stopped)
    }

    /// Does what blocks, when its turn comes; `None` where the program is ending.
    pub(super) async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let (done, came) = oneshot::channel();
        self.enqueue(Work::Other(Box::new(move || {
            // Whoever waited may have been dropped.
            let _ = done.send(work());
        })));
        came.await.ok()
    }

    fn enqueue(self: &Arc<Self>, work: Work) {
        let starts_worker = {
            let mut waiting = self.waiting();
            waiting.work.push_back(work);
            let wanted = if waiting.slow { MAX_WORKERS } else { 1 };
            let starts = waiting.workers < wanted;
            waiting.workers += usize::from(starts);
            starts
        };
        if starts_worker {
            let this = Arc::clone(self);
            tokio::task::spawn_blocking(move || this.work());
        }
    }

    /// Works until nothing waits. Blocks.
    fn work(&self) {
        loop {
            let mut waiting = self.waiting();
            let count = waiting.work.len().min(BATCH);
            if count == 0 {
                waiting.workers -= 1;
                return;
            }
            let batch: Vec<Work> = waiting.work.drain(..count).collect();
            drop(waiting);
            let started = Instant::now();
            for work in batch {
                match work {
                    Work::Commit { journal, done } => {
                        let written = journal.write();
                        // The lock of the run goes with it, and whoever waits may be about to take
                        // that.
                        drop(journal);
                        // Whoever waited may have been dropped; what was recorded is written all
                        // the same.
                        let _ = done.send(written);
                    }
                    Work::Other(work) => work(),
                }
            }
            self.note(started.elapsed(), count);
        }
    }

    /// Notes what the latest commits took.
    pub(super) fn note(&self, spent: Duration, commits: usize) {
        let each = spent / u32::try_from(commits).unwrap_or(u32::MAX);
        let mut waiting = self.waiting();
        waiting.slow = each > WORTH_A_THREAD;
        waiting.at_once = if each < AT_ONCE {
            waiting.at_once.saturating_add(commits)
        } else {
            0
        };
    }
}
