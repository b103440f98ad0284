//! Commands that the supervisor starts: their pipes are made here, their processes by it.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use cantle_command_driver::{Launch, StartGuard, parse_process_list};
use cantle_core::sandbox::{BackgroundProcess, SandboxError, SpawnRequest};
use cantle_supervisor::Writer;
use cantle_supervisor::wire::{Order, Spawn, StartStage};
use rustix::net::SocketFlags;
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::time::{Instant, sleep, timeout};

use super::{LaunchStep, LaunchedProcess, launch_error};
use crate::command::channels::Channels;
use crate::command::reports::{ProcessReports, StartReport};
use crate::shared::Shared;
use crate::supervisor::{message_sockets, sealed};

/// How long the supervisor's queue of orders may be full.
const BUSY_DEADLINE: Duration = Duration::from_secs(5);

/// How long it takes at most until the end of a sandbox is visible.
const GONE_DEADLINE: Duration = Duration::from_millis(200);

/// How long to wait for the list of a command's processes.
const LIST_DEADLINE: Duration = Duration::from_secs(5);

/// A command of the supervisor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CommandProcess {
    /// Unique among the sandbox's commands.
    id: u32,
    /// The first process, as seen inside the sandbox.
    pid: i32,
}

// Each order fails only if the sandbox is gone, and its commands with it.
impl CommandProcess {
    pub(crate) fn kill(self, shared: &Shared) {
        kill(shared, self.id);
    }

    pub(crate) fn terminate(self, shared: &Shared) {
        let _ = shared.engine.order(Order::Terminate { id: self.id }, &[]);
    }

    pub(crate) fn signal(self, shared: &Shared, signal: i32) {
        let Self { id, pid } = self;
        let _ = shared.engine.order(Order::Signal { id, pid, signal }, &[]);
    }

    pub(crate) async fn list(self, shared: &Shared) -> Option<Vec<BackgroundProcess>> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
        let mut reader = pipe::Receiver::from_owned_fd(reader).ok()?;
        let order = Order::List { id: self.id };
        shared.engine.order(order, &[writer.as_fd()]).ok()?;
        drop(writer);
        let mut list = Vec::new();
        timeout(LIST_DEADLINE, reader.read_to_end(&mut list))
            .await
            .ok()?
            .ok()?;
        Some(parse_process_list(&list))
    }
}

fn kill(shared: &Shared, id: u32) {
    let _ = shared.engine.send_order_blocking(Order::Kill { id });
}

/// Has the supervisor start a command.
pub(crate) async fn launch(
    shared: &Arc<Shared>,
    id: u32,
    launch: &Launch,
    request: &SpawnRequest,
) -> Result<LaunchedProcess, SandboxError> {
    let failed = |error| SandboxError::io("failed to prepare the command", error);
    let channels = Channels::new(request, shared.engine.has_terminals).map_err(failed)?;
    let body = sealed(&body(launch, &channels)?).map_err(failed)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (reports, reports_end) = message_sockets(flags).map_err(|error| failed(error.into()))?;
    let mut reports = ProcessReports::new(reports).map_err(failed)?;

    let fds: Vec<BorrowedFd<'_>> = [&body, &reports_end]
        .into_iter()
        .chain(&channels.command_ends)
        .map(|end| end.as_fd())
        .collect();
    let ordered_at = Instant::now();
    loop {
        match shared.engine.order(Order::Spawn { id }, &fds) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if ordered_at.elapsed() > BUSY_DEADLINE {
                    let doing = "the sandbox accepts no more commands";
                    return Err(SandboxError::io(doing, error));
                }
                sleep(Duration::from_millis(1)).await;
            }
            Err(_) => return Err(shared.gone()),
            Ok(()) => break,
        }
    }
    let guard = StartGuard::new(|| kill(shared, id));
    let Channels {
        command_ends,
        own_ends,
    } = channels;
    // The supervisor has its own copies now.
    drop((body, reports_end, command_ends));
    let (pid, master) = match reports.start().await {
        StartReport::Running(pid, master) => (pid, master),
        StartReport::Failed(stage, error) => {
            guard.disarm();
            let step = match stage {
                StartStage::Execute => LaunchStep::Execute,
                StartStage::Directory => LaunchStep::Directory,
                StartStage::Fork | StartStage::Terminal | StartStage::Prepare => {
                    LaunchStep::Prepare
                }
            };
            return Err(launch_error(shared, launch, step, error));
        }
        StartReport::Gone => {
            guard.disarm();
            return Err(keeper_gone(shared, launch).await);
        }
    };
    let ends = own_ends.open(master).map_err(failed)?;
    guard.disarm();
    Ok(LaunchedProcess {
        process: CommandProcess { id, pid },
        pid,
        reports,
        ends,
    })
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
    launch_error(shared, launch, LaunchStep::Prepare, error)
        .with_advice("Memory is used up: remove files, or end what runs in the background.")
}

/// Encodes a command for the supervisor.
fn body(launch: &Launch, channels: &Channels) -> Result<Vec<u8>, SandboxError> {
    let (words, variables) = (launch.words()?, launch.variables()?);
    let count = |length| u32::try_from(length).unwrap_or(u32::MAX);
    let programs = launch.program.candidates.len();
    let mut writer = Writer::new();
    writer.write(&Spawn {
        directory: &launch.directory_c_string()?,
        takes_terminal: channels.is_host_terminal(),
        terminal: channels.sandbox_terminal(),
        programs: count(programs),
        arguments: count(words.len() - programs),
        variables: count(variables.len()),
    });
    for text in words.iter().chain(&variables) {
        writer.string(text);
    }
    Ok(writer.into_bytes())
}
