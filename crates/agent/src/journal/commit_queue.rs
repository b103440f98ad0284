//! The queue of journal commits: a few threads write for many runs.
//!
//! A thread per commit costs more than the writing, and a single one would wait for the disk where
//! the file system could combine commits. Where a commit takes less time than a thread needs to wake
//! up, because the file system is in memory or the disk has a write cache, short commits are written
//! on the caller's thread.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::RecvError;

/// Maximum number of threads.
const MAX_THREADS: usize = 8;

/// Maximum number of jobs that a thread takes at once.
const MAX_BATCH: usize = 16;

/// Duration of a commit from which on more than one thread is used.
const SLOW_COMMIT: Duration = Duration::from_micros(100);

/// Duration of a commit below which a thread would start too late.
const FAST_COMMIT: Duration = Duration::from_micros(40);

/// Consecutive fast commits after which the next one is written on the caller's thread.
const FAST_COMMITS_BEFORE_INLINE: usize = 8;

/// Maximum size of a commit on the caller's thread, in bytes.
const MAX_INLINE_BYTES: usize = 64 * 1024;

/// The commits of one store.
#[derive(Debug, Default)]
pub(super) struct CommitQueue(Mutex<QueueState>);

#[derive(Default)]
struct QueueState {
    jobs: VecDeque<Box<dyn FnOnce() + Send>>,
    threads: usize,
    /// Whether the latest batch of commits was slow.
    is_slow: bool,
    /// Number of consecutive fast commits.
    fast_commits: usize,
}

impl fmt::Debug for QueueState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueState")
            .field("jobs", &self.jobs.len())
            .field("threads", &self.threads)
            .finish_non_exhaustive()
    }
}

/// Works when it is dropped: on its thread, or where a runtime that has shut down drops it, since
/// runtimes may share the queue.
struct Worker(Arc<CommitQueue>);

impl Drop for Worker {
    fn drop(&mut self) {
        self.0.work();
    }
}

impl CommitQueue {
    /// Writes a commit of this size. An error means that the program is ending.
    pub(super) async fn commit<T: Send + 'static>(
        self: &Arc<Self>,
        bytes: usize,
        write: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, RecvError> {
        let is_fast = self.0.lock().fast_commits >= FAST_COMMITS_BEFORE_INLINE;
        if !is_fast || bytes > MAX_INLINE_BYTES {
            return self.run(write).await;
        }
        let started = Instant::now();
        let written = write();
        self.record(started.elapsed(), 1);
        Ok(written)
    }

    /// Runs a blocking job. An error means that the program is ending.
    pub(super) async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, RecvError> {
        let (sender, result) = oneshot::channel();
        let job = Box::new(move || {
            // The caller may have been dropped.
            let _ = sender.send(job());
        });
        let starts_thread = {
            let mut state = self.0.lock();
            state.jobs.push_back(job);
            let max_threads = if state.is_slow { MAX_THREADS } else { 1 };
            let starts_thread = state.threads < max_threads;
            state.threads += usize::from(starts_thread);
            starts_thread
        };
        if starts_thread {
            let worker = Worker(Arc::clone(self));
            tokio::task::spawn_blocking(move || drop(worker));
        }
        result.await
    }

    /// Runs jobs until none is waiting.
    fn work(&self) {
        loop {
            let mut state = self.0.lock();
            let count = state.jobs.len().min(MAX_BATCH);
            if count == 0 {
                state.threads -= 1;
                return;
            }
            let jobs: Vec<_> = state.jobs.drain(..count).collect();
            drop(state);
            let started = Instant::now();
            for job in jobs {
                job();
            }
            self.record(started.elapsed(), count);
        }
    }

    /// Records the duration of a batch of commits.
    pub(super) fn record(&self, duration: Duration, commits: usize) {
        let each = duration / u32::try_from(commits).unwrap_or(u32::MAX);
        let mut state = self.0.lock();
        state.is_slow = each > SLOW_COMMIT;
        state.fast_commits = if each < FAST_COMMIT {
            state.fast_commits.saturating_add(commits)
        } else {
            0
        };
    }
}
