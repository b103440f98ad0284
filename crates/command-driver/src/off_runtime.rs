//! Work of destructors.

use std::fmt;

use tokio::runtime::Handle;

/// Runs blocking work that a destructor can neither await nor do itself, because its thread may be the runtime's
/// only one: on a thread of the current runtime for blocking work, or right here if there is no runtime.
///
/// A runtime that shuts down waits for the work.
pub fn run_off_runtime(work: impl FnOnce() + Send + 'static) {
    let work = OnDrop::new(work);
    match Handle::try_current() {
        // A runtime that shuts down drops what has not started.
        Ok(runtime) => drop(runtime.spawn_blocking(move || drop(work))),
        Err(_) => drop(work),
    }
}

/// Calls a function when it is dropped: kills a command that is abandoned, for example.
pub struct OnDrop<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> fmt::Debug for OnDrop<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnDrop").finish_non_exhaustive()
    }
}

impl<F: FnOnce()> OnDrop<F> {
    /// Calls `work` when dropped.
    pub fn new(work: F) -> Self {
        Self(Some(work))
    }

    /// Drops the guard without calling the function.
    pub fn disarm(mut self) {
        self.0 = None;
    }
}

impl<F: FnOnce()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        if let Some(work) = self.0.take() {
            work();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn work_is_done_however_the_runtime_ends() {
        let (done, all_done) = mpsc::channel();
        let start = move |number: usize| {
            let done = done.clone();
            run_off_runtime(move || done.send(number).unwrap());
        };
        start(0);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .max_blocking_threads(1)
            .build()
            .unwrap();
        runtime.block_on(async {
            // Waits for the thread that the next call needs, so that it has not started at the end.
            let (go, wait) = mpsc::channel::<()>();
            run_off_runtime(move || assert!(wait.recv().is_err()));
            start(1);
            drop(go);
        });
        let handle = runtime.handle().clone();
        drop(runtime);
        let _entered = handle.enter();
        start(2);
        drop(start);
        assert_eq!(all_done.iter().collect::<Vec<_>>(), [0, 1, 2]);
    }
}
