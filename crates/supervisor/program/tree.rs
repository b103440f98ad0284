//! Process trees: the descendants of a process, and how to signal and kill them.
//!
//! A keeper adopts its command's orphans, so a process belongs to a command exactly if its chain of parents
//! leads to the keeper, whatever it does to its session, groups or environment.

use core::str::FromStr;

use crate::sys::{self, Entries, Fd};
use crate::text::Text;

/// Maximum number of processes in a snapshot.
const MAX_PROCESSES: usize = 65_536;
/// Times to look for processes started during a scan, which may belong to other trees.
const MAX_CATCH_UPS: usize = 8;
/// Rereads of empty command lines in one list.
const MAX_REREADS: u32 = 500;
const REREAD_PAUSE_US: u32 = 200;
/// Scans in which new members are killed one by one.
const MAX_KILL_ROUNDS: usize = 3;
/// Scans in which new members are stopped one by one.
const MAX_STOP_ROUNDS: usize = 100;
/// Repetitions of a kill, and the pause between them: a killed process takes a moment to disappear.
const MAX_KILL_REPEATS: u32 = 20;
const KILL_PAUSE_US: u32 = 500;

/// The descendants of a process, without the process itself.
pub struct Tree<'e> {
    root: i32,
    is_excluded: &'e dyn Fn(i32) -> bool,
}

impl<'e> Tree<'e> {
    pub fn below(root: i32) -> Self {
        Self {
            root,
            is_excluded: &|_| false,
        }
    }

    /// Excludes these processes and their descendants.
    pub fn without(self, is_excluded: &'e dyn Fn(i32) -> bool) -> Self {
        Self {
            is_excluded,
            ..self
        }
    }

    /// Sends a signal to a process group whose leader is in the tree.
    pub fn signal_group(&self, group: i32, signal: i32) {
        let snapshot = self.snapshot();
        let mut members = snapshot.iter().flat_map(Snapshot::members);
        // The id may have been reused.
        if members.any(|member| member.pid == group) {
            let _ = sys::kill(-group, signal);
        }
    }

    /// Sends SIGTERM to every member.
    pub fn terminate(&self) {
        for member in self.snapshot().iter().flat_map(Snapshot::members) {
            let _ = sys::kill(member.pid, sys::SIGTERM);
            // A stopped process would handle it only when continued.
            let _ = sys::kill(member.pid, sys::SIGCONT);
        }
    }

    /// Kills every member; returns whether there was any. `alone` says that all other processes belong to
    /// the sandbox and may be stopped for a moment, as a last resort.
    ///
    /// Killing one by one can't keep up with a fork bomb, whose children are born before their parent dies. So
    /// if new members keep appearing, all are stopped first; once nothing runs, they can be killed.
    pub fn kill(&self, alone: bool) -> bool {
        let (Ok(mut current), Ok(mut previous)) = (Snapshot::new(), Snapshot::new()) else {
            if alone {
                // Too much rather than too little.
                let _ = sys::kill(-1, sys::SIGKILL);
            }
            return true;
        };
        if self.sweep(sys::SIGKILL, MAX_KILL_ROUNDS, &mut current, &mut previous) {
            return previous.count > 0 || current.members().next().is_some();
        }
        let settled = self.sweep(sys::SIGSTOP, MAX_STOP_ROUNDS, &mut current, &mut previous);
        let stop_all = !settled && alone;
        if stop_all {
            // Atomic: no process can be born meanwhile.
            let _ = sys::kill(-1, sys::SIGSTOP);
            current.scan(self);
        }
        for member in current.members() {
            let _ = sys::kill(member.pid, sys::SIGKILL);
        }
        if stop_all {
            let _ = sys::kill(-1, sys::SIGCONT);
        }
        true
    }

    /// Kills every member repeatedly until none is left: a scan can miss a process whose parent changes
    /// meanwhile, and the order is not repeated.
    pub fn kill_for_good(&self, alone: bool) -> bool {
        let found = self.kill(alone);
        let mut kills = u32::from(found);
        while (1..=MAX_KILL_REPEATS).contains(&kills) {
            sys::pause_us(KILL_PAUSE_US);
            if !self.kill(alone) {
                break;
            }
            kills += 1;
        }
        found
    }

    /// Kills and reaps the descendants of the calling process until none is left.
    pub fn kill_descendants() {
        loop {
            Self::below(sys::getpid()).kill(false);
            match sys::wait(false, false) {
                Ok(Some(_)) => {}
                Ok(None) => sys::pause_us(KILL_PAUSE_US),
                Err(_) => break,
            }
        }
    }

