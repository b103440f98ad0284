//! Commands: the keeper of each, and the table of keepers.

use core::ffi::CStr;

use crate::files;
use crate::setup::{self, CommandProfile};
use crate::sys::{self, EAGAIN, ENOENT, Errno, Fd, Forked, List};
use crate::tree::Tree;
use crate::wire::{FileAccess, Reader, Report, Spawn, StartStage};

/// Maximum number of commands that have processes.
const MAX_COMMANDS: usize = 1024;

/// The commands that have processes: the owner's id, and the keeper's process id.
pub struct CommandTable(List<(u32, i32), MAX_COMMANDS>);

impl CommandTable {
    pub fn new() -> Self {
        Self(List::new())
    }

    /// Returns the keeper of a command that has processes.
    pub fn keeper(&self, id: u32) -> Option<i32> {
        let found = self.0.iter().find(|(known, _)| *known == id);
        found.map(|(_, keeper)| *keeper)
    }

    /// Returns the number of keepers.
    pub fn keepers(&self) -> usize {
        self.0.len()
    }

    /// Removes a keeper that has ended; returns whether it was one.
    pub fn forget(&mut self, pid: i32) -> bool {
        let found = self.0.iter().position(|(_, keeper)| *keeper == pid);
        found.map(|at| self.0.swap_remove(at)).is_some()
    }

    /// Whether a process is the keeper of a command.
    pub fn includes(&self, pid: i32) -> bool {
        self.0.iter().any(|(_, keeper)| *keeper == pid)
    }
}

/// Forks the keeper of a new command. `private` are descriptors that commands must not inherit.
pub fn start(
    commands: &mut CommandTable,
    id: u32,
    fds: &[Fd],
    private: [Fd; 3],
    profile: &CommandProfile,
) {
    let [body, report, ref stdio @ ..] = *fds else {
        return;
    };
    let has_room = if commands.0.is_full() {
        Err(EAGAIN)
    } else {
        Ok(())
    };
    match has_room.and_then(|()| profile.fork()) {
        Ok(Forked::Child) => {
            private.into_iter().for_each(sys::close);
            keep(body, report, stdio, profile)
        }
        Ok(Forked::Parent { child }) => drop(commands.0.push((id, child))),
        Err(errno) => send_report(report, failed(StartStage::Fork, errno)),
    }
}

fn failed(stage: StartStage, Errno(errno): Errno) -> Report {
    Report::Failed { stage, errno }
}

/// Sends a report. If the owner is gone, init ends soon.
fn send_report(socket: Fd, report: Report) {
    let _ = sys::send(socket, &report.encode(), &[]);
}

/// Starts the command, reports its end, and stays until no descendant is left.
fn keep(body: Fd, report: Fd, stdio: &[Fd], profile: &CommandProfile) -> ! {
    sys::set_signal_mask(0);
    sys::set_name(c"cantle-keeper");
    let started = sys::adopt_orphans()
        .map_err(|errno| (StartStage::Prepare, errno))
        .and_then(|()| launch(body, report, stdio, profile));
    let leader = match started {
        Ok(leader) => leader,
        Err((stage, errno)) => {
            send_report(report, failed(stage, errno));
            sys::exit(0);
        }
    };
    stdio.iter().copied().for_each(sys::close);
    while let Ok(Some(ended)) = sys::wait(true, false) {
        if ended.pid != leader {
            continue;
        }
        let (status, alone) = (ended.status, is_alone());
        send_report(report, Report::Ended { status, alone });
    }
    sys::exit(0)
}

/// Reaps ended children; returns whether no child is left.
fn is_alone() -> bool {
    loop {
        match sys::wait(false, false) {
            Ok(Some(_)) => {}
            Ok(None) => return false,
            Err(_) => return true,
        }
    }
}

/// Starts the command's first process and returns its id.
fn launch(
    body: Fd,
    report: Fd,
    stdio: &[Fd],
    profile: &CommandProfile,
) -> Result<i32, (StartStage, Errno)> {
    let at = |stage| move |errno| (stage, errno);
    let mut reader = Reader::new(sys::map_file(body).map_err(at(StartStage::Prepare))?);
    let invalid = || (StartStage::Prepare, sys::EINVAL);
    let spawn = reader.read::<Spawn<'_>>().ok_or_else(invalid)?;
    let terminal = spawn
        .terminal
        .map(Terminal::open)
        .transpose()
        .map_err(at(StartStage::Terminal))?;
    let stdio = match (&terminal, stdio) {
        (Some(terminal), _) => [terminal.slave; 3],
        (None, [stdin, stdout, stderr]) => [*stdin, *stdout, *stderr],
        (None, _) => return Err(invalid()),
    };
    for stream in stdio {
        profile.give(stream);
    }
    let action = match spawn.programs {
        0 => CommandAction::FileTask(reader),
        _ => CommandAction::Program(Program::read(&spawn, &mut reader).ok_or_else(invalid)?),
    };
    // With vfork semantics a failed exec is reported before the start. Not possible where the parent must
    // answer the child's filter, or where nothing is executed.
    let flags = match action {
        CommandAction::Program(_) if !profile.asks_before_exec() => sys::CLONE_VFORK,
        _ => 0,
    };
    match sys::fork(flags).map_err(at(StartStage::Fork))? {
        Forked::Child => {
            let (stage, errno) = become_command(&spawn, stdio, profile, action);
            send_report(report, failed(stage, errno));
            sys::exit(127)
        }
        Forked::Parent { child } => {
            if profile.asks_before_exec() {
                allow_one_program(child);
            }
            let started = Report::Started { pid: child };
            match &terminal {
                Some(terminal) => {
                    let sent = sys::send(report, &started.encode(), &[terminal.master]);
                    sys::close(terminal.master);
                    sys::close(terminal.slave);
                    // The kernel refuses it if too many descriptors of the user are in flight. Without the
                    // terminal, the command is of no use.
                    if let Err(errno) = sent {
                        // It may have started others by now.
                        Tree::kill_descendants();
                        return Err((StartStage::Terminal, errno));
                    }
                }
                None => send_report(report, started),
            }
            Ok(child)
        }
    }
}

