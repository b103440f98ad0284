//! Commands that the supervisor starts: their pipes are made here, their processes by it.

use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;
use std::time::Duration;

use cantle_core::sandbox::{SandboxError, SandboxErrorKind, SpawnRequest};
use cantle_supervisor::Writer;
use cantle_supervisor::wire::{Order, Spawn, Stage};
use rustix::net::SocketFlags;
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::time::{Instant, sleep, timeout};

use super::channels::Channels;
pub(super) use super::reports::Reports;
use super::reports::Started;
use super::start::{Launch, Launched, Step};
use super::{Command, Starting};
use crate::sandbox::Shared;
use crate::supervisor::{message_sockets, sealed};

/// How long the supervisor may be too busy to take an order.
const BUSY_DEADLINE: Duration = Duration::from_secs(5);

/// How long it takes at most until a sandbox that has ended is seen to be gone.
const GONE_DEADLINE: Duration = Duration::from_millis(200);

/// How long to wait for the list of a command's processes.
const LIST_DEADLINE: Duration = Duration::from_secs(5);

/// A command that the supervisor knows.
#[derive(Debug)]
pub(super) struct Running {
    /// Names it among the sandbox's commands.
    id: u32,
}

impl Running {
    pub(super) fn kill(&self, shared: &Shared) {
        // Where it fails the sandbox is gone, and they with it.
        let _ = shared.engine.order_surely(Order::Kill { id: self.id });
    }

    pub(super) fn terminate(&self, shared: &Shared) {
        // Where it can't be sent the sandbox is gone, and its reports end.
        let _ = shared.engine.order(Order::Terminate { id: self.id }, &[]);
    }

    pub(super) fn signal(&self, shared: &Shared, pid: i32, signal: i32) {
        let id = self.id;
        // A command that has ended is fine, and so is one that ended with its sandbox.
        let _ = shared.engine.order(Order::Signal { id, pid, signal }, &[]);
    }

    pub(super) async fn list(&self, shared: &Shared) -> Option<Vec<u8>> {
        let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
        let mut ours = pipe::Receiver::from_owned_fd(ours).ok()?;
        let order = Order::List { id: self.id };
        shared.engine.order(order, &[theirs.as_fd()]).ok()?;
        drop(theirs);
        let mut listed = Vec::new();
        timeout(LIST_DEADLINE, ours.read_to_end(&mut listed))
            .await
            .ok()?
            .ok()?;
        Some(listed)
    }
}

/// Has the supervisor start a command.
pub(super) async fn launch(
    shared: &Arc<Shared>,
    launch: &Launch,
    request: &SpawnRequest,
) -> Result<Launched, SandboxError> {
    let id = launch.id;
    let failed = |error| SandboxError::io("failed to prepare the command", error);
    let channels = Channels::new(request, shared.engine.has_terminals).map_err(failed)?;
    let body = sealed(&body(launch, &channels)?).map_err(failed)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (reports, reports_end) = message_sockets(flags).map_err(|error| failed(error.into()))?;
    let mut reports = Reports::new(reports).map_err(failed)?;

    let fds: Vec<BorrowedFd<'_>> = [&body, &reports_end]
        .into_iter()
        .chain(&channels.theirs)
        .map(|end| end.as_fd())
        .collect();
    let asked = Instant::now();
    loop {
        match shared.engine.order(Order::Spawn { id }, &fds) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if asked.elapsed() > BUSY_DEADLINE {
                    return Err(SandboxError::io(
                        "the sandbox takes no more commands",
                        error,
                    ));
                }
                sleep(Duration::from_millis(1)).await;
            }
            Err(_) => return Err(shared.gone()),
            Ok(()) => break,
        }
    }
    let command = Arc::new(Command::new(Arc::clone(shared), Running { id }));
    let starting = Starting(Some(Arc::clone(&command)));
    // The supervisor has its own copies now.
    drop((body, reports_end));
    let (ours, theirs) = channels.split();
    drop(theirs);
    let (pid, master) = match reports.started().await {
        Started::Running(pid, master) => (pid, master),
        Started::Failed(stage, error) => {
            command.settle();
            let step = match stage {
                Stage::Execute => Step::Execute,
                Stage::Directory => Step::Directory,
                Stage::Fork | Stage::Terminal | Stage::Prepare => Step::Prepare,
            };
            return Err(launch.refused(shared, step, error));
        }
        Started::Gone => {
            command.settle();
            return Err(never_started(shared, launch).await);
        }
    };
    Ok(Launched {
        starting,
        command,
        reports,
        pid,
        ends: ours.open(master).map_err(failed)?,
    })
}

/// Why a command's keeper has said nothing: the sandbox is gone, or the keeper was killed for the
/// memory of all.
async fn never_started(shared: &Shared, launch: &Launch) -> SandboxError {
    let deadline = Instant::now() + GONE_DEADLINE;
    while Instant::now() < deadline {
        if shared.is_closed() || shared.engine.is_gone() {
            return shared.gone();
        }
        sleep(Duration::from_millis(1)).await;
    }
    let error = io::Error::from(io::ErrorKind::OutOfMemory);
    launch
        .refused(shared, Step::Prepare, error)
        .with_advice("Memory is used up: remove files, or end what runs in the background.")
}

/// What the supervisor is told.
fn body(launch: &Launch, channels: &Channels) -> Result<Vec<u8>, SandboxError> {
    let program = &launch.program;
    let mut writer = Writer::new();
    writer.spawn(&Spawn {
        directory: &c_string(&launch.directory_path())?,
        takes_terminal: channels.is_terminal(),
        terminal: channels.wanted(),
        programs: count(program.candidates.len()),
        arguments: count(program.arguments.len() + 1),
        variables: count(launch.variables.len()),
    });
    let arguments = std::iter::once(&program.name).chain(&program.arguments);
    for text in program.candidates.iter().chain(arguments) {
        writer.string(&c_string(text)?);
    }
    for (name, value) in &launch.variables {
        let mut variable = name.clone();
        variable.push("=");
        variable.push(value);
        writer.string(&c_string(&variable)?);
    }
    Ok(writer.into_bytes())
}

fn count(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

fn c_string(text: &OsStr) -> Result<CString, SandboxError> {
    CString::new(text.as_bytes()).map_err(|_| {
        let message = "a command, its directory and its variables must be without NUL";
        SandboxError::new(SandboxErrorKind::InvalidInput, message)
    })
}
