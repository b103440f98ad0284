//! Running a command: started in `start`, looked after by a task of its own in `drive`, used
//! through the handle in `process`.

mod drive;
mod output;
mod process;
mod reports;
mod spill;
mod start;
mod stdin;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cantle_supervisor::wire::Order;

pub(crate) use self::output::discard;
pub(crate) use self::start::start;
use crate::sandbox::Shared;

/// One command and the processes that belong to it.
#[derive(Debug)]
struct Command {
    shared: Arc<Shared>,
    /// Names it among the sandbox's commands.
    id: u32,
    /// It has ended, and what it left is killed or may stay.
    settled: AtomicBool,
}

impl Command {
    /// Has its processes killed.
    fn kill(&self) {
        // Where the order can't be sent the sandbox is gone, and they with it.
        let _ = self.shared.order(Order::Kill { id: self.id }, &[]);
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
