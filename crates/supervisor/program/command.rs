//! Commands: for each a keeper, which starts it, and what remembers them.

use core::ffi::CStr;

use crate::files;
use crate::setup::Limits;
use crate::sys::{self, EAGAIN, ENOENT, Errno, Fd, Forked};
use crate::tree::Keepers;
use crate::wire::{Reader, Report, Spawn, Stage};

/// The most commands at once, with those that have left something running.
const MOST: usize = 1024;

/// The commands that have processes, by the number their owner gave them.
pub struct Commands {
    commands: [(u32, i32); MOST],
    count: usize,
}

impl Commands {
    pub fn new() -> Self {
        Self {
            commands: [(0, 0); MOST],
            count: 0,
        }
    }

    fn all(&self) -> &[(u32, i32)] {
        &self.commands[..self.count]
    }

    fn is_full(&self) -> bool {
        self.count == MOST
    }

    fn remember(&mut self, id: u32, keeper: i32) {
        if let Some(slot) = self.commands.get_mut(self.count) {
            *slot = (id, keeper);
            self.count += 1;
        }
    }

    /// The process that keeps a command, while it has processes.
    pub fn keeper(&self, id: u32) -> Option<i32> {
        let found = self.all().iter().find(|(known, _)| *known == id);
        found.map(|(_, keeper)| *keeper)
    }

    /// Takes a process that has ended off the list; whether it was on it.
    pub fn forget(&mut self, pid: i32) -> bool {
        let Some(at) = self.all().iter().position(|(_, keeper)| *keeper == pid) else {
            return false;
        };
        self.count -= 1;
        self.commands[at] = self.commands[self.count];
        true
    }
}

impl Keepers for Commands {
    fn includes(&self, pid: i32) -> bool {
        self.all().iter().any(|(_, keeper)| *keeper == pid)
    }
}

/// Forks the keeper of a new command. `own` are descriptors that commands have no business with.
pub fn start(commands: &mut Commands, id: u32, fds: &[Fd], own: [Fd; 3], limits: &Limits) {
    let [body, report, ref channels @ ..] = *fds else {
        return;
    };
    let forked = if commands.is_full() {
        Err(EAGAIN)
    } else {
        limits.fork()
    };
    match forked {
        Ok(Forked::Child) => {
            own.into_iter().for_each(sys::close);
            keep(body, report, channels, limits)
        }
        Ok(Forked::Parent { child }) => commands.remember(id, child),
        Err(errno) => tell(report, failed(Stage::Fork, errno), &[]),
    }
}

fn failed(stage: Stage, Errno(errno): Errno) -> Report {
    Report::Failed { stage, errno }
}

/// Where the owner is gone, init ends soon.
fn tell(report: Fd, what: Report, fds: &[Fd]) {
    let _ = sys::send(report, &what.encode(), fds);
}

/// Starts the command, reports its end, and stays until nothing that it started is left.
fn keep(body: Fd, report: Fd, channels: &[Fd], limits: &Limits) -> ! {
    sys::set_signal_mask(0);
    sys::set_name(c"cantle-keeper");
    let started = sys::adopt_orphans()
        .map_err(|errno| (Stage::Prepare, errno))
        .and_then(|()| launch(body, report, channels, limits));
    let leader = match started {
        Ok(leader) => leader,
        Err((stage, errno)) => {
            tell(report, failed(stage, errno), &[]);
            sys::exit(0);
        }
    };
    channels.iter().copied().for_each(sys::close);
    while let Ok(Some(ended)) = sys::wait(true, false) {
        if ended.pid != leader {
            continue;
        }
        let usage = ended.usage;
        let seconds = (usage.user_s + usage.system_s) as u64;
        let ended = Report::Ended {
            status: ended.status,
            alone: is_alone(),
            cpu_us: seconds * 1_000_000 + (usage.user_us + usage.system_us) as u64,
            max_rss_kib: usage.max_rss_kib as u64,
        };
        tell(report, ended, &[]);
    }
    sys::exit(0)
}

/// Whether no child is left; those that have ended are let go.
fn is_alone() -> bool {
    loop {
        match sys::wait(false, false) {
            Ok(Some(_)) => {}
            Ok(None) => return false,
            Err(_) => return true,
        }
    }
}

/// Starts the command's first process.
fn launch(body: Fd, report: Fd, channels: &[Fd], limits: &Limits) -> Result<i32, (Stage, Errno)> {
    let at = |stage| move |errno| (stage, errno);
    let bytes = sys::file_length(body)
        .and_then(|length| sys::map_file(body, length))
        .map_err(at(Stage::Prepare))?;
    sys::close(body);
    let mut reader = Reader::new(bytes);
    let invalid = || (Stage::Prepare, sys::EINVAL);
    let spawn = reader.spawn().ok_or_else(invalid)?;
    let terminal = spawn
        .terminal
        .map(Terminal::open)
        .transpose()
        .map_err(at(Stage::Terminal))?;
    let channels = match (&terminal, channels) {
        (Some(terminal), _) => [terminal.slave; 3],
        (None, [stdin, stdout, stderr]) => [*stdin, *stdout, *stderr],
        (None, _) => return Err(invalid()),
    };
    for channel in channels {
        limits.give(channel);
    }
    let task = match spawn.programs {
        0 => Task::Files(reader),
        _ => Task::Program(Program::read(&spawn, &mut reader).ok_or_else(invalid)?),
    };
    // The parent goes on when the program is being executed, or was not; where it has to say yes to
    // that, or nothing is executed, at once.
    let flags = match task {
        Task::Program(_) if !limits.ask_before_programs() => sys::CLONE_VFORK,
        _ => 0,
    };
    match sys::fork(flags).map_err(at(Stage::Fork))? {
        Forked::Child => {
            let (stage, errno) = become_command(&spawn, channels, limits, task);
            tell(report, failed(stage, errno), &[]);
            sys::exit(127)
        }
        Forked::Parent { child } => {
            if limits.ask_before_programs() {
                allow_one_program(child);
            }
            let started = Report::Started { pid: child };
            match &terminal {
                Some(terminal) => {
                    tell(report, started, &[terminal.master]);
                    sys::close(terminal.master);
                    sys::close(terminal.slave);
                }
                None => tell(report, started, &[]),
            }
            Ok(child)
        }
    }
}

