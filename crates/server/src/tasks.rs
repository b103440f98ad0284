//! Tasks that are aborted with their owner.

use std::sync::{Mutex, PoisonError};

use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// A set of tasks, aborted on drop.
#[derive(Default)]
pub(crate) struct Tasks(Mutex<JoinSet<()>>);

impl Tasks {
    /// Spawns a task.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
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
