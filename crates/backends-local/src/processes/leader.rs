//! The process that was started for a command, from its start until it is reaped.

use std::process::{Child, ExitStatus};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::sleep;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};

use super::Process;

/// A command's first process and the head of its process group. Until it is reaped its id, and so
/// the group's, is given to no other one.
#[derive(Debug)]
pub(crate) struct Leader {
    pid: Pid,
    child: Mutex<Child>,
    ended: OnceLock<Ended>,
    started: OnceLock<Option<u64>>,
}

/// How the leader ended; `None` where another part of the program has reaped it before us (it
/// waits for any child, or ignores SIGCHLD).
pub(crate) type Ended = Option<ExitStatus>;

impl Leader {
    /// `child` must be the head of a process group of its own.
    pub(crate) fn new(child: Child) -> Self {
        Self {
            pid: Pid::from_child(&child),
            child: Mutex::new(child),
            ended: OnceLock::new(),
            started: OnceLock::new(),
        }
    }

    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// When it was started, in the kernel's ticks; unknown where nobody asked before it was reaped.
    pub(crate) fn started(&self) -> Option<u64> {
        if self.ended.get().is_some() {
            return *self.started.get()?;
        }
        *self.started.get_or_init(|| Process::started(self.pid))
    }

    /// Whether `group` is this command's process group, and certainly not a later one of that id.
    pub(crate) fn owns_group(&self, group: Option<Pid>) -> bool {
        group == Some(self.pid) && self.ended.get().is_none()
    }

    /// Sends a signal to all of its group; to nobody once the leader is reaped.
    pub(crate) fn signal_group(&self, signal: Signal) {
        let child = self.child();
        if self.ended.get().is_none() {
            // It fails where only the zombie is left, or for what we may not signal.
            let _ = kill_process_group(self.pid, signal);
        }
        drop(child);
    }

    /// Reaps it where it has ended; does not wait for that.
    pub(crate) fn reap(&self) -> Option<Ended> {
        let mut child = self.child();
        if let Some(ended) = self.ended.get() {
            return Some(*ended);
        }
        let ended = match child.try_wait() {
            Ok(None) => return None,
            Ok(status) => status,
            Err(_) => None,
        };
        Some(*self.ended.get_or_init(|| ended))
    }

    /// Reaps it, and blocks until that is possible: after a KILL, as soon as the kernel lets it go.
    pub(crate) fn reap_patiently(&self) {
        let mut pause = Duration::from_millis(1);
        while self.reap().is_none() {
            sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }

    fn child(&self) -> MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
