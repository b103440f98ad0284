//! Commands that the supervisor starts: their pipes are made here, their processes by it.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use cantle_command_driver::{Launch, OnDrop, Reports, exit_status, parse_process_list};
use cantle_core::sandbox::{BackgroundProcess, SandboxError, SpawnRequest};
use cantle_supervisor::Writer;
use cantle_supervisor::filter;
use cantle_supervisor::wire::{FileAccess, Order, Report, Spawn, StartStage};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncReadExt as _, Interest};
use tokio::net::unix::pipe;
use tokio::time::{Instant, sleep, timeout};

use super::{LaunchedProcess, WriteAccess, launch_error};
use crate::command::channels::Channels;
use crate::readiness::register;
use crate::shared::Shared;
use crate::supervisor::{message_sockets, report, sealed};

/// How long the supervisor's queue of orders may be full.
const BUSY_DEADLINE: Duration = Duration::from_secs(5);

/// How long it takes at most until the end of a sandbox is visible.
const GONE_DEADLINE: Duration = Duration::from_secs(1);

/// How long to wait for an answer of the supervisor.
const ANSWER_DEADLINE: Duration = Duration::from_secs(5);

/// A command of the supervisor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CommandProcess {
    /// Unique among the sandbox's commands.
    id: u32,
    /// The first process, as seen inside the sandbox.
    pid: i32,
}

impl CommandProcess {
    pub(crate) fn pid(self) -> u32 {
        self.pid.unsigned_abs()
    }

    pub(crate) fn kill(self, shared: &Shared) {
        kill(shared, self.id);
    }

    pub(crate) fn terminate(self, shared: &Shared) {
        // It fails only if the sandbox is gone, and its commands with it.
        let _ = shared.engine.post(Order::Terminate { id: self.id });
    }

    pub(crate) fn signal(self, shared: &Shared, signal: i32) -> io::Result<()> {
        let Self { id, pid } = self;
        match shared.engine.post(Order::Signal { id, pid, signal }) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(error),
            // The process ends with the sandbox.
            _ => Ok(()),
        }
    }

    pub(crate) async fn list(self, shared: &Shared) -> Option<Vec<BackgroundProcess>> {
        let list = answer(shared, Order::List { id: self.id }).await?;
        Some(parse_process_list(&list))
    }
}

/// The socket on which the supervisor reports about one command. It is closed when nothing of the command
/// is left.
#[derive(Debug)]
pub(crate) struct ProcessReports {
    socket: AsyncFd<OwnedFd>,
}

impl ProcessReports {
    /// Waits for a report, and for the master of the terminal that the sandbox has made.
    ///
    /// Returns `None` when nothing of the command is left, or its keeper or the whole sandbox is gone.
    async fn receive(&self) -> Option<(Report, Option<OwnedFd>)> {
        loop {
            let mut ready = self.socket.readable().await.ok()?;
            if let Ok(received) = ready.try_io(|socket| report(socket.as_fd())) {
                return received.ok()?;
            }
        }
    }
}

impl Reports for ProcessReports {
    async fn next(&mut self) -> Option<cantle_command_driver::Report> {
        loop {
            if let (Report::Ended { status, alone }, _) = self.receive().await? {
                let status = exit_status(status);
                return Some(cantle_command_driver::Report::Ended { status, alone });
            }
        }
    }
}

/// Counts the processes of all commands; `None` if the supervisor does not respond.
pub(crate) async fn count_processes(shared: &Shared) -> Option<u64> {
    let count = answer(shared, Order::Count).await?;
    let count = u32::from_le_bytes(count.try_into().ok()?);
    Some(count.into())
}

/// Returns the supervisor's answer to an order, which it writes to a pipe.
async fn answer(shared: &Shared, order: Order) -> Option<Vec<u8>> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
    let mut reader = pipe::Receiver::from_owned_fd(reader).ok()?;
    let mut content = Vec::new();
    let answered = timeout(ANSWER_DEADLINE, async {
        shared.engine.order(order, &[writer.as_fd()]).await?;
        drop(writer);
        reader.read_to_end(&mut content).await
    });
    answered.await.ok()?.ok()?;
    Some(content)
}

fn kill(shared: &Shared, id: u32) {
    let _ = shared.engine.post(Order::Kill { id });
}

