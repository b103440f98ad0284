//! The task that looks after one command: its time, its end, what it leaves, its output.
//!
//! It does so whether or not anybody polls the command's handle.

use std::future::{Future, pending};
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
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::Command;
use super::output::Outlet;
use super::running::Reports;
use crate::engine::Mark;
use crate::sandbox::Shared;

/// After the end, how long to wait for a slow reader before the end is announced.
const READER_DEADLINE: Duration = Duration::from_millis(550);

/// How long a process that was forked may take until it is another program.
const JUST_FORKED: Duration = Duration::from_millis(5);

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

/// What the task owns.
pub(super) struct Driver {
    pub(super) course: Course,
    pub(super) stdout: Outlet,
    pub(super) stderr: Outlet,
    pub(super) reader: mpsc::Sender<Result<OutputChunk, SandboxError>>,
    /// Writes the command's input, where the request brought it.
    pub(super) feed: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
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
        let (left, stdout_at_end, stderr_at_end) = {
            let mut pumps = pin!(join(
                stdout.pump(reader.clone(), &ended),
                stderr.pump(reader, &ended),
            ));
            let mut at_end = None;
            let end = {
                let mut life = pin!(course.run());
                loop {
                    select! {
                        end = &mut life => break end,
                        both = &mut pumps, if at_end.is_none() => at_end = Some(both),
                        () = fed(&mut feed), if feed.is_some() => feed = None,
                    }
                }
            };
            drop(feed);
            ended.cancel();
            if at_end.is_none() {
                at_end = timeout(READER_DEADLINE, &mut pumps).await.ok();
            }
            let shared = &course.command.shared;
            outcome.send_replace(Some(end.outcome(shared, &stdout, &stderr)));
            let (stdout_at_end, stderr_at_end) = match at_end {
                Some(both) => both,
                None => pumps.await,
            };
            (end.left, stdout_at_end, stderr_at_end)
        };
        // A process that stays and still writes must neither block nor get a SIGPIPE.
        for (outlet, at_end) in [(stdout, stdout_at_end), (stderr, stderr_at_end)] {
            if !at_end && !left.is_empty() {
                course.command.shared.discard(outlet.into_source());
            }
        }
        let shared = Arc::clone(&course.command.shared);
        if !left.is_empty() && shared.limits.are_polled() {
            shared.attend(course.watch_left());
        }
    }
}

async fn fed(feed: &mut Option<Pin<Box<dyn Future<Output = ()> + Send>>>) {
    if let Some(feed) = feed {
        feed.await;
    }
}

/// A command's way from its start to its end.
pub(super) struct Course {
    pub(super) command: Arc<Command>,
    pub(super) reports: Reports,
    pub(super) lifecycle: CommandLifecycle,
    /// How things were at the start.
    pub(super) mark: Mark,
    pub(super) cancellation: CancellationToken,
    /// Cancelled when a channel has carried more than it may.
    pub(super) too_much_output: CancellationToken,
}

impl Course {
    async fn run(&mut self) -> End {
        let mut left = Vec::new();
        let mut limit_reached = pin!(self.limit_reached());
        while !self.lifecycle.is_over() {
            let lifecycle = &self.lifecycle;
            let event = select! {
                biased;
                event = told(&mut self.reports, lifecycle.is_running()) => event,
                () = self.cancellation.cancelled(), if lifecycle.heeds_cancellation() => {
                    CommandEvent::Cancelled
                }
                () = reached(lifecycle.deadline()) => CommandEvent::Time,
                status = &mut limit_reached, if lifecycle.is_running() => {
                    CommandEvent::Forbidden(status)
                }
            };
            match self.lifecycle.on(event, now()) {
                Some(CommandAction::Terminate) => self.command.terminate(),
                Some(CommandAction::Kill) => self.command.kill(),
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
            mark: self.mark,
        }
    }

    /// Waits until the command has used more than a limit that we keep ourselves.
    fn limit_reached(&self) -> impl Future<Output = ExitStatus> + use<> {
        let command = Arc::clone(&self.command);
        let too_much_output = self.too_much_output.clone();
        async move {
            let limits = &command.shared.limits;
            let (field, limit) = select! {
                () = too_much_output.cancelled() => {
                    (PolicyField::Output, limits.output_bytes.unwrap_or_default())
                }
                reached = limits.reached(&command) => reached,
            };
            ExitStatus::LimitReached { field, limit }
        }
    }

    /// Keeps what the command has left within the limits that we keep ourselves, while it runs.
    async fn watch_left(mut self) {
        let command = Arc::clone(&self.command);
        let shared = &command.shared;
        let (field, limit) = select! {
            () = self.reports.gone() => return,
            reached = shared.limits.reached(&command) => reached,
        };
        command.kill();
        shared.note(format!(
            "What an earlier command had left running was stopped: it passed the limit `{field}` of {limit}."
        ));
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
        let listed = self.list().await.unwrap_or_default();
        let lines = listed.split(|byte| *byte == 0);
        lines
            .filter_map(|line| BackgroundProcess::listed(&String::from_utf8_lossy(line)))
            .collect()
    }
}

/// Waits for this time; for ever, where there is none.
async fn reached(time: Option<std::time::Instant>) {
    match time {
        Some(time) => sleep_until(time.into()).await,
        None => pending().await,
    }
}

/// The runtime's time.
pub(super) fn now() -> std::time::Instant {
    Instant::now().into_std()
}

/// The end of a command, before its output has come to its end.
struct End {
    /// `None` where nobody was left to tell.
    status: Option<ExitStatus>,
    duration: Duration,
    left: Vec<BackgroundProcess>,
    /// How things were at the start.
    mark: Mark,
}

impl End {
    fn outcome(&self, shared: &Shared, stdout: &Outlet, stderr: &Outlet) -> Outcome {
        if shared.is_closed() {
            return Outcome::Closed;
        }
        let status = match self.status {
            Some(status) => status,
            None if shared.engine.is_gone() => return Outcome::Gone,
            // A command has killed all that there is in its sandbox.
            None => ExitStatus::Signal(rustix::process::Signal::KILL.as_raw()),
        };
        let (status, notes) = shared.engine.told(self.mark, status);
        let mut exit = Exit::new(status, self.duration);
        exit.notes = notes;
        exit.notes.extend(shared.take_notes());
        exit.stdout = stdout.report();
        exit.stderr = stderr.report();
        exit.background.clone_from(&self.left);
        Outcome::Ended(exit)
    }
}
