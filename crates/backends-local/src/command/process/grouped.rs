//! Commands that are children of our process, each with a process group of its own.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command as Child, Stdio};
use std::sync::Arc;

use cantle_command_driver::{Launch, Report, Reports};
use cantle_core::sandbox::{BackgroundProcess, ExitStatus, SandboxError, SpawnRequest};
use rustix::process::Signal;
use tokio::sync::oneshot;

use super::{LaunchedProcess, WriteAccess, launch_error};
use crate::command::channels::Channels;
use crate::engine::ProcessGroup;
use crate::shared::Shared;

/// A command and its process group.
#[derive(Debug)]
pub(crate) struct CommandProcess {
    group: Arc<ProcessGroup>,
}

impl CommandProcess {
    /// Returns the first process, and the group.
    pub(crate) fn pid(&self) -> u32 {
        self.group.id().as_raw_nonzero().get().unsigned_abs()
    }

    pub(crate) fn kill(&self, _: &Shared) {
        self.group.signal(Signal::KILL);
        self.group.release();
    }

    pub(crate) fn terminate(&self, _: &Shared) {
        self.group.signal(Signal::TERM);
        // A stopped process gets TERM only when it is continued.
        self.group.signal(Signal::CONT);
    }

    #[expect(clippy::unnecessary_wraps, reason = "shared with supervised commands")]
    pub(crate) fn signal(&self, _: &Shared, signal: i32) -> io::Result<()> {
        if let (Some(signal), false) = (Signal::from_named_raw(signal), self.group.is_reaped()) {
            self.group.signal(signal);
        }
        Ok(())
    }

    /// The members of a group are unknown, but not whether there are any.
    pub(crate) async fn list(&self, _: &Shared) -> Option<Vec<BackgroundProcess>> {
        self.group.wait_reaped().await;
        let group = BackgroundProcess::new(self.pid(), "(processes of this group)");
        (!self.group.is_over()).then(|| vec![group])
    }
}

/// Reports about the first process of a group.
#[derive(Debug)]
pub(crate) struct ProcessReports {
    group: Arc<ProcessGroup>,
    /// `None` once received.
    end: Option<oneshot::Receiver<ExitStatus>>,
}

impl Reports for ProcessReports {
    /// `None` when the first process is reaped.
    async fn next(&mut self) -> Option<Report> {
        if let Some(end) = &mut self.end {
            let status = end.await;
            self.end = None;
            if let Ok(status) = status {
                // Whether other processes are left is unknown.
                let alone = false;
                return Some(Report::Ended { status, alone });
            }
        }
        self.group.wait_reaped().await;
        None
    }
}

/// The members of groups are unknown.
pub(crate) async fn count_processes(_: &Shared) -> Option<u64> {
    None
}

/// Starts a command.
pub(crate) async fn launch(
    shared: &Arc<Shared>,
    id: u32,
    launch: &Launch,
    request: &SpawnRequest,
    _: WriteAccess,
) -> Result<LaunchedProcess, SandboxError> {
    if launch.read_only_except.is_some() {
        return Err(SandboxError::unsupported(
            "there are no read-only commands without a confined sandbox",
        ));
    }
    if request.pty.is_some() {
        return Err(SandboxError::unsupported(
            "there are no terminals without a confined sandbox",
        ));
    }
    // Checks for NUL bytes.
    drop((launch.words()?, launch.variables()?));
    let failed = |error| SandboxError::io("failed to prepare the command", error);
    let Channels {
        command_ends,
        own_ends,
    } = Channels::pipes(&request.stdin).map_err(failed)?;
    let directory = launch.directory_path();
    let mut failure = io::Error::from(io::ErrorKind::NotFound);
    let mut started = None;
    for candidate in &launch.program.candidates {
        let mut child = Child::new(Path::new(&directory).join(candidate));
        child
            .arg0(&launch.program.name)
            .args(&launch.program.arguments)
            .env_clear()
            .envs(&launch.environment)
            .current_dir(&directory);
        let [stdin, stdout, stderr] = command_ends.as_slice() else {
            break;
        };
        let copy = |end: &OwnedFd| end.try_clone().map(Stdio::from);
        child.stdin(copy(stdin).map_err(failed)?);
        child.stdout(copy(stdout).map_err(failed)?);
        child.stderr(copy(stderr).map_err(failed)?);
        match shared.engine.start(id, &mut child) {
            Ok(group) => {
                started = Some(group);
                break;
            }
            Err(error) => match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {}
                // A later directory may have an executable one.
                io::ErrorKind::PermissionDenied => failure = error,
                _ => {
                    failure = error;
                    break;
                }
            },
        }
    }
    drop(command_ends);
    let Some((group, end)) = started else {
        return Err(launch_error(shared, launch.program.exec_error(failure)));
    };
    let process = CommandProcess {
        group: Arc::clone(&group),
    };
    let ends = own_ends.open(None).inspect_err(|_| process.kill(shared));
    let reports = ProcessReports {
        group,
        end: Some(end),
    };
    Ok((process, reports, ends.map_err(failed)?))
}
