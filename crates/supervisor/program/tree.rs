//! What belongs together: the processes that descend from one, and how they are stopped.
//!
//! A keeper adopts its command's orphans, so a process belongs to a command exactly where a chain
//! of parents leads to the keeper, whatever it does to its session, its groups or its environment.

use crate::sys::{self, Fd};
use crate::text::{Text, leading_number};

/// The most processes that are looked at.
const MOST: usize = 65_536;
/// How often, after the list, to look at what was started meanwhile: others start processes, too.
const MOST_CHASES: usize = 8;
/// Looks at command lines that are empty, in one list.
const PATIENCE: u32 = 500;
/// After so many looks something still starts processes as fast as they are killed.
const GENTLE_ROUNDS: usize = 3;
/// After so many looks something still starts processes as fast as they are stopped.
const MOST_ROUNDS: usize = 100;

/// How often to look again for what was missed, and how long to wait before: the kernel needs a
/// moment for what is killed already.
const MOST_LOOKS_AGAIN: u32 = 20;
const PAUSE_US: u32 = 500;

/// Processes whose descendants are left alone.
pub trait Keepers {
    /// Whether a process is one of them.
    fn includes(&self, pid: i32) -> bool;
}

/// All that descends from a process, without the process itself.
pub struct Tree<'k> {
    root: i32,
    spared: Option<&'k dyn Keepers>,
}

impl<'k> Tree<'k> {
    pub fn below(root: i32) -> Self {
        Self { root, spared: None }
    }

    /// The same without these and what descends from them.
    pub fn without(self, spared: &'k dyn Keepers) -> Self {
        Self {
            spared: Some(spared),
            ..self
        }
    }

    /// Sends a signal to a process group whose head is in the tree.
    pub fn signal_group(&self, group: i32, signal: i32) {
        let Ok(mut look) = Look::new() else { return };
        look.at_all(self);
        // Its number may be somebody else's by now.
        if look.members().any(|member| member.pid() == group) {
            let _ = sys::kill(-group, signal);
        }
    }

    /// Asks everything to end.
    pub fn terminate(&self) {
        let Ok(mut look) = Look::new() else { return };
        look.at_all(self);
        for member in look.members() {
            let _ = sys::kill(member.pid(), sys::SIGTERM);
            // What is stopped would hear of it only when it is continued.
            let _ = sys::kill(member.pid(), sys::SIGCONT);
        }
    }

    /// Kills everything; whether there was anything. `alone` says whether all processes but this one
    /// belong to the sandbox, and so may be stopped for a moment: the last resort against what starts
    /// processes faster than we look.
    ///
    /// Killing one by one loses against a fork bomb: each child is born before its parent dies. So
    /// where new ones keep turning up, everything is stopped first, again and again; once nothing
    /// moves any more it can be killed at leisure.
    pub fn kill(&self, alone: bool) -> bool {
        let (Ok(mut look), Ok(mut before)) = (Look::new(), Look::new()) else {
            if alone {
                // Too much rather than too little.
                let _ = sys::kill(-1, sys::SIGKILL);
            }
            return true;
        };
        if self.sweep(sys::SIGKILL, GENTLE_ROUNDS, &mut look, &mut before) {
            return before.count > 0 || look.members().next().is_some();
        }
        let settled = self.sweep(sys::SIGSTOP, MOST_ROUNDS, &mut look, &mut before);
        let all_stopped = !settled && alone;
        if all_stopped {
            // The kernel does this at one stroke; no process can be born meanwhile.
            let _ = sys::kill(-1, sys::SIGSTOP);
            look.at_all(self);
        }
        for member in look.members() {
            let _ = sys::kill(member.pid(), sys::SIGKILL);
        }
        if all_stopped {
            let _ = sys::kill(-1, sys::SIGCONT);
        }
        true
    }

    /// The same, and looks again until nothing is there any more: a process can be missed that gets
    /// another parent while we look, and nobody asks twice.
    pub fn kill_for_good(&self, alone: bool) -> bool {
        let found = self.kill(alone);
        let mut looks = u32::from(found);
        while (1..=MOST_LOOKS_AGAIN).contains(&looks) {
            sys::pause_us(PAUSE_US);
            if !self.kill(alone) {
                break;
            }
            looks += 1;
        }
        found
    }

