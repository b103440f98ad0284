//! The task that looks after one command: its start, its time, its end, what it leaves.
//!
//! It does so whether or not anybody polls the command's handle, and goes on where the handle is
//! dropped: then it ends the command.

use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cantle_core::policy::PolicyField;
use cantle_core::sandbox::{
    Background, BackgroundProcess, Channel, CommandAction, CommandEvent, CommandLifecycle, Exit,
    ExitStatus, OutputChunk, SandboxError, SandboxErrorKind, SpawnRequest,
};
use tokio::select;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::line::Line;
use super::pump::{End, Progress, Pump, listed};
use super::spill::{self, Spiller};
use super::{Order, order, stdin};
use crate::envd::{
    Ended, Envd, EventStream, Fault, Nothing, Processes, Selected, Selector, Signal,
};
use crate::sandbox::{Awake, Shared};
use crate::signals;

/// After the end, how long to wait for a slow reader before the end is announced.
const READER_DEADLINE: Duration = Duration::from_millis(550);
/// How long a command that is to be ended may take to say which process it is.
const START_DEADLINE: Duration = Duration::from_secs(2);
/// For the end of a command of which nobody knows whether it was started.
const UNHEARD_DEADLINE: Duration = Duration::from_secs(10);
/// What the sandbox itself gives a command beyond its time, in case that we are gone by then.
const SLACK: Duration = Duration::from_secs(10);

/// What is said of a command that was listened to again.
const HOLE: &str = "part of the output may be missing: the connection to the sandbox broke while the \
                    command ran";

/// How it went, for everyone who waits.
#[derive(Clone, Debug)]
pub(super) enum Outcome {
    Ended(Exit),
    /// The sandbox was closed, and the command killed with it.
    Closed,
    /// The sandbox is gone, for this reason.
    Gone(String),
    /// The command is lost.
    Lost(String),
}

impl Outcome {
    pub(super) fn into_result(self) -> Result<Exit, SandboxError> {
        match self {
            Self::Ended(exit) => Ok(exit),
            Self::Closed => {
                let message = "the sandbox was closed while the command ran";
                Err(SandboxError::new(SandboxErrorKind::Closed, message))
            }
            Self::Gone(why) => Err(SandboxError::gone(format!(
                "the sandbox was gone while the command ran: {why}"
            ))),
            Self::Lost(why) => Err(SandboxError::new(
                SandboxErrorKind::Io,
                format!("the command was lost and has been ended: {why}"),
            )),
        }
    }
}

/// What the task owns.
pub(super) struct Driver {
    pub(super) shared: Arc<Shared>,
    pub(super) awake: Awake,
    pub(super) line: Line,
    pub(super) token: String,
    pub(super) request: SpawnRequest,
    /// The command's input, where the request brought it.
    pub(super) feed: Option<Bytes>,
    pub(super) progress: Arc<Progress>,
    /// Cancelled when nobody wants the command any more.
    pub(super) abandoned: CancellationToken,
    pub(super) reader: mpsc::Sender<Result<OutputChunk, SandboxError>>,
    pub(super) started: oneshot::Sender<Result<Option<u32>, SandboxError>>,
    pub(super) outcome: watch::Sender<Option<Outcome>>,
}

impl Driver {
    pub(super) async fn run(self) {
        let wall_time = self.shared.limits.wall_time;
        let lifecycle = CommandLifecycle::new(&self.request, wall_time, now());
        let backstop = lifecycle.limit().and_then(|limit| limit.checked_add(SLACK));
        let events = match self.awake.envd.start(&self.line.start(), backstop).await {
            Ok(events) => events,
            Err(fault) => {
                let envd = &self.awake.envd;
                let may_run = fault.is_unanswered();
                let error = not_started(&self.shared, envd, fault).await;
                if may_run && error.kind() != SandboxErrorKind::Gone {
                    end_unheard(envd, &self.token).await;
                }
                // Where nobody waits, nobody needs it.
                let _ = self.started.send(Err(error));
                return;
            }
        };
        let course = Course {
            shared: self.shared,
            awake: self.awake,
            token: self.token,
            lifecycle,
            is_terminal: self.line.pty.is_some(),
            request: self.request,
            progress: self.progress,
            abandoned: self.abandoned,
        };
        course
            .look_after(events, self.feed, self.reader, self.started, self.outcome)
            .await;
    }
}

