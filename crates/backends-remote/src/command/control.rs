//! Control of one command: its start, its orders and its end.
//!
//! The protocol's calls take time and can fail, so a task performs them, and continues until nothing of the
//! command is left even if the command's handle is dropped.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use cantle_command_driver::Report;
use cantle_core::sandbox::{
    Background, BackgroundProcess, ExitStatus, SandboxError, SandboxErrorKind, SpawnRequest,
};
use serde_json::{Value, json};
use tokio::select;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::pump::{ChannelSender, End, Progress, Pump};
use super::{Order, order};
use crate::envd::{Envd, EventStream, Fault, PROCESSES, Processes};
use crate::shared::ActiveSandbox;

/// Time limit for a command to report its process id when it is killed.
const START_DEADLINE: Duration = Duration::from_secs(2);
/// Time limit for killed processes to end.
const KILL_DEADLINE: Duration = Duration::from_millis(400);
/// Time limit for killing a command whose start was not confirmed.
const UNCONFIRMED_DEADLINE: Duration = Duration::from_secs(10);
/// Time that the service gives a command beyond its limit, in case our process is gone by then.
const BACKSTOP_SLACK: Duration = Duration::from_secs(10);

/// Orders to a command. Each is given once.
#[derive(Clone, Debug)]
pub(super) struct Orders {
    pub(super) terminate: CancellationToken,
    /// Cancelled with `abandon`, too.
    pub(super) kill: CancellationToken,
    /// The command has no users any more.
    pub(super) abandon: CancellationToken,
}

impl Orders {
    pub(super) fn new() -> Self {
        let abandon = CancellationToken::new();
        Self {
            terminate: CancellationToken::new(),
            kill: abandon.child_token(),
            abandon,
        }
    }
}

/// Result of a start: the first process, if it reported itself.
pub(super) type StartResult = Result<Option<u32>, SandboxError>;

/// A command and its connection.
pub(super) struct CommandControl {
    pub(super) active: ActiveSandbox,
    pub(super) token: String,
    pub(super) request: SpawnRequest,
    pub(super) time_limit: Option<Duration>,
    pub(super) progress: Arc<Progress>,
    pub(super) orders: Orders,
}

impl CommandControl {
    /// Starts the command and runs until nothing of it is left. Its end is reported by at most one
    /// report, and by the end of `reports`.
    pub(super) async fn run(
        self,
        start: Value,
        channels: [ChannelSender; 2],
        started: oneshot::Sender<StartResult>,
        reports: mpsc::UnboundedSender<Report>,
    ) {
        let backstop = self.time_limit.and_then(|limit| {
            limit
                .checked_add(self.request.grace)?
                .checked_add(BACKSTOP_SLACK)
        });
        let envd = &self.active.envd;
        match envd.start(&start, backstop).await {
            Ok(events) => self.follow(events, channels, started, reports).await,
            Err(fault) => {
                let may_run = fault.is_unanswered();
                let error = not_started(&self.active, fault).await;
                if may_run && error.kind() != SandboxErrorKind::Gone {
                    kill_unconfirmed(envd, &self.token).await;
                }
                // The caller may have given up.
                let _ = started.send(Err(error));
            }
        }
    }

    async fn follow(
        &self,
        events: EventStream,
        channels: [ChannelSender; 2],
        started: oneshot::Sender<StartResult>,
        reports: mpsc::UnboundedSender<Report>,
    ) {
        let pump = Pump::new(&self.active, &self.progress, &self.token, channels);
        let mut pump = pin!(pump.run(events));
        let mut announcing = pin!(self.announce(started));
        let (mut output_ended, mut is_announced) = (false, false);
        {
            let mut life = pin!(self.life());
            let report = loop {
                select! {
                    biased;
                    () = &mut announcing, if !is_announced => is_announced = true,
                    ended = &mut life => {
                        break ended.unwrap_or_else(|error| Some(Report::Lost(error)));
                    }
                    () = &mut pump, if !output_ended => output_ended = true,
                }
            };
            if !is_announced {
                // It has ended before its start was announced.
                let _ = timeout(START_DEADLINE, &mut announcing).await;
            }
            if let Some(report) = report {
                // The driver may be gone.
                let _ = reports.send(report);
            }
        }
        drop(reports);
        if !output_ended {
            // As long as there is a reader.
            select! {
                () = pump => {}
                () = self.orders.abandon.cancelled() => {}
                () = self.active.shared.closed.cancelled() => {}
            }
        }
    }

    /// Reports to the caller whether the command was started.
    async fn announce(&self, started: oneshot::Sender<StartResult>) {
        let state = self.progress.started().await;
        let began = match (state.end, state.leader) {
            (Some(End::Refused(why)), _) => Err(self.refused(&why)),
            (Some(End::Lost(fault)), None) if state.outer.is_none() => {
                Err(not_started(&self.active, Fault::clone(&fault)).await)
            }
            // Without a process id, it has ended before it reported its start.
            (_, leader) => Ok(leader),
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
            "directory_missing" if directory.is_base() && !directory.is_absolute() => {
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
                SandboxError::new(Kind::PermissionDenied, message).with_advice(
                    "It must be a file that is executable (`chmod +x`), not a directory.",
                )
            }
            other => SandboxError::new(Kind::Io, format!("failed to start `{name}`: {other}")),
        }
    }