    /// Sends a signal to every member and to those that appear, until a scan finds no new one; returns
    /// whether that was reached. `current` is then the last scan.
    fn sweep(
        &self,
        signal: i32,
        rounds: usize,
        current: &mut Snapshot,
        previous: &mut Snapshot,
    ) -> bool {
        previous.count = 0;
        for _ in 0..rounds {
            let mut settled = true;
            // At once: a process that forks and exits exists only for a moment.
            current.scan_with(self, &mut |member| {
                if !previous.has_member(member) {
                    settled = false;
                    let _ = sys::kill(member.pid, signal);
                }
            });
            if settled {
                return true;
            }
            core::mem::swap(current, previous);
        }
        false
    }

    /// Scans the processes; `None` if that fails.
    fn snapshot(&self) -> Option<Snapshot> {
        let mut snapshot = Snapshot::new().ok()?;
        snapshot.scan(self);
        Some(snapshot)
    }

    /// Returns the number of members.
    pub fn count(&self) -> usize {
        self.snapshot()
            .map_or(0, |snapshot| snapshot.members().count())
    }

    /// Writes ids and command lines to a pipe, as far as they fit.
    pub fn list(&self, pipe: Fd) {
        let mut line = [0; 512];
        let mut rereads = MAX_REREADS;
        for member in self.snapshot().iter().flat_map(Snapshot::members) {
            let pid = Text::new().number(member.pid).text(b" ");
            let start = pid.as_bytes().len();
            line[..start].copy_from_slice(pid.as_bytes());
            let room = line.len() - 1;
            let end = start + member.command_line(&mut line[start..room], &mut rereads);
            for byte in &mut line[start..end] {
                // NUL separates the arguments.
                if *byte == 0 {
                    *byte = b' ';
                }
            }
            line[end] = 0;
            // The pipe does not block; if it is full, the rest is left out.
            if sys::write(pipe, &line[..=end]).is_err() {
                break;
            }
        }
    }
}

/// Whether a process has begun to exit, or does not exist: it closes its files before its children get another
/// parent.
pub fn is_exiting(pid: i32) -> bool {
    /// `PF_EXITING`.
    const EXITING: u32 = 4;
    // Field 9; the first one here is field 3.
    let flags = stat_fields(pid, &mut [0; 512]).and_then(|mut it| number::<u32>(it.nth(6)?));
    flags.is_none_or(|flags| flags & EXITING != 0)
}

/// A process in a snapshot.
#[derive(Clone, Copy)]
struct Process {
    pid: i32,
    parent: i32,
    is_member: bool,
    /// Its start time, which distinguishes it from a later process with the same id.
    started: u64,
}

// SAFETY: numbers, and zero is `false`.
unsafe impl sys::Zeroable for Process {}

impl Process {
    /// Reads `/proc/PID/stat`; `None` if the process does not exist or is a zombie.
    fn read_stat(pid: i32) -> Option<Self> {
        let mut buffer = [0; 512];
        let mut fields = stat_fields(pid, &mut buffer)?;
        // Fields 3 and 4 are the state and the parent, 20 and 22 the number of threads and the start
        // time.
        let state = fields.next()?;
        let parent = number(fields.next()?)?;
        let threads = number::<u32>(fields.nth(15)?)?;
        let started = number(fields.nth(1)?)?;
        // A process lives on after its first thread has ended.
        let is_over = matches!(state, b"Z" | b"X") && threads < 2;
        (!is_over).then_some(Self {
            pid,
            parent,
            is_member: false,
            started,
        })
    }

    /// Reads the arguments; returns their length. An empty result is read again, up to `rereads` times:
    /// the process may be in `execve`, or have lost its first thread.
    fn command_line(self, buffer: &mut [u8], rereads: &mut u32) -> usize {
        loop {
            match read_process_file(self.pid, b"/cmdline", buffer) {
                Ok(0) if *rereads > 0 => {
                    *rereads -= 1;
                    sys::pause_us(REREAD_PAUSE_US);
                }
                read => return read.unwrap_or(0),
            }
        }
    }
}

/// Returns the fields of `/proc/PID/stat` from the third one on.
fn stat_fields(pid: i32, buffer: &mut [u8; 512]) -> Option<impl Iterator<Item = &[u8]>> {
    let length = read_process_file(pid, b"/stat", buffer).ok()?;
    let stat = &buffer[..length];
    // `PID (NAME) STATE PARENT …`; the name may contain anything.
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    Some(stat.get(end + 2..)?.split(|byte| *byte == b' '))
}

fn number<T: FromStr>(digits: &[u8]) -> Option<T> {
    str::from_utf8(digits).ok()?.parse().ok()
}

fn read_process_file(pid: i32, name: &[u8], buffer: &mut [u8]) -> sys::Result<usize> {
    let path = Text::new().text(b"/proc/").number(pid).text(name);
    sys::read_file(path.as_c(), buffer)
}

