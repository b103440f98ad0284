//! Running a command: started in `start`, looked after by a task of its own in `drive`, used
//! through the handle in `process`. What is said to a supervisor, and what is done where there is none,
//! is in `supervised` and in `grouped`.

mod channels;
mod drive;
#[cfg(not(confined))]
mod grouped;
mod output;
mod process;
#[cfg(confined)]
mod reports;
mod source;
mod spill;
mod start;
mod stdin;
#[cfg(confined)]
mod supervised;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

#[cfg(not(confined))]
use self::grouped as running;
pub(crate) use self::output::discard;
pub(crate) use self::source::Source;
pub(crate) use self::start::start;
#[cfg(confined)]
use self::supervised as running;
use crate::sandbox::Shared;

/// One command and the processes that belong to it.
#[derive(Debug)]
pub(crate) struct Command {
    pub(crate) shared: Arc<Shared>,
    running: running::Running,
    /// It has ended, and what it left is killed or may stay.
    settled: AtomicBool,
}

impl Command {
    fn new(shared: Arc<Shared>, running: running::Running) -> Self {
        Self {
            shared,
            running,
            settled: AtomicBool::new(false),
        }
    }

    /// Has its processes killed. Blocks where other orders stand in the way, which is a matter of
    /// milliseconds.
    fn kill(&self) {
        self.running.kill(&self.shared);
    }

    /// Asks its processes to end.
    fn terminate(&self) {
        self.running.terminate(&self.shared);
    }

    /// Sends a signal to the group of its first process.
    fn signal(&self, pid: i32, signal: i32) {
        self.running.signal(&self.shared, pid, signal);
    }

    /// What of it is running: for each process its id, a space, its command line and a NUL; `None`
    /// where that isn't told.
    pub(crate) async fn list(&self) -> Option<Vec<u8>> {
        self.running.list(&self.shared).await
    }

    /// Nothing remains to be done for it.
    fn settle(&self) {
        self.settled.store(true, Ordering::Release);
    }

    /// Has everything killed without waiting for its end, unless the command is settled.
    fn abandon(&self) {
        if !self.settled.swap(true, Ordering::AcqRel) {
            self.kill();
        }
    }
}

/// Kills a command that is not looked after yet where its start is given up.
#[derive(Debug)]
struct Starting(Option<Arc<Command>>);

impl Starting {
    /// It has been started.
    fn finish(mut self) -> Option<Arc<Command>> {
        self.0.take()
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        if let Some(command) = &self.0 {
            command.abandon();
        }
    }
}

/// Tells the runtime to watch a descriptor, which does not block.
fn watched(descriptor: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    #[expect(
        deprecated,
        reason = "unsound only for types that change their descriptor, which `OwnedFd` doesn't; \
                  what replaces it is an unsafe function"
    )]
    AsyncFd::with_interest(descriptor, interest)
}