/// Has the supervisor start a command.
pub(crate) async fn launch(
    shared: &Arc<Shared>,
    id: u32,
    launch: &Launch,
    request: &SpawnRequest,
    access: WriteAccess,
) -> Result<LaunchedProcess, SandboxError> {
    let failed = |error| SandboxError::io("failed to prepare the command", error);
    let channels = Channels::new(request, shared.engine.has_terminals).map_err(failed)?;
    if launch.read_only_except.is_some() && access == WriteAccess::RemovalOnly {
        return Err(over_limit(io::ErrorKind::StorageFull.into()));
    }
    let body = sealed(&body(launch, &channels, access)?).map_err(failed)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (reports, reports_end) = message_sockets(flags).map_err(failed)?;
    let socket = register(reports, Interest::READABLE).map_err(failed)?;
    let reports = ProcessReports { socket };

    let fds: Vec<BorrowedFd<'_>> = [&body, &reports_end]
        .into_iter()
        .chain(&channels.command_ends)
        .map(|end| end.as_fd())
        .collect();
    let ordered = shared.engine.order(Order::Spawn { id }, &fds);
    match timeout(BUSY_DEADLINE, ordered).await {
        Ok(Ok(())) => {}
        // Too many descriptors of the user are in flight.
        Ok(Err(error)) if Errno::from_io_error(&error) == Some(Errno::TOOMANYREFS) => {
            return Err(failed(error));
        }
        Ok(Err(_)) => return Err(shared.gone()),
        Err(_) => {
            let doing = "the sandbox accepts no more commands";
            return Err(SandboxError::io(doing, io::ErrorKind::WouldBlock.into()));
        }
    }
    let guard = OnDrop::new(|| kill(shared, id));
    let Channels {
        command_ends,
        own_ends,
    } = channels;
    // The supervisor has its own copies now.
    drop((body, reports_end, command_ends));
    let (pid, master) = match reports.receive().await {
        Some((Report::Started { pid }, master)) => (pid, master),
        report => {
            guard.disarm();
            return Err(match report {
                Some((Report::Failed { stage, errno }, _)) => {
                    let error = io::Error::from_raw_os_error(errno);
                    start_error(shared, launch, access, stage, error)
                }
                _ => keeper_gone(shared, launch).await,
            });
        }
    };
    let ends = own_ends.open(master).map_err(failed)?;
    guard.disarm();
    Ok((CommandProcess { id, pid }, reports, ends))
}

/// The error for a start of which a stage failed.
fn start_error(
    shared: &Shared,
    launch: &Launch,
    access: WriteAccess,
    stage: StartStage,
    error: io::Error,
) -> SandboxError {
    let error = match stage {
        StartStage::Prepare if access == WriteAccess::RemovalOnly => return over_limit(error),
        StartStage::Prepare if launch.read_only_except.is_some() => return not_read_only(&error),
        StartStage::Execute => launch.program.exec_error(error),
        StartStage::Directory => {
            let directory = &launch.directory;
            SandboxError::io(format!("failed to start in `{directory}`"), error)
        }
        StartStage::Fork | StartStage::Terminal | StartStage::Prepare => {
            let name = launch.program.name.to_string_lossy();
            SandboxError::io(format!("failed to create a process for `{name}`"), error)
        }
    };
    launch_error(shared, error)
}

/// The error for a command that can't start because the sandbox's files exceed a limit.
fn over_limit(error: io::Error) -> SandboxError {
    let doing = "the sandbox's files exceed a limit, and this command can't be started so that it only removes files";
    SandboxError::io(doing, error).with_advice("Remove files first.")
}

/// The error for a read-only command that can't be restricted.
fn not_read_only(error: &io::Error) -> SandboxError {
    let message = format!("a command can't be made read-only here: {error}");
    SandboxError::unsupported(message)
        .with_advice("It needs Landlock 3 (Linux 6.2), and a directory that exists.")
}

/// The error for a command whose keeper did not report: the sandbox is gone, or the kernel killed the
/// keeper for memory.
async fn keeper_gone(shared: &Shared, launch: &Launch) -> SandboxError {
    let deadline = Instant::now() + GONE_DEADLINE;
    while Instant::now() < deadline {
        if shared.is_closed() || shared.engine.is_gone() {
            return shared.gone();
        }
        sleep(Duration::from_millis(1)).await;
    }
    let error = io::Error::from(io::ErrorKind::OutOfMemory);
    start_error(shared, launch, WriteAccess::Full, StartStage::Fork, error)
        .with_advice("Memory is used up: remove files, or end what runs in the background.")
}

/// Encodes a command for the supervisor.
fn body(
    launch: &Launch,
    channels: &Channels,
    access: WriteAccess,
) -> Result<Vec<u8>, SandboxError> {
    let writable = launch.read_only_except_c_string()?;
    let filter = filter::without_metadata_changes();
    let files = match (&writable, access) {
        (Some(directory), _) => FileAccess::ReadOnlyExcept {
            directory,
            filter: &filter,
        },
        (None, WriteAccess::Full) => FileAccess::Full,
        (None, WriteAccess::RemovalOnly) => FileAccess::RemovalOnly,
    };
    let (words, variables) = (launch.words()?, launch.variables()?);
    let count = |length| u32::try_from(length).unwrap_or(u32::MAX);
    let programs = launch.program.candidates.len();
    let mut writer = Writer::new();
    writer.write(&Spawn {
        directory: &launch.directory_c_string()?,
        takes_terminal: channels.is_host_terminal(),
        terminal: channels.sandbox_terminal(),
        files,
        programs: count(programs),
        arguments: count(words.len() - programs),
        variables: count(variables.len()),
    });
    for text in words.iter().chain(&variables) {
        writer.string(text);
    }
    Ok(writer.into_bytes())
}