/// Returns the most recently assigned process id; 0 if it is hidden.
fn newest_pid() -> i32 {
    let mut buffer = [0; 64];
    let read = sys::read_file(c"/proc/loadavg", &mut buffer).unwrap_or(0);
    // The last of five words.
    let mut words = buffer[..read].trim_ascii_end().rsplit(|byte| *byte == b' ');
    words.next().and_then(number).unwrap_or(0)
}

/// A snapshot of all processes, in the order of their ids.
struct Snapshot {
    directory: Fd,
    processes: &'static mut [Process],
    count: usize,
}

impl Snapshot {
    fn new() -> sys::Result<Self> {
        let directory = sys::open(c"/proc", sys::O_RDONLY | sys::O_DIRECTORY)?;
        let processes = sys::map(MAX_PROCESSES).inspect_err(|_| sys::close(directory))?;
        Ok(Self {
            directory,
            processes,
            count: 0,
        })
    }

    fn members(&self) -> impl Iterator<Item = Process> {
        let all = self.processes[..self.count].iter().copied();
        all.filter(|process| process.is_member)
    }

    fn has_member(&self, process: Process) -> bool {
        self.find(process.pid)
            .is_some_and(|known| known.is_member && known.started == process.started)
    }

    /// Returns a process. `/proc` lists processes in the order of their ids.
    fn find(&self, pid: i32) -> Option<&Process> {
        let known = &self.processes[..self.count];
        let at = known.binary_search_by_key(&pid, |process| process.pid);
        Some(&known[at.ok()?])
    }

    /// Reads all processes and determines the members.
    fn scan(&mut self, tree: &Tree<'_>) {
        self.scan_listed(tree, &mut |_| {});
        self.mark_members(tree, &mut |_| {});
    }

    /// Reads all processes and calls `found` for each member as soon as it is known.
    ///
    /// Ids are read in the order in which they are assigned, up to the newest: the children of a process
    /// that ended before it was read come later. So if `found` stops the process, few are missed, however
    /// fast they replace each other.
    fn scan_with(&mut self, tree: &Tree<'_>, found: &mut dyn FnMut(Process)) {
        // Of those assigned before, `/proc` lists all that exist: there can be millions of ids, and few processes.
        let before = newest_pid();
        self.scan_listed(tree, found);
        let known = &self.processes[..self.count];
        let mut last = known.last().map_or(before, |it| it.pid.max(before));
        for _ in 0..MAX_CATCH_UPS {
            let newest = newest_pid();
            // All are read, or the ids have wrapped and the next scan reads them.
            if newest <= last {
                break;
            }
            for pid in last + 1..=newest {
                self.add(pid, tree, found);
            }
            last = newest;
        }
        self.mark_members(tree, found);
    }

    /// Reads the processes that `/proc` lists.
    fn scan_listed(&mut self, tree: &Tree<'_>, found: &mut dyn FnMut(Process)) {
        self.count = 0;
        if sys::seek(self.directory, 0).is_err() {
            return;
        }
        let mut entries = Entries::of(self.directory);
        while let Ok(Some((name, _))) = entries.next() {
            if let Some(pid) = number(name.to_bytes()) {
                self.add(pid, tree, found);
            }
        }
    }

    fn add(&mut self, pid: i32, tree: &Tree<'_>, found: &mut dyn FnMut(Process)) {
        if self.count == self.processes.len() {
            return;
        }
        let Some(process) = Process::read_stat(pid) else {
            return;
        };
        self.processes[self.count] = process;
        self.count += 1;
        self.mark_one(self.count - 1, tree, found);
    }

    /// Marks a process whose parent is a member; returns whether it was not marked before.
    fn mark_one(&mut self, at: usize, tree: &Tree<'_>, found: &mut dyn FnMut(Process)) -> bool {
        let process = self.processes[at];
        if process.is_member || (tree.is_excluded)(process.pid) {
            return false;
        }
        let parent = self.find(process.parent);
        let is_member =
            process.parent == tree.root || parent.is_some_and(|parent| parent.is_member);
        if is_member {
            self.processes[at].is_member = true;
            found(process);
        }
        is_member
    }

    /// Marks the members. Repeats, since a child may be listed before its parent.
    fn mark_members(&mut self, tree: &Tree<'_>, found: &mut dyn FnMut(Process)) {
        loop {
            let mut changed = false;
            for at in 0..self.count {
                changed |= self.mark_one(at, tree, found);
            }
            if !changed {
                return;
            }
        }
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        sys::close(self.directory);
        sys::unmap(core::mem::take(&mut self.processes));
    }
}