    /// Sends a signal to all that is there, and to what has turned up since, until nothing new does;
    /// whether it came to that. `look` is then what is there.
    fn sweep(&self, signal: i32, rounds: usize, look: &mut Look, before: &mut Look) -> bool {
        before.count = 0;
        for _ in 0..rounds {
            let mut settled = true;
            // At once: what starts others and ends is only there for a moment.
            look.at_each(self, &mut |member| {
                if !before.has_member(member) {
                    settled = false;
                    let _ = sys::kill(member.pid(), signal);
                }
            });
            if settled {
                return true;
            }
            core::mem::swap(look, before);
        }
        false
    }

    /// Writes the ids and command lines to a pipe, as far as there is room in it.
    pub fn list(&self, pipe: Fd) {
        let Ok(mut look) = Look::new() else { return };
        look.at_all(self);
        let mut line = [0; 512];
        let mut patience = PATIENCE;
        for member in look.members() {
            let pid = Text::new().number(member.pid()).text(b" ");
            let start = pid.as_bytes().len();
            line[..start].copy_from_slice(pid.as_bytes());
            let room = line.len() - 1;
            let end = start + member.command_line(&mut line[start..room], &mut patience);
            for byte in &mut line[start..end] {
                // The arguments are apart by NUL.
                if *byte == 0 {
                    *byte = b' ';
                }
            }
            line[end] = 0;
            // It doesn't block: where the pipe is full, the rest is left out.
            if sys::write(pipe, &line[..=end]).is_err() {
                break;
            }
        }
    }
}

/// A process as it was seen: its id, its parent's, whether it belongs, when it was started.
#[derive(Clone, Copy)]
struct Process([i32; 4]);

impl Process {
    fn pid(self) -> i32 {
        self.0[0]
    }

    fn parent(self) -> i32 {
        self.0[1]
    }

    fn belongs(self) -> bool {
        self.0[2] != 0
    }

    fn is(self, other: Self) -> bool {
        self.pid() == other.pid() && self.0[3] == other.0[3]
    }

    /// Reads what `/proc` says of a process; `None` where there is none, or it is dead.
    fn look_at(pid: i32) -> Option<Self> {
        let mut buffer = [0; 512];
        let length = Self([pid, 0, 0, 0]).read(b"/stat", &mut buffer).ok()?;
        let stat = &buffer[..length];
        // `PID (NAME) STATE PARENT …`, and the name may hold anything.
        let end = stat.iter().rposition(|byte| *byte == b')')?;
        let mut fields = stat.get(end + 2..)?.split(|byte| *byte == b' ');
        // The state and the parent are fields 3 and 4; the number of threads and the time of the
        // start are fields 20 and 22.
        let state = fields.next()?;
        let (parent, _) = leading_number(fields.next()?)?;
        let (threads, _) = leading_number(fields.nth(15)?)?;
        let started = fields.nth(1)?;
        // Where only the first thread has ended, the process goes on.
        if matches!(state, b"Z" | b"X") && threads < 2 {
            return None;
        }
        let mut lowest = 0_i32;
        for digit in started {
            lowest = lowest.wrapping_mul(10).wrapping_add(i32::from(*digit));
        }
        Some(Self([pid, parent, 0, lowest]))
    }

    /// Its arguments; how many bytes they are. `patience` is how often to look again at one that
    /// has none: it may just be becoming another program, or have lost its first thread for good.
    fn command_line(self, buffer: &mut [u8], patience: &mut u32) -> usize {
        loop {
            match self.read(b"/cmdline", buffer) {
                Ok(0) if *patience > 0 => {
                    *patience -= 1;
                    sys::pause_us(200);
                }
                read => return read.unwrap_or(0),
            }
        }
    }

    fn read(self, name: &[u8], buffer: &mut [u8]) -> sys::Result<usize> {
        let path = Text::new().text(b"/proc/").number(self.pid()).text(name);
        let file = sys::openat(sys::AT_FDCWD, path.as_c(), sys::O_RDONLY, 0)?;
        let read = sys::read(file, buffer);
        sys::close(file);
        read
    }
}

/// The id that was given out last; 0 where that isn't told.
fn newest_id() -> i32 {
    let mut buffer = [0; 64];
    let Ok(file) = sys::openat(sys::AT_FDCWD, c"/proc/loadavg", sys::O_RDONLY, 0) else {
        return 0;
    };
    let read = sys::read(file, &mut buffer).unwrap_or(0);
    sys::close(file);
    // It is the last of five words.
    let words = buffer[..read].trim_ascii_end().rsplit(|byte| *byte == b' ');
    let newest = words.into_iter().next().and_then(leading_number);
    newest.map_or(0, |(number, _)| number)
}

