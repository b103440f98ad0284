//! The supervisor's reports about a command.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use cantle_command_driver::{Report, Reports, exit_status};
use cantle_supervisor::wire::{self, StartStage};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::readiness::register;
use crate::supervisor;

/// The socket on which the supervisor reports about one command. It is closed when nothing of the command
/// is left.
#[derive(Debug)]
pub(crate) struct ProcessReports {
    socket: AsyncFd<OwnedFd>,
}

/// The first report.
#[derive(Debug)]
pub(super) enum StartReport {
    /// The first process, as seen inside the sandbox, and the master of its terminal if the sandbox
    /// made one.
    Running(i32, Option<OwnedFd>),
    Failed(StartStage, io::Error),
    /// The command's keeper or the whole sandbox is gone.
    Gone,
}

impl ProcessReports {
    /// Takes reports from a non-blocking socket.
    pub(super) fn new(socket: OwnedFd) -> io::Result<Self> {
        Ok(Self {
            socket: register(socket, Interest::READABLE)?,
        })
    }

    /// Waits for the first report.
    pub(super) async fn start(&mut self) -> StartReport {
        match self.receive().await {
            Some((wire::Report::Started { pid }, terminal)) => StartReport::Running(pid, terminal),
            Some((wire::Report::Failed { stage, errno }, _)) => {
                StartReport::Failed(stage, io::Error::from_raw_os_error(errno))
            }
            Some((wire::Report::Ended { .. }, _)) | None => StartReport::Gone,
        }
    }

    async fn receive(&self) -> Option<(wire::Report, Option<OwnedFd>)> {
        loop {
            let mut ready = self.socket.readable().await.ok()?;
            if let Ok(report) = ready.try_io(|socket| supervisor::report(socket.as_fd())) {
                return report.ok()?;
            }
        }
    }
}

impl Reports for ProcessReports {
    async fn next(&mut self) -> Option<Report> {
        loop {
            if let (wire::Report::Ended { status, alone, .. }, _) = self.receive().await? {
                let status = exit_status(status);
                return Some(Report::Ended { status, alone });
            }
        }
    }
}