/// What is to be said of a command that the sandbox did not even try, or failed to start.
async fn not_started(shared: &Shared, envd: &Envd, fault: Fault) -> SandboxError {
    if let Fault::Refused { code, message } = &fault
        && (message.to_lowercase().contains("too long") || code == "resource_exhausted")
    {
        let message = format!("failed to start the command: {message}");
        return SandboxError::new(SandboxErrorKind::InvalidInput, message).with_advice(
            "Write long content to a file first and give the command the file's path.",
        );
    }
    shared
        .explain(envd, fault, "failed to start the command")
        .await
}

/// Ends a command that may have been started, where the answer was lost.
async fn end_unheard(envd: &Envd, token: &str) {
    let ending = async {
        let listing = envd.call::<Processes>("process.Process", "List", &Nothing {});
        for pid in listing.await.unwrap_or_default().with_word(token) {
            kill_outer(envd, pid).await;
        }
        // And what it has started by then.
        order(envd, token, None, Order::Kill).await.is_ok()
    };
    // What can't be reached ends with the sandbox.
    let _ = timeout(UNHEARD_DEADLINE, ending).await;
}

async fn kill_outer(envd: &Envd, pid: u32) {
    let signal = Selected {
        process: Selector { pid },
        more: Signal {
            signal: "SIGNAL_SIGKILL",
        },
    };
    let sent = envd.call::<serde_json::Value>("process.Process", "SendSignal", &signal);
    // It may have ended.
    let _ = sent.await;
}

/// A command's way from its start to its end.
struct Course {
    shared: Arc<Shared>,
    awake: Awake,
    token: String,
    lifecycle: CommandLifecycle,
    is_terminal: bool,
    request: SpawnRequest,
    progress: Arc<Progress>,
    abandoned: CancellationToken,
}

impl Course {
    async fn look_after(
        self,
        events: EventStream,
        feed: Option<Bytes>,
        reader: mpsc::Sender<Result<OutputChunk, SandboxError>>,
        started: oneshot::Sender<Result<Option<u32>, SandboxError>>,
        outcome: watch::Sender<Option<Outcome>>,
    ) {
        let progress = Arc::clone(&self.progress);
        let spillers = spill::spillers(&self.awake.envd, &self.request, &self.token);
        let mut pump = pin!(
            Pump::new(
                (&self.shared, &self.awake.envd),
                &progress,
                &spillers,
                &self.token,
                reader
            )
            .run(events)
        );
        let mut feeding = pin!(self.feed(feed));
        let mut announcing = pin!(self.announce(started));
        let mut life = pin!(self.life());
        let (mut pumped, mut fed, mut announced) = (false, false, false);
        let end = loop {
            select! {
                biased;
                () = &mut announcing, if !announced => announced = true,
                end = &mut life => break end,
                () = &mut pump, if !pumped => pumped = true,
                () = &mut feeding, if !fed => fed = true,
            }
        };
        if !announced {
            // It has ended before anybody was told that it began.
            let _ = timeout(START_DEADLINE, &mut announcing).await;
        }
        if !pumped {
            pumped = timeout(READER_DEADLINE, &mut pump).await.is_ok();
        }
        outcome.send_replace(Some(self.outcome(end, &spillers)));
        if !pumped && !self.abandoned.is_cancelled() {
            // As long as there is a reader.
            select! {
                () = &mut pump => {}
                () = self.abandoned.cancelled() => {}
                () = self.shared.closed.cancelled() => {}
            }
        }
    }

    /// Tells who asked for the command whether it was started.
    async fn announce(&self, started: oneshot::Sender<Result<Option<u32>, SandboxError>>) {
        let look = |state: &super::pump::State| match (&state.end, state.leader) {
            (Some(End::Refused(why)), _) => Some(Err(Ok(why.clone()))),
            (Some(End::Lost(fault)), None) if state.outer.is_none() => {
                Some(Err(Err(Arc::clone(fault))))
            }
            (_, Some(leader)) => Some(Ok(Some(leader))),
            // It has an end, but no beginning that anybody saw.
            (Some(_), None) => Some(Ok(None)),
            _ => None,
        };
        let began = match self.progress.wait_for(look).await {
            Ok(leader) => Ok(leader),
            Err(Ok(why)) => Err(self.refused(&why)),
            Err(Err(fault)) => {
                let fault = fault.again();
                Err(not_started(&self.shared, &self.awake.envd, fault).await)
            }
        };
        let _ = started.send(began);
    }

