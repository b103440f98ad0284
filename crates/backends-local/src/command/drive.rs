//! The task that looks after one command: its time, its end, what it leaves, its output.
//!
//! It does so whether or not anybody polls the command's handle.

use std::future::{Future, pending};
use std::os::unix::process::ExitStatusExt as _;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use cantle_core::sandbox::{
    Background, BackgroundProcess, Exit, ExitStatus, OutputChunk, SandboxError, SandboxErrorKind,
};
use futures_util::future::join;
use rustix::fd::OwnedFd;
use tokio::io::unix::AsyncFd;
use tokio::select;
use tokio::sync::{mpsc, watch};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::Command;
use super::output::Outlet;
use crate::processes::{Process, Suspects};
use crate::sandbox::Shared;

/// A cancelled command has at most this long between TERM and KILL, whatever its request says.
const LONGEST_CANCEL_GRACE: Duration = Duration::from_secs(1);
/// After the end, how long to wait for a slow reader before the end is announced.
const READER_DEADLINE: Duration = Duration::from_millis(550);
/// The longest pause between two looks at a command that was asked to end.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// How it went, for everyone who waits.
#[derive(Clone, Debug)]
pub(super) enum Outcome {
    Ended(Exit),
    /// The sandbox was closed, and the command killed with it.
    Closed,
    /// Somebody else has reaped it.
    Lost,
}

impl Outcome {
    pub(super) fn into_result(self) -> Result<Exit, SandboxError> {
        match self {
            Self::Ended(exit) => Ok(exit),
            Self::Closed => {
                let message = "the sandbox was closed while the command ran";
                Err(SandboxError::new(SandboxErrorKind::Closed, message))
            }
            Self::Lost => {
                let message = "another part of this program reaped the command; its exit code is \
                               unknown";
                Err(SandboxError::new(SandboxErrorKind::Io, message))
            }
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
            course,
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
                course.command.shared.discard(outlet.into_pipe());
            }
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
    /// Readable when the leader has ended.
    pub(super) exited: AsyncFd<OwnedFd>,
    pub(super) started: Instant,
    pub(super) limit: Option<Duration>,
    pub(super) grace: Duration,
    pub(super) cancellation: CancellationToken,
    pub(super) background: Background,
}

impl Course {
    async fn run(&self) -> End {
        let stopped = select! {
            biased;
            _ = self.exited.readable() => None,
            () = self.cancellation.cancelled() => {
                let grace = self.grace.min(LONGEST_CANCEL_GRACE);
                self.stop(Instant::now() + grace).await;
                Some(ExitStatus::Cancelled)
            }
            limit = self.time_to_stop() => {
                self.stop(self.started + limit).await;
                Some(ExitStatus::TimedOut { limit })
            }
        };
        let duration = self.started.elapsed();
        let left = match stopped {
            None => self.look_for_left(duration).await,
            Some(_) => Vec::new(),
        };
        let ended = self.command.leader.reap();
        if ended.is_some() {
            self.command.settle();
        } else {
            // The kernel won't let go of it yet.
            self.command.abandon();
        }
        End {
            status: stopped.or(ended.flatten().map(exit_status)),
            duration,
            left,
        }
    }

    /// Waits until the command must be asked to end, so that the grace lies before the limit.
    async fn time_to_stop(&self) -> Duration {
        let ask = |limit: Duration| limit.saturating_sub(self.grace).max(limit / 2);
        match self.limit {
            Some(limit) => {
                sleep_until(self.started + ask(limit)).await;
                limit
            }
            None => pending().await,
        }
    }

    /// Asks all processes to end, and kills at `kill_at` what has not.
    async fn stop(&self, mut kill_at: Instant) {
        let mut pause = Duration::from_millis(2);
        let mut cancelled = self.cancellation.is_cancelled();
        if Instant::now() < kill_at {
            self.blocking(|command| command.tree().terminate()).await;
        }
        while Instant::now() < kill_at {
            sleep_until(kill_at.min(Instant::now() + pause)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
            if self
                .blocking(|command| command.tree().members().is_empty())
                .await
                == Some(true)
            {
                return;
            }
            if !cancelled && self.cancellation.is_cancelled() {
                cancelled = true;
                kill_at = kill_at.min(Instant::now() + LONGEST_CANCEL_GRACE);
            }
        }
        self.blocking(Command::kill).await;
    }

    /// Finds what a command that ended by itself has left, and kills it where it may not stay.
    async fn look_for_left(&self, ran: Duration) -> Vec<Process> {
        let suspects = Suspects::after(&self.command.leader, ran);
        let include_ours = if suspects.are_few() {
            self.command.has_left(&suspects)
        } else {
            let look = move |command: &Command| command.has_left(&suspects);
            self.blocking(look).await.unwrap_or(false)
        };
        if !include_ours {
            return Vec::new();
        }
        match self.background {
            Background::Kill => {
                self.blocking(Command::kill).await;
                Vec::new()
            }
            Background::Keep => {
                let left = self.blocking(|command| command.tree().members()).await;
                let left = left.unwrap_or_default();
                self.command.shared.keep(&left);
                left
            }
        }
    }

    /// Does `work` off the runtime; `None` where the runtime is going down.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Command) -> T + Send + 'static,
    ) -> Option<T> {
        let command = Arc::clone(&self.command);
        spawn_blocking(move || work(&command)).await.ok()
    }
}

/// The end of a command, before its output has come to its end.
struct End {
    /// `None` where it isn't known.
    status: Option<ExitStatus>,
    duration: Duration,
    left: Vec<Process>,
}

impl End {
    fn outcome(&self, shared: &Shared, stdout: &Outlet, stderr: &Outlet) -> Outcome {
        if shared.is_closed() {
            return Outcome::Closed;
        }
        let Some(status) = self.status else {
            return Outcome::Lost;
        };
        let mut exit = Exit::new(status, self.duration);
        exit.stdout = stdout.report();
        exit.stderr = stderr.report();
        exit.background = self
            .left
            .iter()
            .filter(|process| process.is_alive())
            .map(|process| {
                let pid = process.pid.as_raw_pid().unsigned_abs();
                BackgroundProcess::new(pid, process.command_line())
            })
            .collect();
        Outcome::Ended(exit)
    }
}

fn exit_status(status: std::process::ExitStatus) -> ExitStatus {
    match (status.code(), status.signal()) {
        (Some(code), _) => ExitStatus::Code(code),
        (None, Some(signal)) => ExitStatus::Signal(signal),
        // Only of a process that was stopped or continued, which is none that has ended.
        (None, None) => ExitStatus::Code(-1),
    }
}
