//! What the relay reports of a command, as it comes.

use std::os::unix::process::ExitStatusExt as _;

use cantle_core::sandbox::ExitStatus;
use cantle_supervisor::wire::{Report, Stage};
use tokio::sync::mpsc;

/// The end of a command's first process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    pub(super) status: ExitStatus,
    /// Whether it has left nothing running.
    pub(super) alone: bool,
}

/// How a start went.
#[derive(Debug)]
pub(super) enum Started {
    /// The first process, as seen inside the sandbox.
    Running(i32),
    /// What failed, and the kernel's error number.
    Failed(Stage, i32),
    /// The sandbox is gone.
    Gone,
}

/// Reports of one command, and what they have said so far.
#[derive(Debug)]
pub(super) struct Reports {
    reports: mpsc::UnboundedReceiver<Report>,
    ended: Option<Ended>,
    gone: bool,
}

impl Reports {
    pub(super) fn new(reports: mpsc::UnboundedReceiver<Report>) -> Self {
        Self {
            reports,
            ended: None,
            gone: false,
        }
    }

    /// Waits for the first report.
    pub(super) async fn started(&mut self) -> Started {
        match self.reports.recv().await {
            Some(Report::Started { pid }) => Started::Running(pid),
            Some(Report::Failed { stage, errno }) => Started::Failed(stage, errno),
            Some(Report::Ended { .. }) | None => Started::Gone,
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
        match self.reports.recv().await {
            Some(Report::Ended { status, alone, .. }) => {
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
