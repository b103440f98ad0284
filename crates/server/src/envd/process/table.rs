//! The commands of one sandbox: those that run, and for a while those that have ended.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::messages::{ProcessInfo, Selector};
use super::running::Running;
use crate::envd::fault::{Code, Fault};

/// How long the end of a command can be asked for.
const REMEMBERED: Duration = Duration::from_secs(30);
/// How many ends are remembered at most.
const MOST_REMEMBERED: usize = 4096;

/// Commands by their process id.
pub(crate) struct Commands {
    most: usize,
    /// How long a listener may stand still.
    pub(crate) patience: Duration,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    by_pid: HashMap<u32, Arc<Running>>,
    /// Being started.
    starting: usize,
    /// For backends that don't say.
    last_made_up: u32,
}

/// A place for a command that is being started.
pub(crate) struct Slot<'t>(&'t Commands);

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        let mut table = self.0.table();
        table.starting = table.starting.saturating_sub(1);
    }
}

impl Commands {
    pub(crate) fn new(most: usize, patience: Duration) -> Self {
        Self {
            most,
            patience,
            table: Mutex::default(),
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for one more.
    pub(crate) fn slot(&self) -> Result<Slot<'_>, Fault> {
        let mut table = self.table();
        table.forget();
        let running = table
            .by_pid
            .values()
            .filter(|one| one.ended_for().is_none());
        if running.count() + table.starting >= self.most {
            let message = format!(
                "the sandbox runs as many commands as it may ({})",
                self.most
            );
            return Err(Fault::new(Code::ResourceExhausted, message));
        }
        table.starting += 1;
        Ok(Slot(self))
    }

    /// An id for a command whose backend says none.
    pub(crate) fn make_up_pid(&self) -> u32 {
        let mut table = self.table();
        // Beyond all that a kernel gives.
        table.last_made_up = (table.last_made_up + 1) % (1 << 30);
        (1 << 30) | table.last_made_up
    }

    pub(crate) fn add(&self, running: &Arc<Running>) {
        self.table().by_pid.insert(running.pid, Arc::clone(running));
    }

    /// The command that is meant; it may have ended.
    pub(crate) fn find(&self, selector: &Selector) -> Result<Arc<Running>, Fault> {
        let mut table = self.table();
        table.forget();
        let found = match (selector.pid, &selector.tag) {
            (Some(pid), _) => table.by_pid.get(&pid),
            (None, Some(tag)) => {
                let tagged = |one: &&Arc<Running>| one.tag.as_ref() == Some(tag);
                let all = table.by_pid.values().filter(tagged);
                all.min_by_key(|one| one.ended_for())
            }
            (None, None) => return Err(Fault::invalid("which process is not said")),
        };
        found.map(Arc::clone).ok_or_else(|| {
            Fault::not_found(match (selector.pid, &selector.tag) {
                (Some(pid), _) => format!("process with pid {pid} not found"),
                (None, tag) => format!(
                    "process with tag {} not found",
                    tag.as_deref().unwrap_or("")
                ),
            })
        })
    }

    /// The same for one that must still run.
    pub(crate) fn find_running(&self, selector: &Selector) -> Result<Arc<Running>, Fault> {
        let found = self.find(selector)?;
        if found.ended.is_cancelled() {
            return Err(found.not_found());
        }
        Ok(found)
    }

    /// Those that run.
    pub(crate) fn list(&self) -> Vec<ProcessInfo> {
        let table = self.table();
        let running = table
            .by_pid
            .values()
            .filter(|one| !one.ended.is_cancelled());
        let mut infos: Vec<ProcessInfo> = running
            .map(|one| ProcessInfo {
                config: one.config.clone(),
                pid: one.pid,
                tag: one.tag.clone(),
            })
            .collect();
        infos.sort_by_key(|info| info.pid);
        infos
    }
}

impl Table {
    /// Forgets ends that nobody has asked for in time.
    fn forget(&mut self) {
        let is_fresh = |ended: Option<Duration>| ended.is_none_or(|ago| ago < REMEMBERED);
        self.by_pid.retain(|_, one| is_fresh(one.ended_for()));
        if self.by_pid.len() > MOST_REMEMBERED {
            self.by_pid.retain(|_, one| one.ended_for().is_none());
        }
    }
}
