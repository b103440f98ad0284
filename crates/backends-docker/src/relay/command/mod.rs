//! Running a command: started in `start`, looked after by a task of its own in `drive`, used
//! through the handle in `process`.

mod drive;
mod output;
mod process;
mod reports;
mod spill;
mod start;

use std::sync::atomic::{AtomicBool, Ordering};

pub(super) use self::start::start;
use super::inbox::CommandId;

/// One command and the processes that belong to it.
#[derive(Debug)]
struct Command {
    id: CommandId,
    /// It has ended, and what it left is killed or may stay.
    settled: AtomicBool,
}

impl Command {
    fn new(id: CommandId) -> Self {
        Self {
            id,
            settled: AtomicBool::new(false),
        }
    }

    /// Nothing remains to be done for it.
    fn settle(&self) {
        self.settled.store(true, Ordering::Release);
    }

    /// Has everything killed without waiting for its end, unless the command is settled.
    fn abandon(&self) {
        if !self.settled.swap(true, Ordering::AcqRel) {
            self.id.kill();
        }
    }
}

impl Drop for Command {
    fn drop(&mut self) {
        self.abandon();
    }
}
