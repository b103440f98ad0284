//! Running a command: started in `start`, looked after by a task of its own in `drive`, used
//! through the handle in `process`.

mod drive;
mod output;
mod process;
mod spill;
mod start;
mod stdin;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

pub(crate) use self::output::discard;
pub(crate) use self::start::start;
use crate::processes::{Leader, Suspects, Tree};
use crate::sandbox::Shared;

/// How long to wait for the death of what was killed; longer only where the kernel is stuck.
const KILL_DEADLINE: Duration = Duration::from_millis(400);

/// One command and the processes that belong to it.
#[derive(Debug)]
struct Command {
    shared: Arc<Shared>,
    leader: Arc<Leader>,
    /// Names it among the sandbox's commands.
    number: u64,
    marker: String,
    /// It has ended, and what it left is killed or remembered by the sandbox.
    settled: AtomicBool,
}

impl Command {
    fn tree(&self) -> Tree {
        Tree {
            leaders: vec![Arc::clone(&self.leader)],
            marker: self.marker.clone(),
            known: Vec::new(),
        }
    }

    /// Whether it has left one of the suspects, or may have.
    fn has_left(&self, suspects: &Suspects) -> bool {
        suspects.include_one_of(&self.leader, &self.marker)
    }

    /// Kills everything and blocks until it is dead, or the deadline has passed.
    fn kill(&self) {
        let left = self.tree().kill(Instant::now() + KILL_DEADLINE);
        self.shared.keep(&left);
    }

    /// Nothing remains to be done for it.
    fn settle(&self) {
        self.settled.store(true, Ordering::Release);
        self.shared.forget(self.number);
    }

    /// Kills everything without waiting for its end, unless the command is settled.
    ///
    /// Works without a runtime: the process group is killed at once, and a thread finds and kills
    /// the rest and reaps the leader.
    fn abandon(self: &Arc<Self>) {
        if self.settled.load(Ordering::Acquire) {
            return;
        }
        self.leader.signal_group(Signal::KILL);
        let command = Arc::clone(self);
        let finish = move || {
            command.kill();
            command.leader.reap_patiently();
            command.settle();
        };
        let reaper = thread::Builder::new().name("cantle-reaper".into());
        if reaper.spawn(finish.clone()).is_err() {
            finish();
        }
    }
}
