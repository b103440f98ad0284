//! The commands of a sandbox, including those that ended recently.

pub(crate) mod command;
pub(crate) mod messages;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use self::command::RunningCommand;
use self::messages::{ProcessInfo, Selector};
use crate::envd::error::{EnvdError, Result};

/// How long a command can be queried after its end.
const RETENTION: Duration = Duration::from_secs(30);
/// Maximum number of remembered ended commands.
const MAX_RETAINED: usize = 4096;

/// Commands by process id.
pub(crate) struct Commands {
    max: usize,
    /// Of commands that are being started or run.
    slots: Arc<Semaphore>,
    /// How long a subscriber may read nothing.
    pub(crate) idle_timeout: Duration,
    by_pid: Mutex<HashMap<u32, Arc<RunningCommand>>>,
    /// For backends that report no process id.
    last_synthetic_pid: AtomicU32,
}

impl Commands {
    pub(crate) fn new(max: usize, idle_timeout: Duration) -> Self {
        let max = max.min(Semaphore::MAX_PERMITS);
        Self {
            max,
            slots: Arc::new(Semaphore::new(max)),
            idle_timeout,
            by_pid: Mutex::default(),
            last_synthetic_pid: AtomicU32::new(0),
        }
    }

    /// Takes the slot of a command until it has ended, after the removal of commands that ended long ago.
    pub(crate) fn reserve(&self) -> Result<OwnedSemaphorePermit> {
        evict(&mut self.by_pid.lock());
        let slot = Arc::clone(&self.slots).try_acquire_owned();
        slot.map_err(|_| {
            EnvdError::exhausted(format!(
                "the sandbox has reached its maximum number of running commands ({})",
                self.max
            ))
        })
    }

    /// Returns an id for a command whose backend reports none.
    pub(crate) fn synthetic_pid(&self) -> u32 {
        let last = self.last_synthetic_pid.fetch_add(1, Ordering::Relaxed);
        // Above every kernel's process ids.
        (1 << 30) | (last.wrapping_add(1) % (1 << 30))
    }

    pub(crate) fn add(&self, command: &Arc<RunningCommand>) {
        let mut by_pid = self.by_pid.lock();
        by_pid.insert(command.info.pid, Arc::clone(command));
    }

    /// Finds a command; it may have ended.
    pub(crate) fn find(&self, selector: &Selector) -> Result<Arc<RunningCommand>> {
        let mut by_pid = self.by_pid.lock();
        evict(&mut by_pid);
        let found = match (selector.pid, &selector.tag) {
            (Some(pid), _) => by_pid.get(&pid),
            (None, Some(tag)) => {
                let tagged = |it: &&Arc<RunningCommand>| it.info.tag.as_ref() == Some(tag);
                let all = by_pid.values().filter(tagged);
                all.min_by_key(|command| command.time_since_end())
            }
            (None, None) => return Err(EnvdError::invalid("the request selects no process")),
        };
        found.map(Arc::clone).ok_or_else(|| {
            let tag = selector.tag.as_deref().unwrap_or_default();
            EnvdError::not_found(match selector.pid {
                Some(pid) => format!("process with pid {pid} not found"),
                None => format!("process with tag {tag} not found"),
            })
        })
    }

    /// Finds a running command.
    pub(crate) fn find_running(&self, selector: &Selector) -> Result<Arc<RunningCommand>> {
        let found = self.find(selector)?;
        if found.ended.is_cancelled() {
            return Err(found.not_found());
        }
        Ok(found)
    }

    /// Lists the running commands.
    pub(crate) fn list(&self) -> Vec<Arc<ProcessInfo>> {
        let by_pid = self.by_pid.lock();
        let running = by_pid.values().filter(|it| !it.ended.is_cancelled());
        let mut infos: Vec<_> = running.map(|command| Arc::clone(&command.info)).collect();
        infos.sort_by_key(|info| info.pid);
        infos
    }
}

/// Removes commands that ended long ago, and excess ones.
fn evict(by_pid: &mut HashMap<u32, Arc<RunningCommand>>) {
    let is_fresh = |ended: Option<Duration>| ended.is_none_or(|ago| ago < RETENTION);
    by_pid.retain(|_, command| is_fresh(command.time_since_end()));
    if by_pid.len() > MAX_RETAINED {
        by_pid.retain(|_, command| command.time_since_end().is_none());
    }
}