/// Lets a child whose filter asks its tracer execute one program. Afterwards it has no tracer, and the
/// kernel refuses every further `execve`.
fn allow_one_program(child: i32) {
    let mut is_ready = false;
    while let Ok(Some(changed)) = sys::wait(true, true) {
        if changed.is_over() {
            // The program could not be executed; the child has reported it.
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

/// A pseudo-terminal of the sandbox.
struct Terminal {
    master: Fd,
    slave: Fd,
}

impl Terminal {
    fn open((rows, columns): (u16, u16)) -> sys::Result<Self> {
        let flags = sys::O_RDWR | sys::O_NOCTTY;
        let master = sys::open(c"/dev/ptmx", flags)?;
        let slave = sys::terminal_peer(master)?;
        sys::set_terminal_size(master, rows, columns)?;
        Ok(Self { master, slave })
    }
}

/// The action of a command's first process.
enum CommandAction<'b> {
    Program(Program<'b>),
    /// A file task, which executes no program.
    FileTask(Reader<'b>),
}

/// Arguments of `execve`.
struct Program<'b> {
    /// Candidate paths, in the order in which they are tried.
    candidates: Reader<'b>,
    candidate_count: u32,
    argv: &'static [*const u8],
    envp: &'static [*const u8],
}

impl<'b> Program<'b> {
    fn read(spawn: &Spawn<'_>, reader: &mut Reader<'b>) -> Option<Self> {
        let candidates = reader.clone();
        for _ in 0..spawn.programs {
            reader.read::<&CStr>()?;
        }
        let mut strings = |count: u32| {
            // One more for the null pointer at the end.
            let pointers = sys::map::<*const u8>(count as usize + 1).ok()?;
            for pointer in &mut pointers[..count as usize] {
                *pointer = reader.read::<&CStr>()?.as_ptr().cast();
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

    /// Executes the first candidate that exists, as a shell does; returns only on failure.
    fn execute(&self) -> Errno {
        let mut candidates = self.candidates.clone();
        let mut answer = ENOENT;
        for _ in 0..self.candidate_count {
            let Some(candidate) = candidates.read() else {
                return sys::EINVAL;
            };
            match self.execute_one(candidate) {
                ENOENT | sys::ENOTDIR => {}
                // A later candidate may be executable.
                sys::EACCES => answer = sys::EACCES,
                errno => return errno,
            }
        }
        answer
    }

    fn execute_one(&self, path: &CStr) -> Errno {
        // SAFETY: both arrays point to NUL-terminated strings of the body and end with a null pointer.
        unsafe { sys::execve(path, self.argv.as_ptr(), self.envp.as_ptr()) }
    }
}

/// Turns the calling process into the command; returns only on failure.
fn become_command(
    spawn: &Spawn<'_>,
    stdio: [Fd; 3],
    profile: &CommandProfile,
    action: CommandAction<'_>,
) -> (StartStage, Errno) {
    let prepare = || {
        sys::setsid()?;
        for (stream, to) in stdio.into_iter().zip(0..) {
            sys::dup_to(stream, Fd(to))?;
        }
        if spawn.takes_terminal || spawn.terminal.is_some() {
            sys::take_terminal(Fd(0))?;
        }
        match action {
            CommandAction::Program(_) => profile.apply()?,
            CommandAction::FileTask(_) => profile.apply_to_file_task()?,
        }
        match spawn.files {
            FileAccess::Full => {}
            FileAccess::RemovalOnly => setup::forbid_writing()?,
            FileAccess::ReadOnlyExcept { directory, filter } => {
                setup::forbid_changes_outside(directory)?;
                sys::seccomp_filter(filter)?;
            }
        }
        if profile.asks_before_exec() {
            sys::be_traced()?;
        }
        Ok(())
    };
    if let Err(errno) = prepare() {
        return (StartStage::Prepare, errno);
    }
    let program = match action {
        CommandAction::Program(program) => program,
        CommandAction::FileTask(reader) => files::run(profile.root, reader),
    };
    if let Err(errno) = files::enter(profile.root, spawn.directory) {
        return (StartStage::Directory, errno);
    }
    if let Err(errno) = profile.install_filter() {
        return (StartStage::Prepare, errno);
    }
    (StartStage::Execute, program.execute())
}
