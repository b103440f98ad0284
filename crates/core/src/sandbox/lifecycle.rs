//! The course of a command: when it is asked to end, when it is killed, and what it then came to. It is
//! the same in every backend, so it is kept here, as a state machine that knows no clock and no process:
//! whoever runs the command tells it what happens and does what it answers.

use std::time::{Duration, Instant};

use super::{Background, ExitStatus, SpawnRequest};

/// A cancelled command has at most this long between TERM and KILL, whatever its request says.
const LONGEST_CANCEL_GRACE: Duration = Duration::from_secs(1);
/// How long to wait for the death of what was killed; longer only where the kernel is stuck.
const KILL_DEADLINE: Duration = Duration::from_millis(400);

/// A command from its start to its end.
///
/// ```
/// use std::time::{Duration, Instant};
/// use cantle_core::sandbox::{CommandAction, CommandEvent, CommandLifecycle, SpawnRequest};
///
/// let request = SpawnRequest::shell("sleep 60")
///     .with_timeout(Duration::from_secs(10))
///     .with_grace(Duration::from_secs(2));
/// let began = Instant::now();
/// let mut command = CommandLifecycle::new(&request, None, began);
///
/// let ask_at = command.deadline().unwrap();
/// assert_eq!(ask_at, began + Duration::from_secs(8));
/// assert_eq!(command.on(CommandEvent::Time, ask_at), Some(CommandAction::Terminate));
/// let kill_at = command.deadline().unwrap();
/// assert_eq!(command.on(CommandEvent::Time, kill_at), Some(CommandAction::Kill));
/// assert_eq!(command.on(CommandEvent::Gone, kill_at), None);
/// assert!(command.is_over());
/// ```
#[derive(Clone, Debug)]
pub struct CommandLifecycle {
    began: Instant,
    limit: Option<Duration>,
    grace: Duration,
    background: Background,
    state: State,
    ended: Option<Instant>,
    /// Why it was ended, where it didn't end by itself.
    stopped: Option<ExitStatus>,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Running,
    /// It was asked to end.
    Stopping {
        kill_at: Instant,
        is_cancelled: bool,
    },
    /// It was killed.
    Dying {
        until: Instant,
    },
    Over,
}

/// What happens to a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CommandEvent {
    /// Its first process has ended; `alone` where it has left nothing running.
    Ended {
        /// Whether nothing of the command is left.
        alone: bool,
    },
    /// Nothing of it is left.
    Gone,
    /// The cancellation of its request is cancelled.
    Cancelled,
    /// It may not go on: a limit is reached, or nobody wants it.
    Forbidden(ExitStatus),
    /// [`CommandLifecycle::deadline`] has come.
    Time,
}

/// What is to be done with a command's processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CommandAction {
    /// All of them get TERM.
    Terminate,
    /// All of them get KILL.
    Kill,
    /// They may stay, and are listed.
    List,
}

impl CommandLifecycle {
    /// A command that begins now, in a sandbox where a command has at most `wall_time`.
    #[must_use]
    pub fn new(request: &SpawnRequest, wall_time: Option<Duration>, began: Instant) -> Self {
        let limit = match (request.timeout, wall_time) {
            (Some(asked), Some(allowed)) => Some(asked.min(allowed)),
            (asked, allowed) => asked.or(allowed),
        };
        Self {
            began,
            // One that no clock can reach is none.
            limit: limit.filter(|limit| began.checked_add(*limit).is_some()),
            grace: request.grace,
            background: request.background,
            state: State::Running,
            ended: None,
            stopped: None,
        }
    }

    /// How long it may take.
    #[must_use]
    pub fn limit(&self) -> Option<Duration> {
        self.limit
    }

    /// When [`CommandEvent::Time`] is to be told, unless something else happens before.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        match self.state {
            // The grace lies before the limit.
            State::Running => self.limit.map(|limit| {
                let after = limit.saturating_sub(self.grace).max(limit / 2);
                self.began + after
            }),
            State::Stopping { kill_at, .. } => Some(kill_at),
            State::Dying { until } => Some(until),
            State::Over => None,
        }
    }

    /// Takes what happened; says what is to be done. What doesn't matter any more is passed over.
    pub fn on(&mut self, event: CommandEvent, now: Instant) -> Option<CommandAction> {
        match (self.state, event) {
            (State::Running, CommandEvent::Ended { alone: false }) => {
                self.ended = Some(now);
                match self.background {
                    Background::Kill => self.kill(now),
                    Background::Keep => {
                        self.state = State::Over;
                        Some(CommandAction::List)
                    }
                }
            }
            (
                State::Running | State::Stopping { .. },
                CommandEvent::Ended { alone: true } | CommandEvent::Gone,
            )
            | (State::Dying { .. }, CommandEvent::Gone | CommandEvent::Time) => {
                self.state = State::Over;
                self.ended.get_or_insert(now);
                None
            }
            (State::Running, CommandEvent::Cancelled) => {
                let grace = self.grace.min(LONGEST_CANCEL_GRACE);
                self.stop(ExitStatus::Cancelled, now + grace, now)
            }
            (State::Running, CommandEvent::Time) => {
                let limit = self.limit?;
                self.stop(ExitStatus::TimedOut { limit }, self.began + limit, now)
            }
            (State::Running, CommandEvent::Forbidden(status)) => {
                self.stopped = Some(status);
                self.kill(now)
            }
            (State::Stopping { kill_at, .. }, CommandEvent::Cancelled) => {
                self.state = State::Stopping {
                    kill_at: kill_at.min(now + LONGEST_CANCEL_GRACE),
                    is_cancelled: true,
                };
                None
            }
            (State::Stopping { .. }, CommandEvent::Time | CommandEvent::Forbidden(_)) => {
                self.kill(now)
            }
            _ => None,
        }
    }

    /// Whether it hasn't been told yet to end, nor has ended.
    #[must_use]
    pub fn is_running(&self) -> bool {
        matches!(self.state, State::Running)
    }

    /// Whether it matters that it is cancelled.
    #[must_use]
    pub fn heeds_cancellation(&self) -> bool {
        match self.state {
            State::Running => true,
            State::Stopping { is_cancelled, .. } => !is_cancelled,
            State::Dying { .. } | State::Over => false,
        }
    }

    /// Whether nothing more is to be waited for.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self.state, State::Over)
    }

    /// Why it was ended; `None` of one that ended by itself.
    #[must_use]
    pub fn stopped(&self) -> Option<ExitStatus> {
        self.stopped
    }

    /// How long it took, or has taken until `now`. What is left of one that ended by itself takes none of
    /// its time.
    #[must_use]
    pub fn took(&self, now: Instant) -> Duration {
        let until = self.ended.unwrap_or(now);
        until.saturating_duration_since(self.began)
    }

    fn stop(
        &mut self,
        status: ExitStatus,
        kill_at: Instant,
        now: Instant,
    ) -> Option<CommandAction> {
        self.stopped = Some(status);
        if kill_at <= now {
            return self.kill(now);
        }
        self.state = State::Stopping {
            kill_at,
            is_cancelled: status == ExitStatus::Cancelled,
        };
        Some(CommandAction::Terminate)
    }

    fn kill(&mut self, now: Instant) -> Option<CommandAction> {
        self.state = State::Dying {
            until: now + KILL_DEADLINE,
        };
        Some(CommandAction::Kill)
    }
}

#[cfg(test)]
mod tests;
