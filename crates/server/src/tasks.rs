//! Tasks that are aborted with their owner, and computations off the runtime.

use parking_lot::Mutex;

use tokio::sync::oneshot;
use tokio::task::{JoinSet, spawn_blocking};

/// Size of the data below which a computation takes less time than a switch to another thread.
const SMALL_BYTES: usize = 64 * 1024;

/// A computation was interrupted, because the runtime ends.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the server is stopping")]
pub(crate) struct Interrupted;

/// Computes something from `size_bytes` of data, which other requests must not wait for.
pub(crate) async fn compute<T: Send + 'static>(
    size_bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Interrupted> {
    if size_bytes < SMALL_BYTES {
        return Ok(work());
    }
    spawn_blocking(work).await.map_err(|_| Interrupted)
}

/// A set of tasks, aborted on drop.
#[derive(Default)]
pub(crate) struct Tasks(Mutex<JoinSet<()>>);

impl Tasks {
    /// Spawns a task.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.0.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }

    /// Runs a future to completion even if the caller is dropped. Returns `None` if it was aborted.
    pub(crate) async fn finish<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let (done, answer) = oneshot::channel();
        self.spawn(async move {
            // Fails if the caller was dropped.
            let _ = done.send(work.await);
        });
        answer.await.ok()
    }
}
