//! One process as the kernel shows it in `/proc/PID/stat`.

use std::fmt;
use std::fs;

use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

/// A process. Its id and the time of its start name it even where the id is given out again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: Pid,
    pub(crate) parent: Option<Pid>,
    pub(crate) group: Option<Pid>,
    /// Ticks since the machine was started.
    pub(crate) started: u64,
}

impl Process {
    /// Reads what is known of a process; `None` where there is none, or it only waits to be reaped.
    pub(crate) fn read(pid: Pid) -> Option<Self> {
        let (process, ended) = read(pid)?;
        // Kernel threads, which nobody has started: `kthreadd` is always the second process.
        let kernel = process
            .parent
            .is_some_and(|parent| parent.as_raw_pid() == 2);
        (!ended && !kernel).then_some(process)
    }

    /// When a process was started, even where it only waits to be reaped.
    pub(crate) fn started(pid: Pid) -> Option<u64> {
        read(pid).map(|(process, _)| process.started)
    }

    /// Whether it is the same process, not one that was given the same id.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.pid == other.pid && self.started == other.started
    }

    /// Whether it still runs.
    pub(crate) fn is_alive(&self) -> bool {
        Self::read(self.pid).is_some_and(|now| now.is(self))
    }

    /// Whether it is a thread of a process, not one itself.
    pub(super) fn is_thread(&self) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        let process = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
        process.is_some_and(|id| id.trim().parse() != Ok(self.pid.as_raw_pid()))
    }

    /// Sends a signal to this process and no other one.
    ///
    /// # Errors
    /// Where we may not. One that has ended is fine.
    pub(super) fn signal(&self, signal: Signal) -> rustix::io::Result<()> {
        let result = match pidfd_open(self.pid, PidfdFlags::empty()) {
            // The descriptor holds on to a process; this checks that it is the one that was meant.
            Ok(descriptor) if self.is_alive() => pidfd_send_signal(descriptor, signal),
            Ok(_) => return Ok(()),
            // No descriptors left: less safe, but better than to let it run.
            Err(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE) if self.is_alive() => {
                kill_process(self.pid, signal)
            }
            Err(error) => Err(error),
        };
        match result {
            Err(rustix::io::Errno::SRCH) => Ok(()),
            result => result,
        }
    }

    /// Its command line, shortened to be shown.
    pub(crate) fn command_line(&self) -> String {
        const LONG: usize = 120;

        let arguments = fs::read(format!("/proc/{}/cmdline", self.pid)).unwrap_or_default();
        let arguments = String::from_utf8_lossy(&arguments);
        let line = arguments.trim_end_matches('\0').replace(['\0', '\n'], " ");
        if line.chars().count() <= LONG {
            return line;
        }
        line.chars().take(LONG - 1).chain(['…']).collect()
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} ({})", self.pid, self.command_line())
    }
}

/// Reads `/proc/PID/stat` (see `proc_pid_stat(5)`): the process, and whether it has ended.
fn read(pid: Pid) -> Option<(Process, bool)> {
    let line = fs::read(format!("/proc/{pid}/stat")).ok()?;
    parse(pid, &line)
}

fn parse(pid: Pid, line: &[u8]) -> Option<(Process, bool)> {
    // The program's name is in parentheses and may hold anything, parentheses and blanks too.
    let end_of_name = line.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(line.get(end_of_name + 1..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let state = *fields.next()?.as_bytes().first()?;
    let parent = fields.next()?.parse().ok()?;
    // -1 in the moment in which it is reaped.
    let group = fields.next()?.parse().ok()?;
    // State, parent and group are fields 3 to 5; the number of threads and the time of the start
    // are fields 20 and 22.
    let threads: u64 = fields.nth(14)?.parse().ok()?;
    let started = fields.nth(1)?.parse().ok()?;
    // Where only the first thread has ended, the process goes on.
    let ended = matches!(state, b'Z' | b'X') && threads < 2;
    let process = Process {
        pid,
        parent: positive(parent),
        group: positive(group),
        started,
    };
    Some((process, ended))
}

/// A process id, where it is one: 0 and less mean nobody.
pub(super) fn positive(raw: i32) -> Option<Pid> {
    if raw > 0 { Pid::from_raw(raw) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        let line = b"42 (a) R 7 (b) S 41 40 39 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 98765 1 2";
        let pid = Pid::from_raw(42).unwrap();
        let expected = Process {
            pid,
            parent: Pid::from_raw(41),
            group: Pid::from_raw(40),
            started: 98765,
        };
        assert_eq!(parse(pid, line), Some((expected, false)));
        assert_eq!(parse(pid, b"42 (cut"), None);
        let line = b"42 (a) Z 0 -1 -1 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 98765 1 2";
        let (reaped, ended) = parse(pid, line).unwrap();
        assert_eq!((reaped.parent, reaped.group, ended), (None, None, true));
    }

    #[test]
    fn our_own_process_is_known_by_its_start() {
        let own = Process::read(rustix::process::getpid()).unwrap();
        assert!(own.is_alive());
        let other = Process {
            started: own.started + 1,
            ..own
        };
        assert!(!other.is_alive());
    }
}