/// Lets a child whose filter asks execute one program, and no other: from then on nobody is there
/// to be asked.
fn allow_one_program(child: i32) {
    let mut is_ready = false;
    while let Ok(Some(changed)) = sys::wait(true, true) {
        if changed.is_over() {
            // It could not be executed, and has said so.
            return;
        }
        let answered = if changed.has_executed() {
            let _ = sys::trace_end(child);
            return;
        } else if is_ready {
            sys::trace_continue(child)
        } else {
            is_ready = true;
            sys::trace_start(child).and_then(|()| sys::trace_continue(child))
        };
        if answered.is_err() {
            let _ = sys::kill(child, sys::SIGKILL);
        }
    }
}

/// A terminal of the sandbox's own.
struct Terminal {
    master: Fd,
    slave: Fd,
}

impl Terminal {
    fn open((rows, columns): (u16, u16)) -> sys::Result<Self> {
        let flags = sys::O_RDWR | sys::O_NOCTTY;
        let master = sys::openat(sys::AT_FDCWD, c"/dev/ptmx", flags, 0)?;
        let slave = sys::terminal_peer(master)?;
        sys::set_terminal_size(master, rows, columns)?;
        Ok(Self { master, slave })
    }
}

/// What a command does.
enum Task<'b> {
    /// It executes a program.
    Program(Program<'b>),
    /// It does something with files, without a program.
    Files(Reader<'b>),
}

/// What is executed.
struct Program<'b> {
    /// The candidates, in the order in which they are tried.
    candidates: Reader<'b>,
    candidate_count: u32,
    argv: &'static [*const u8],
    envp: &'static [*const u8],
}

impl<'b> Program<'b> {
    fn read(spawn: &Spawn<'_>, reader: &mut Reader<'b>) -> Option<Self> {
        let candidates = reader.clone();
        for _ in 0..spawn.programs {
            reader.string()?;
        }
        let mut strings = |count: u32| {
            // One more, for the null pointer at the end.
            let pointers = sys::map_pointers(count as usize + 1).ok()?;
            for pointer in &mut pointers[..count as usize] {
                *pointer = reader.string()?.as_ptr().cast();
            }
            Some(&*pointers)
        };
        Some(Self {
            candidates,
            candidate_count: spawn.programs,
            argv: strings(spawn.arguments)?,
            envp: strings(spawn.variables)?,
        })
    }

    /// Executes the first candidate that is there, as a shell does; returns where none can be.
    fn execute(&self) -> Errno {
        let mut candidates = self.candidates.clone();
        let mut answer = ENOENT;
        for _ in 0..self.candidate_count {
            let Some(candidate) = candidates.string() else {
                return sys::EINVAL;
            };
            match self.execute_one(candidate) {
                ENOENT | sys::ENOTDIR => {}
                // There may be another one further on.
                sys::EACCES => answer = sys::EACCES,
                errno => return errno,
            }
        }
        answer
    }

    fn execute_one(&self, path: &CStr) -> Errno {
        // SAFETY: both arrays are strings of the body, which end with NUL, and a null pointer.
        unsafe { sys::execve(path, self.argv.as_ptr(), self.envp.as_ptr()) }
    }
}

/// Becomes the command; returns what failed.
fn become_command(
    spawn: &Spawn<'_>,
    channels: [Fd; 3],
    limits: &Limits,
    task: Task<'_>,
) -> (Stage, Errno) {
    let prepare = || {
        sys::setsid()?;
        for (channel, to) in channels.into_iter().zip(0..) {
            sys::dup_to(channel, Fd(to))?;
        }
        if spawn.takes_terminal || spawn.terminal.is_some() {
            sys::take_terminal(Fd(0))?;
        }
        limits.apply()?;
        if limits.ask_before_programs() {
            sys::be_traced()?;
        }
        Ok(())
    };
    if let Err(errno) = prepare() {
        return (Stage::Prepare, errno);
    }
    let program = match task {
        Task::Program(program) => program,
        Task::Files(reader) => files::run(limits.root(), reader),
    };
    if let Err(errno) = files::enter(limits.root(), spawn.directory) {
        return (Stage::Directory, errno);
    }
    if let Err(errno) = limits.filter() {
        return (Stage::Prepare, errno);
    }
    (Stage::Execute, program.execute())
}
