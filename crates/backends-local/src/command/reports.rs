//! What the supervisor reports of a command, as it comes.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;

use cantle_core::sandbox::ExitStatus;
use cantle_supervisor::wire::{Report, Stage};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::watched;
use crate::supervisor;

/// The end of a command's first process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    pub(super) status: ExitStatus,
    /// Whether it has left nothing running.
    pub(super) alone: bool,
}

/// Reports of one command, and what they have said so far.
#[derive(Debug)]
pub(super) struct Reports {
    socket: AsyncFd<OwnedFd>,
    ended: Option<Ended>,
    gone: bool,
}

/// How a start went.
#[derive(Debug)]
pub(super) enum Started {
    /// The first process, as seen inside the sandbox, and the master of its terminal where the
    /// sandbox made one.
    Running(i32, Option<OwnedFd>),
    Failed(Stage, io::Error),
    /// The sandbox is gone.
    Gone,
}

impl Reports {
    /// Takes reports from a socket that doesn't block.
    pub(super) fn new(socket: OwnedFd) -> io::Result<Self> {
        Ok(Self {
            socket: watched(socket, Interest::READABLE)?,
            ended: None,
            gone: false,
        })
    }

    /// Waits for the first report.
    pub(super) async fn started(&mut self) -> Started {
        match self.next().await {
            Some((Report::Started { pid }, terminal)) => Started::Running(pid, terminal),
            Some((Report::Failed { stage, errno }, _)) => {
                Started::Failed(stage, io::Error::from_raw_os_error(errno))
            }
            Some((Report::Ended { .. }, _)) | None => Started::Gone,
        }
    }

    /// Waits for the end of the first process; `None` where it will not be told. Cancel-safe.
    pub(super) async fn ended(&mut self) -> Option<Ended> {
        while self.ended.is_none() && !self.gone {
            self.take().await;
        }
        self.ended
    }

    /// Waits until nothing of the command is left. Cancel-safe.
    pub(super) async fn gone(&mut self) {
        while !self.gone {
            self.take().await;
        }
    }

    /// What was said of the end so far.
    pub(super) fn end(&self) -> Option<Ended> {
        self.ended
    }

    async fn take(&mut self) {
        match self.next().await {
            Some((Report::Ended { status, alone, .. }, _)) => {
                self.ended = Some(Ended {
                    status: exit_status(status),
                    alone,
                });
                self.gone |= alone;
            }
            Some(_) => {}
            None => self.gone = true,
        }
    }

    async fn next(&self) -> Option<(Report, Option<OwnedFd>)> {
        loop {
            let mut ready = self.socket.readable().await.ok()?;
            if let Ok(report) = ready.try_io(|socket| supervisor::report(socket.as_fd())) {
                return report.ok()?;
            }
        }
    }
}

fn exit_status(status: i32) -> ExitStatus {
    let status = std::process::ExitStatus::from_raw(status);
    match (status.code(), status.signal()) {
        (Some(code), _) => ExitStatus::Code(code),
        (None, Some(signal)) => ExitStatus::Signal(signal),
        // Only of a process that was stopped, which is none that has ended.
        (None, None) => ExitStatus::Code(-1),
    }
}
