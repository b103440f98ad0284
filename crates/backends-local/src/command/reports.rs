//! The supervisor's reports about a command.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use cantle_command_driver::{Report, Reports, exit_status};
use cantle_supervisor::wire;
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

impl ProcessReports {
    /// Takes reports from a non-blocking socket.
    pub(super) fn new(socket: OwnedFd) -> io::Result<Self> {
        Ok(Self {
            socket: register(socket, Interest::READABLE)?,
        })
    }

    /// Waits for a report, and for the master of the terminal that the sandbox has made.
    ///
    /// Returns `None` when nothing of the command is left, or its keeper or the whole sandbox is gone.
    pub(super) async fn receive(&self) -> Option<(wire::Report, Option<OwnedFd>)> {
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
            if let (wire::Report::Ended { status, alone }, _) = self.receive().await? {
                let status = exit_status(status);
                return Some(Report::Ended { status, alone });
            }
        }
    }
}
