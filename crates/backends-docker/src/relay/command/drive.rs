//! The task that looks after one command: its time, its end, what it leaves, its output.
//!
//! It does so whether or not anybody polls the command's handle.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use cantle_core::policy::PolicyField;
use cantle_core::sandbox::{
    BackgroundProcess, CommandAction, CommandEvent, CommandLifecycle, Exit, ExitStatus,
    OutputChunk, SandboxError, SandboxErrorKind,
};
use futures_util::future::join;
use tokio::select;
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::Command;
use super::output::{Counted, Outlet};
use super::reports::Reports;
use crate::clock::{now, reached};

/// After the end, how long to wait for a slow reader before the end is announced.
const READER_DEADLINE: Duration = Duration::from_millis(550);
/// How long to wait for the list of a command's processes.
const LIST_DEADLINE: Duration = Duration::from_secs(1);

/// How long a process that was forked may take until it is another program.
const JUST_FORKED: Duration = Duration::from_millis(5);
/// The signal that nothing withstands.
const KILL: i32 = 9;

/// How it went, for everyone who waits.
#[derive(Clone, Debug)]
pub(super) enum Outcome {
    Ended(Exit),
    /// The sandbox was closed, and the command killed with it.
    Closed,
    /// The sandbox has ended by itself.
    Gone,
}

impl Outcome {
    pub(super) fn into_result(self) -> Result<Exit, SandboxError> {
        match self {
            Self::Ended(exit) => Ok(exit),
            Self::Closed => {
                let message = "the sandbox was closed while the command ran";
                Err(SandboxError::new(SandboxErrorKind::Closed, message))
            }
            Self::Gone => Err(SandboxError::gone(
                "the sandbox ended while the command ran",
            )),
        }
    }
}

/// Input that the request brought, being written.
pub(super) type Feed = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What the task owns.
pub(super) struct Driver {
    pub(super) course: Course,
    pub(super) stdout: Outlet,
    pub(super) stderr: Outlet,
    pub(super) reader: mpsc::Sender<Result<OutputChunk, SandboxError>>,
    pub(super) feed: Option<Feed>,
    /// Cancelled when the command has ended.
    pub(super) ended: CancellationToken,
    pub(super) outcome: watch::Sender<Option<Outcome>>,
}

impl Driver {
    pub(super) async fn run(self) {
        let Self {
            mut course,
            stdout,
            stderr,
            reader,
            mut feed,
            ended,
            outcome,
        } = self;
        let counted = [Arc::clone(&stdout.counted), Arc::clone(&stderr.counted)];
        let mut pumps = pin!(join(
            stdout.pump(reader.clone(), &ended),
            stderr.pump(reader, &ended),
        ));
        let mut at_end = false;
        let end = {
            let mut life = pin!(course.run());
            loop {
                select! {
                    end = &mut life => break end,
                    _ = &mut pumps, if !at_end => at_end = true,
                    () = fed(&mut feed), if feed.is_some() => feed = None,
                }
            }
        };
        drop(feed);
        ended.cancel();
        if !at_end {
            at_end = timeout(READER_DEADLINE, &mut pumps).await.is_ok();
        }
        outcome.send_replace(Some(end.outcome(&course.command, &counted)));
        if !at_end {
            pumps.await;
        }
    }
}

async fn fed(feed: &mut Option<Feed>) {
    if let Some(feed) = feed {
        feed.await;
    }
}

/// A command's way from its start to its end.
pub(super) struct Course {
    pub(super) command: Arc<Command>,
    pub(super) reports: Reports,
    pub(super) lifecycle: CommandLifecycle,
    pub(super) cancellation: CancellationToken,
    /// Cancelled when a channel has carried more than it may, which is so much.
    pub(super) too_much_output: CancellationToken,
    pub(super) output_limit: u64,
}

impl Course {
    async fn run(&mut self) -> End {
        let mut left = Vec::new();
        while !self.lifecycle.is_over() {
            let lifecycle = &self.lifecycle;
            let event = select! {
                biased;
                event = told(&mut self.reports, lifecycle.is_running()) => event,
                () = self.cancellation.cancelled(), if lifecycle.heeds_cancellation() => {
                    CommandEvent::Cancelled
                }
                () = reached(lifecycle.deadline()) => CommandEvent::Time,
                () = self.too_much_output.cancelled(), if lifecycle.is_running() => {
                    CommandEvent::Forbidden(ExitStatus::LimitReached {
                        field: PolicyField::Output,
                        limit: self.output_limit,
                    })
                }
            };
            match self.lifecycle.on(event, now()) {
                Some(CommandAction::Terminate) => self.command.id.terminate(),
                Some(CommandAction::Kill) => self.command.id.kill(),
                Some(CommandAction::List) => left = self.command.left().await,
                _ => {}
            }
        }
        self.command.settle();
        End {
            status: self
                .lifecycle
                .stopped()
                .or(self.reports.end().map(|end| end.status)),
            duration: self.lifecycle.took(now()),
            left,
        }
    }
}

/// Waits for what is told of a command's processes next.
async fn told(reports: &mut Reports, is_running: bool) -> CommandEvent {
    if is_running {
        let end = reports.ended().await;
        CommandEvent::Ended {
            alone: end.is_none_or(|end| end.alone),
        }
    } else {
        reports.gone().await;
        CommandEvent::Gone
    }
}

impl Command {
    /// What runs of a command that ended. A list that doesn't come is an empty one: the processes go with
    /// the sandbox.
    async fn left(&self) -> Vec<BackgroundProcess> {
        // What was just forked still looks like its parent.
        sleep(JUST_FORKED).await;
        let listed = timeout(LIST_DEADLINE, self.id.list()).await;
        let listed = listed.unwrap_or_default();
        let lines = listed.split(|byte| *byte == 0);
        lines
            .filter_map(|line| BackgroundProcess::listed(&String::from_utf8_lossy(line)))
            .collect()
    }
}

/// The end of a command, before its output has come to its end.
struct End {
    /// `None` where nobody was left to tell.
    status: Option<ExitStatus>,
    duration: Duration,
    left: Vec<BackgroundProcess>,
}

impl End {
    fn outcome(self, command: &Command, [stdout, stderr]: &[Arc<Counted>; 2]) -> Outcome {
        let stream = &command.id.stream;
        let status = match self.status {
            _ if stream.is_closed() => return Outcome::Closed,
            Some(status) => status,
            None if stream.gone().is_cancelled() => return Outcome::Gone,
            // A command has killed all that there is in its sandbox.
            None => ExitStatus::Signal(KILL),
        };
        let mut exit = Exit::new(status, self.duration);
        exit.stdout = stdout.report();
        exit.stderr = stderr.report();
        exit.background = self.left;
        Outcome::Ended(exit)
    }
}