    fn refused(&self, why: &str) -> SandboxError {
        use SandboxErrorKind as Kind;
        let directory = &self.request.directory;
        let in_directory = |kind, problem: &str| {
            SandboxError::new(kind, format!("failed to start in `{directory}`: {problem}"))
        };
        let name = match &self.request.command {
            cantle_core::sandbox::Command::Shell(_) => "bash".into(),
            cantle_core::sandbox::Command::Argv(argv) => argv
                .first()
                .map(|name| name.to_string_lossy())
                .unwrap_or_default(),
        };
        match why {
            "directory_missing" if directory.is_start() && !directory.is_absolute() => {
                SandboxError::gone("the sandbox's working directory was removed")
            }
            "directory_missing" => in_directory(Kind::NotFound, "there is no such directory"),
            "no_directory" => in_directory(Kind::NotADirectory, "it is no directory"),
            "directory_denied" => in_directory(Kind::PermissionDenied, "it may not be entered"),
            "directory_outside" => in_directory(Kind::OutsideSandbox, "a link leads out"),
            "program_missing" => {
                SandboxError::new(Kind::NotFound, format!("there is no program `{name}`"))
                    .with_advice("Give the program's path, or install it first.")
            }
            "program_denied" => {
                let message = format!("failed to start `{name}`: it is not executable");
                SandboxError::new(Kind::PermissionDenied, message)
                    .with_advice("Make it executable first (`chmod +x`).")
            }
            other => SandboxError::new(Kind::Io, format!("failed to start `{name}`: {other}")),
        }
    }

    /// Writes the input that the request brought.
    async fn feed(&self, data: Option<Bytes>) {
        if let Some(data) = data {
            stdin::feed(&self.shared, &self.progress, data).await;
        }
    }

    async fn life(&self) -> Result<Told, Outcome> {
        let mut lifecycle = self.lifecycle.clone();
        let mut is_killed = false;
        while !lifecycle.is_over() {
            let event = select! {
                biased;
                end = self.progress.ended() => {
                    if lifecycle.is_running() {
                        return self.ended(end).await;
                    }
                    CommandEvent::Gone
                }
                () = self.shared.closed.cancelled() => return Err(Outcome::Closed),
                why = self.shared.gone() => return Err(Outcome::Gone(why)),
                () = self.abandoned.cancelled(), if !is_killed => {
                    CommandEvent::Forbidden(ExitStatus::Cancelled)
                }
                () = self.request.cancellation.cancelled(), if lifecycle.heeds_cancellation() => {
                    CommandEvent::Cancelled
                }
                () = reached(lifecycle.deadline()) => CommandEvent::Time,
                () = self.progress.too_much_output.cancelled(), if lifecycle.is_running() => {
                    let (field, limit) = (PolicyField::Output, self.shared.limits.output_bytes);
                    let limit = limit.unwrap_or_default();
                    CommandEvent::Forbidden(ExitStatus::LimitReached { field, limit })
                }
            };
            match lifecycle.on(event, now()) {
                Some(CommandAction::Terminate) => select! {
                    asked = self.order(Order::Terminate) => {
                        asked?;
                    }
                    () = reached(lifecycle.deadline()) => {}
                },
                Some(CommandAction::Kill) => {
                    is_killed = true;
                    self.kill().await?;
                }
                _ => {}
            }
        }
        if !is_killed {
            // Its first process heeded TERM; what that started need not have.
            self.kill().await?;
        }
        let status = lifecycle.stopped().unwrap_or(ExitStatus::Cancelled);
        Ok(Told::new(status, lifecycle.took(now())))
    }