    /// Performs orders until the command has ended. `None` if its end was ordered.
    async fn life(&self) -> Result<Option<Report>, SandboxError> {
        let Orders {
            terminate, kill, ..
        } = &self.orders;
        let mut is_terminated = false;
        loop {
            select! {
                biased;
                end = self.progress.ended() => {
                    if !is_terminated {
                        return self.ended(end).await.map(Some);
                    }
                    // The first process reacted to TERM; its children may not have.
                    return self.kill().await.map(|()| None);
                }
                () = self.active.shared.closed.cancelled() => {
                    let message = "the sandbox was closed while the command ran";
                    return Err(SandboxError::new(SandboxErrorKind::Closed, message));
                }
                why = self.active.shared.gone() => return Err(gone(&why)),
                () = kill.cancelled() => {
                    self.kill().await?;
                    // The stream usually ends now, with the rest of the output.
                    let _ = timeout(KILL_DEADLINE, self.progress.ended()).await;
                    return Ok(None);
                }
                () = terminate.cancelled(), if !is_terminated => {
                    is_terminated = true;
                    select! {
                        terminated = self.order(Order::Terminate) => {
                            terminated?;
                        }
                        () = kill.cancelled() => {}
                    }
                }
            }
        }
    }

    async fn kill(&self) -> Result<(), SandboxError> {
        // A command that does not report its id is found by its mark.
        let _ = timeout(START_DEADLINE, self.progress.started()).await;
        let killed = self.order(Order::Kill).await?;
        if !killed && let Some(pid) = self.progress.outer() {
            kill_outer(&self.active.envd, pid).await;
        }
        Ok(())
    }

    /// Performs an order by a script; returns whether the script succeeded.
    async fn order(&self, kind: Order) -> Result<bool, SandboxError> {
        let leader = self.progress.state.borrow().leader;
        match order(&self.active.envd, &self.token, leader, kind).await {
            Ok(answer) => Ok(answer.success),
            Err(fault) => match self.active.check_gone(&fault).await {
                Some(why) => Err(gone(&why)),
                None => Ok(false),
            },
        }
    }

    async fn ended(&self, end: End) -> Result<Report, SandboxError> {
        let has_ended = |status| Report::Ended {
            status,
            alone: true,
        };
        let is_kept = self.request.background == Background::Keep;
        match end {
            End::Reported { status, left, .. } => Ok(Report::Ended {
                status: self.active.shared.limits.explain(status),
                alone: !is_kept || left.is_empty(),
            }),
            // The caller got an error instead of a handle.
            End::Lost(fault) if self.progress.outer().is_none() => {
                if fault.is_unanswered() {
                    kill_unconfirmed(&self.active.envd, &self.token).await;
                }
                Ok(has_ended(ExitStatus::Code(126)))
            }
            End::Refused(_) => Ok(has_ended(ExitStatus::Code(127))),
            End::Ended(status) => {
                let status = self.active.shared.limits.explain(status);
                // A command on a terminal has no script that reports its end, and a report may
                // have been lost. Otherwise the script was killed.
                let is_terminal = self.request.pty.is_some();
                if is_kept && (is_terminal || self.progress.may_lack_output()) {
                    return Ok(Report::Ended {
                        status,
                        alone: false,
                    });
                }
                self.order(Order::Kill).await?;
                Ok(has_ended(status))
            }
            End::Lost(fault) => {
                if let Some(why) = self.active.check_gone(&fault).await {
                    return Err(gone(&why));
                }
                self.order(Order::Kill).await?;
                match self.time_limit {
                    Some(limit) if fault.has_code("deadline_exceeded") => {
                        Ok(has_ended(ExitStatus::TimedOut { limit }))
                    }
                    _ => {
                        let message = format!("the command was lost and has been ended: {fault}");
                        Err(SandboxError::new(SandboxErrorKind::Io, message))
                    }
                }
            }
            End::InputLost(fault) => {
                if let Some(why) = self.active.check_gone(&fault).await {
                    return Err(gone(&why));
                }
                self.kill().await?;
                let message =
                    format!("part of the command's input was lost, so it has been ended: {fault}");
                Err(SandboxError::new(SandboxErrorKind::Io, message))
            }
        }
    }
}

/// The error for a command that was not started.
async fn not_started(active: &ActiveSandbox, fault: Fault) -> SandboxError {
    if let Fault::Refused { code, message } = &fault
        && (message.to_lowercase().contains("too long") || code == "resource_exhausted")
    {
        let message = format!("failed to start the command: {message}");
        return SandboxError::invalid_input(message).with_advice(
            "Write long content to a file first and give the command the file's path.",
        );
    }
    active.explain(fault, "failed to start the command").await
}

/// Kills a command that may have been started although the answer was lost.
async fn kill_unconfirmed(envd: &Envd, token: &str) {
    let ending = async {
        let listing: Result<Processes, _> = envd.call(PROCESSES, "List", &json!({})).await;
        for pid in listing.unwrap_or_default().with_argument(token) {
            kill_outer(envd, pid).await;
        }
        // And its children.
        order(envd, token, None, Order::Kill).await.is_ok()
    };
    // A command that can't be reached ends with the sandbox.
    let _ = timeout(UNCONFIRMED_DEADLINE, ending).await;
}

async fn kill_outer(envd: &Envd, pid: u32) {
    let message = json!({ "process": { "pid": pid }, "signal": "SIGNAL_SIGKILL" });
    // It may have ended.
    let _ = envd.order(PROCESSES, "SendSignal", &message).await;
}

fn gone(why: &str) -> SandboxError {
    SandboxError::gone(format!("the sandbox was gone while the command ran: {why}"))
}

/// Lists the running processes of a command.
pub(super) async fn list(envd: &Envd, token: &str, leader: Option<u32>) -> Vec<BackgroundProcess> {
    let Ok(listing) = order(envd, token, leader, Order::List).await else {
        return Vec::new();
    };
    let text = String::from_utf8_lossy(&listing.stdout);
    text.lines().filter_map(BackgroundProcess::parse).collect()
}
