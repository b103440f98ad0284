//! Which processes belong to a command or a sandbox, told from what the kernel shows in `/proc`.
//!
//! A process belongs where its process group says so, where its first environment holds the
//! marker, or where its parent belongs. Reading `/proc` is a few milliseconds of work on a busy
//! machine: it blocks. What the usual command pays is the first look of [`Suspects`].

mod kill;
mod leader;
mod stat;

use std::fs;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, getpid};

pub(crate) use self::leader::Leader;
pub(crate) use self::stat::Process;

/// What holds together the processes of a command, or of a sandbox.
#[derive(Debug)]
pub(crate) struct Tree {
    /// Commands whose process groups belong.
    pub(crate) leaders: Vec<Arc<Leader>>,
    /// The variable in their environment, as `NAME=value`.
    pub(crate) marker: String,
    /// Processes that were found to belong earlier.
    pub(crate) known: Vec<Process>,
}

impl Tree {
    /// The processes that belong and are alive, the commands' leaders among them.
    pub(crate) fn members(&self) -> Vec<Process> {
        self.each_member(|_| {})
    }

    /// Looks at all processes, and calls `found` for each that belongs as soon as it is met.
    ///
    /// Process ids are looked at in the order in which they are given out, up to one that was given
    /// out just now. If `found` keeps a process from starting others, then nothing that belongs is
    /// missed, however fast they start each other and end: what has ended before it was looked at
    /// has left its children further on.
    fn each_member(&self, mut found: impl FnMut(&Process)) -> Vec<Process> {
        /// Where others start processes faster than we look, that isn't ours to wait for.
        const MOST_ROUNDS: usize = 200;

        let mut look = Look {
            tree: self,
            since: self.since(),
            own: getpid(),
            members: Vec::new(),
            others: Vec::new(),
        };
        let mut newest = newest_pid();
        for pid in listed_pids() {
            look.at(pid, &mut found);
        }
        for _ in 0..MOST_ROUNDS {
            let now = newest_pid();
            let (Some(last), Some(next)) = (newest, now) else {
                break;
            };
            // Once around: the next look will see them.
            if next <= last {
                break;
            }
            for pid in (last + 1..=next).filter_map(stat::positive) {
                look.at(pid, &mut found);
            }
            newest = now;
        }
        look.at_children(&mut found);
        look.members
    }

    fn belongs(&self, process: &Process, since: u64) -> bool {
        let in_group = |leader: &Arc<Leader>| leader.owns_group(process.group);
        self.leaders.iter().any(in_group)
            || self.known.iter().any(|known| known.is(process))
            || (process.started >= since && has_marker(process.pid, self.marker.as_bytes()))
    }

    /// Before this, in the kernel's ticks, nothing that belongs was started.
    fn since(&self) -> u64 {
        let started = self.leaders.iter().filter_map(|leader| leader.started());
        if self.known.is_empty() {
            started.min().unwrap_or(0)
        } else {
            0
        }
    }
}

/// One look at all processes.
struct Look<'t> {
    tree: &'t Tree,
    since: u64,
    own: Pid,
    members: Vec<Process>,
    others: Vec<Process>,
}

impl Look<'_> {
    fn at(&mut self, pid: Pid, found: &mut impl FnMut(&Process)) {
        if pid == self.own || self.members.iter().any(|member| member.pid == pid) {
            return;
        }
        let Some(process) = Process::read(pid) else {
            return;
        };
        if self.has_parent(&process) || self.tree.belongs(&process, self.since) {
            // The ids of threads are not listed, but can be looked at.
            if !process.is_thread() {
                found(&process);
                self.members.push(process);
            }
        } else {
            self.others.push(process);
        }
    }

    /// Finds those whose parents were looked at after them: ids start again at the lowest.
    fn at_children(&mut self, found: &mut impl FnMut(&Process)) {
        loop {
            let others = std::mem::take(&mut self.others);
            let before = self.members.len();
            for process in others {
                if self.has_parent(&process) {
                    found(&process);
                    self.members.push(process);
                } else {
                    self.others.push(process);
                }
            }
            if self.members.len() == before {
                return;
            }
        }
    }

    fn has_parent(&self, process: &Process) -> bool {
        let parent = process.parent;
        self.members.iter().any(|member| Some(member.pid) == parent)
    }
}

/// The processes that a command which has ended may have left, as far as that can be said without
/// looking at them.
#[derive(Clone, Debug)]
pub(crate) enum Suspects {
    /// Those with an id in this range.
    Ids(Range<i32>),
    /// Any.
    All,
}

impl Suspects {
    /// What the command of this leader, which has not been reaped, may have left after `ran`.
    ///
    /// The last field of `/proc/loadavg` is the newest process id that was given out. Often it is
    /// the leader's own, and then there is nobody.
    pub(crate) fn after(leader: &Leader, ran: Duration) -> Self {
        /// In so short a time the ids can't have gone once around.
        const SHORT: Duration = Duration::from_secs(1);
        /// Above this, a list of what is there is shorter.
        const MANY: i32 = 4000;

        let first = leader.pid().as_raw_pid();
        match newest_pid() {
            Some(newest) if ran < SHORT && (0..MANY).contains(&(newest - first)) => {
                Self::Ids(first + 1..newest + 1)
            }
            _ => Self::All,
        }
    }

    /// Whether there are so few that looking at them takes no longer than a trip off the runtime.
    pub(crate) fn are_few(&self) -> bool {
        matches!(self, Self::Ids(ids) if ids.len() <= 16)
    }

    /// Whether one of them may belong to the command. `false` is certain, but for the limits of
    /// the crate.
    pub(crate) fn include_one_of(&self, leader: &Leader, marker: &str) -> bool {
        let Self::Ids(ids) = self else {
            return true;
        };
        let mut processes = ids
            .clone()
            .filter_map(stat::positive)
            .filter_map(Process::read);
        processes.any(|process| {
            leader.owns_group(process.group)
                || !matches!(marked(process.pid, marker.as_bytes()), Marked::No)
        })
    }
}

fn newest_pid() -> Option<i32> {
    let load = fs::read_to_string("/proc/loadavg").ok()?;
    load.split_ascii_whitespace().next_back()?.parse().ok()
}

/// The ids of all processes, in ascending order.
fn listed_pids() -> Vec<Pid> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(stat::positive)
        .collect()
}

/// What a process's first environment says.
enum Marked {
    Yes,
    No,
    /// It shows none: it has none, or it is just being replaced (`execve`).
    Unclear,
}

fn marked(pid: Pid, marker: &[u8]) -> Marked {
    match fs::read(format!("/proc/{pid}/environ")) {
        Ok(environment) if environment.is_empty() => Marked::Unclear,
        Ok(environment)
            if environment
                .split(|byte| *byte == 0)
                .any(|entry| entry == marker) =>
        {
            Marked::Yes
        }
        // Of another user, or gone.
        Ok(_) | Err(_) => Marked::No,
    }
}

fn has_marker(pid: Pid, marker: &[u8]) -> bool {
    for _ in 0..3 {
        match marked(pid, marker) {
            Marked::Yes => return true,
            Marked::No => return false,
            Marked::Unclear => std::thread::sleep(Duration::from_micros(100)),
        }
    }
    false
}