    async fn kill(&self) -> Result<(), Outcome> {
        let known = self
            .progress
            .wait_for(|state| (state.leader.is_some() || state.end.is_some()).then_some(()));
        // Where it doesn't say, it is found by its mark all the same.
        let _ = timeout(START_DEADLINE, known).await;
        let killed = self.order(Order::Kill).await?;
        if !killed && let Some(pid) = self.progress.outer() {
            kill_outer(&self.awake.envd, pid).await;
        }
        Ok(())
    }

    /// Whether it was done.
    async fn order(&self, what: Order) -> Result<bool, Outcome> {
        let leader = self.progress.state.borrow().leader;
        match order(&self.awake.envd, &self.token, leader, what).await {
            Ok(answer) => Ok(answer.success),
            Err(fault) => match self.shared.look_after(&self.awake.envd, &fault).await {
                Some(why) => Err(Outcome::Gone(why)),
                None => Ok(false),
            },
        }
    }

    async fn ended(&self, end: End) -> Result<Told, Outcome> {
        let took = self.lifecycle.took(now());
        match end {
            End::Told {
                status,
                duration,
                left,
            } => Ok(Told {
                status: self.shared.limits.explain(status),
                duration: duration.unwrap_or(took).min(took),
                left,
            }),
            // Nobody has a handle on it.
            End::Lost(fault) if self.progress.outer().is_none() => {
                if fault.is_unanswered() {
                    end_unheard(&self.awake.envd, &self.token).await;
                }
                Ok(Told::new(ExitStatus::Code(126), took))
            }
            End::Refused(_) => Ok(Told::new(ExitStatus::Code(127), took)),
            End::Ended(ended) => {
                let status = match ended {
                    Ended::Code(code) => ExitStatus::Code(code),
                    Ended::Signal(words) => {
                        ExitStatus::Signal(signals::number(&words).unwrap_or(9))
                    }
                };
                let mut told = Told::new(self.shared.limits.explain(status), took);
                // A terminal's command, one whose script was killed, or one that told while nobody
                // listened.
                let told_in_vain = self.is_terminal || self.progress.has_hole();
                if self.request.background == Background::Kill || !told_in_vain {
                    self.order(Order::Kill).await?;
                } else {
                    told.left = self.left().await;
                }
                Ok(told)
            }
            End::Lost(fault) => {
                if let Some(why) = self.shared.look_after(&self.awake.envd, &fault).await {
                    return Err(Outcome::Gone(why));
                }
                self.order(Order::Kill).await?;
                match self.lifecycle.limit() {
                    Some(limit) if fault.is("deadline_exceeded") => {
                        Ok(Told::new(ExitStatus::TimedOut { limit }, took))
                    }
                    _ => Err(Outcome::Lost(fault.to_string())),
                }
            }
        }
    }

    async fn left(&self) -> Vec<BackgroundProcess> {
        let leader = self.progress.state.borrow().leader;
        let listing = order(&self.awake.envd, &self.token, leader, Order::List).await;
        let text = listing.map(|answer| String::from_utf8_lossy(&answer.stdout).into_owned());
        listed(text.unwrap_or_default().lines())
    }

    fn outcome(&self, end: Result<Told, Outcome>, spillers: &[Option<Spiller>; 2]) -> Outcome {
        match end {
            Err(outcome) => outcome,
            Ok(told) => {
                let [out, err] = spillers;
                let mut exit = Exit::new(told.status, told.duration);
                exit.stdout = self.progress.report(Channel::Stdout, out.as_ref());
                exit.stderr = self.progress.report(Channel::Stderr, err.as_ref());
                if self.request.background == Background::Keep {
                    exit.background = told.left;
                }
                if self.progress.has_hole() {
                    exit.notes.push(HOLE.to_owned());
                }
                Outcome::Ended(exit)
            }
        }
    }
}

/// How it ended.
struct Told {
    status: ExitStatus,
    duration: Duration,
    left: Vec<BackgroundProcess>,
}

impl Told {
    fn new(status: ExitStatus, duration: Duration) -> Self {
        Self {
            status,
            duration,
            left: Vec::new(),
        }
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
fn now() -> std::time::Instant {
    Instant::now().into_std()
}

/// Nothing is said but which process.
pub(super) fn selected(pid: u32) -> Selected<Nothing> {
    Selected {
        process: Selector { pid },
        more: Nothing {},
    }
}
