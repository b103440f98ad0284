//! The task that looks after one command: its time, its end, what it leaves, its output.
//!
//! It does so whether or not anybody polls the command's handle.

use std::future::{Future, pending};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use cantle_core::policy::PolicyField;
use cantle_core::sandbox::{
    Background, BackgroundProcess, Exit, ExitStatus, OutputChunk, SandboxError, SandboxErrorKind,
};
use futures_util::future::join;
use tokio::select;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::Command;
use super::output::{Counted, Outlet};
use super::reports::Reports;

/// A cancelled command has at most this long between TERM and KILL, whatever its request says.
const LONGEST_CANCEL_GRACE: Duration = Duration::from_secs(1);
/// How long to wait for the death of what was killed; longer only where the kernel is stuck.
const KILL_DEADLINE: Duration = Duration::from_millis(400);
/// After the end, how long to wait for a slow reader before the end is announced.
const READER_DEADLINE: Duration = Duration::from_millis(550);
/// How long to wait for the list of a command's processes.
const LIST_DEADLINE: Duration = Duration::from_secs(1);

/// How long a process that was forked may take until it is another program.
const JUST_FORKED: Duration = Duration::from_millis(5);
/// The signal that nothing withstands.
const KILL: i32 = 9;

/// Characters of a command line that are listed.
const LONG_COMMAND: usize = 120;

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
    pub(super) started: Instant,
    pub(super) limit: Option<Duration>,
    pub(super) grace: Duration,
    pub(super) cancellation: CancellationToken,
    pub(super) background: Background,
    /// Cancelled when a channel has carried more than it may, which is so much.
    pub(super) too_much_output: CancellationToken,
    pub(super) output_limit: u64,
}

impl Course {
    async fn run(&mut self) -> End {
        let stop_in = self.time_to_stop();
        let stopped = select! {
            biased;
            _ = self.reports.ended() => None,
            () = self.cancellation.cancelled() => Some(ExitStatus::Cancelled),
            limit = stop_in => Some(ExitStatus::TimedOut { limit }),
            () = self.too_much_output.cancelled() => Some(ExitStatus::LimitReached {
                field: PolicyField::Output,
                limit: self.output_limit,
            }),
        };
        let duration;
        let mut left = Vec::new();
        match stopped {
            None => {
                duration = self.started.elapsed();
                if self.reports.end().is_some_and(|end| !end.alone) {
                    left = self.look_after_left().await;
                }
            }
            Some(ExitStatus::TimedOut { limit }) => {
                self.stop(self.started + limit).await;
                duration = self.started.elapsed();
            }
            Some(ExitStatus::LimitReached { .. }) => {
                self.kill().await;
                duration = self.started.elapsed();
            }
            Some(_) => {
                let grace = self.grace.min(LONGEST_CANCEL_GRACE);
                self.stop(Instant::now() + grace).await;
                duration = self.started.elapsed();
            }
        }
        self.command.settle();
        End {
            status: stopped.or(self.reports.end().map(|end| end.status)),
            duration,
            left,
        }
    }

    /// Waits until the command must be asked to end, so that the grace lies before the limit.
    fn time_to_stop(&self) -> impl Future<Output = Duration> + use<> {
        let ask = self.limit.map(|limit| {
            let after = limit.saturating_sub(self.grace).max(limit / 2);
            (limit, self.started + after)
        });
        async move {
            match ask {
                Some((limit, at)) => {
                    sleep_until(at).await;
                    limit
                }
                None => pending().await,
            }
        }
    }

    /// Asks all processes to end, and kills at `kill_at` what has not.
    async fn stop(&mut self, mut kill_at: Instant) {
        let mut cancelled = self.cancellation.is_cancelled();
        if Instant::now() < kill_at {
            self.command.id.terminate();
        }
        while Instant::now() < kill_at {
            select! {
                biased;
                () = self.reports.gone() => return,
                () = sleep_until(kill_at) => {}
                () = self.cancellation.cancelled(), if !cancelled => {
                    cancelled = true;
                    kill_at = kill_at.min(Instant::now() + LONGEST_CANCEL_GRACE);
                }
            }
        }
        self.kill().await;
    }

    async fn kill(&mut self) {
        self.command.id.kill();
        // What the kernel doesn't let go of yet is dead as soon as it does.
        let _ = timeout(KILL_DEADLINE, self.reports.gone()).await;
    }

    /// Kills what a command that ended by itself has left, or lists it where it may stay.
    async fn look_after_left(&mut self) -> Vec<BackgroundProcess> {
        match self.background {
            Background::Kill => {
                self.kill().await;
                Vec::new()
            }
            // A list that doesn't come is an empty one: the processes go with the sandbox.
            Background::Keep => {
                // What was just forked still looks like its parent.
                sleep(JUST_FORKED).await;
                let listed = timeout(LIST_DEADLINE, self.command.id.list()).await;
                let listed = listed.unwrap_or_default();
                let lines = listed.split(|byte| *byte == 0);
                lines.filter_map(background_process).collect()
            }
        }
    }
}

/// A process as the supervisor lists it: its id, a space and its command line.
fn background_process(line: &[u8]) -> Option<BackgroundProcess> {
    let line = String::from_utf8_lossy(line);
    let (pid, command) = line.split_once(' ')?;
    let mut command = command.trim_end().replace('\n', " ");
    if command.chars().count() > LONG_COMMAND {
        let shown = command.chars().take(LONG_COMMAND - 1);
        command = shown.chain(['…']).collect();
    }
    Some(BackgroundProcess::new(pid.parse().ok()?, command))
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