/// One look at all processes.
struct Look {
    directory: Fd,
    rows: &'static mut [[i32; 4]],
    count: usize,
}

impl Look {
    fn new() -> sys::Result<Self> {
        let flags = sys::O_RDONLY | sys::O_DIRECTORY;
        Ok(Self {
            directory: sys::openat(sys::AT_FDCWD, c"/proc", flags, 0)?,
            rows: sys::map_rows(MOST)?,
            count: 0,
        })
    }

    fn members(&self) -> impl Iterator<Item = Process> {
        let all = self.rows[..self.count].iter().copied().map(Process);
        all.filter(|process| process.belongs())
    }

    fn has_member(&self, process: Process) -> bool {
        let found = self
            .position(process.pid())
            .map(|at| Process(self.rows[at]));
        found.is_some_and(|known| known.belongs() && known.is(process))
    }

    /// Where a process is among those seen. The kernel lists them in the order of their ids.
    fn position(&self, pid: i32) -> Option<usize> {
        let seen = &self.rows[..self.count];
        seen.binary_search_by_key(&pid, |row| row[0]).ok()
    }

    /// Looks at all processes, and finds out who belongs.
    fn at_all(&mut self, tree: &Tree<'_>) {
        self.at_listed(tree, &mut |_| {});
        self.mark(tree, &mut |_| {});
    }

    /// The same, and calls `found` for each that belongs as soon as that is known.
    ///
    /// Ids are looked at in the order in which they are given out, up to one that was given out just
    /// now. What has ended before it was looked at has left its children further on: if `found` stops
    /// what it is called for, little is missed, however fast processes replace each other.
    fn at_each(&mut self, tree: &Tree<'_>, found: &mut dyn FnMut(Process)) {
        self.at_listed(tree, found);
        let mut seen = self.rows[..self.count].last().map_or(0, |row| row[0]);
        for _ in 0..MOST_CHASES {
            let newest = newest_id();
            // All of them; or the ids began again at the lowest, and the next look sees them.
            if newest <= seen {
                break;
            }
            for pid in seen + 1..=newest {
                self.see(pid, tree, found);
            }
            seen = newest;
        }
        self.mark(tree, found);
    }

    /// Looks at the processes that the kernel lists.
    fn at_listed(&mut self, tree: &Tree<'_>, found: &mut dyn FnMut(Process)) {
        self.count = 0;
        if sys::rewind(self.directory).is_err() {
            return;
        }
        let mut entries = [0; 4096];
        while let Ok(length @ 1..) = sys::getdents(self.directory, &mut entries) {
            let mut rest = &entries[..length];
            // An entry: inode, offset (8 bytes each), its length (2), a type (1), its name, NUL.
            while !rest.is_empty() {
                let Some(&[low, high]) = rest.get(16..18) else {
                    return;
                };
                let size = usize::from(u16::from_le_bytes([low, high]));
                let Some((entry, next)) = rest.split_at_checked(size) else {
                    return;
                };
                rest = next;
                let name = entry.get(19..).unwrap_or_default();
                if let Some((pid, [0, ..])) = leading_number(name) {
                    self.see(pid, tree, found);
                }
            }
        }
    }

    fn see(&mut self, pid: i32, tree: &Tree<'_>, found: &mut dyn FnMut(Process)) {
        if self.count == self.rows.len() {
            return;
        }
        let Some(process) = Process::look_at(pid) else {
            return;
        };
        self.rows[self.count] = process.0;
        self.count += 1;
        self.mark_one(self.count - 1, tree, found);
    }

    /// Marks a process where its parent is known to belong; whether it was not marked before.
    fn mark_one(&mut self, at: usize, tree: &Tree<'_>, found: &mut dyn FnMut(Process)) -> bool {
        let process = Process(self.rows[at]);
        let is_spared = || {
            tree.spared
                .is_some_and(|spared| spared.includes(process.pid()))
        };
        if process.belongs() || is_spared() {
            return false;
        }
        let parent = process.parent();
        let belongs = parent == tree.root
            || self
                .position(parent)
                .is_some_and(|parent| Process(self.rows[parent]).belongs());
        if belongs {
            self.rows[at][2] = 1;
            found(process);
        }
        belongs
    }

    /// Marks who belongs: again and again, since a child may be listed before its parent.
    fn mark(&mut self, tree: &Tree<'_>, found: &mut dyn FnMut(Process)) {
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

impl Drop for Look {
    fn drop(&mut self) {
        sys::close(self.directory);
        sys::unmap_rows(core::mem::take(&mut self.rows));
    }
}
