//! The state machine of a command: when it is terminated, when it is killed and when it has ended.
//!
//! It knows neither a clock nor a process. The driver feeds it events and performs its actions.

use std::time::{Duration, Instant};

use cantle_core::policy::PolicyField;
use cantle_core::sandbox::{Background, ExitStatus, SpawnRequest};

/// Upper bound of the grace of a cancelled command.
const MAX_CANCEL_GRACE: Duration = Duration::from_secs(1);

/// Upper bound of any grace, within the range of the clock.
const MAX_GRACE: Duration = Duration::from_secs(1 << 32);

#[derive(Clone, Debug)]
pub(crate) struct CommandLifecycle {
    started_at: Instant,
    limit: Option<Duration>,
    grace: Duration,
    /// How long to wait for the death of killed processes.
    kill_deadline: Duration,
    background: Background,
    state: State,
    ended_at: Option<Instant>,
    status: Option<ExitStatus>,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Running,
    /// TERM was sent.
    Stopping {
        kill_at: Instant,
        is_cancelled: bool,
    },
    /// KILL was sent.
    Dying {
        until: Instant,
    },
    Over,
}

/// Something that happened to a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandEvent {
    /// The first process has ended.
    Ended {
        status: ExitStatus,
        /// Whether nothing of the command is left.
        alone: bool,
    },
    /// Nothing of the command is left.
    Gone,
    /// The request was cancelled.
    Cancelled,
    /// The command exceeded a limit, which becomes its status.
    LimitReached(ExitStatus),
    /// [`CommandLifecycle::deadline`] has passed.
    Deadline,
}

impl CommandEvent {
    pub(crate) fn limit_reached(field: PolicyField, limit: u64) -> Self {
        Self::LimitReached(ExitStatus::LimitReached { field, limit })
    }
}

/// Something to do with the processes of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandAction {
    /// Send TERM to all of them.
    Terminate,
    /// Send KILL to all of them.
    Kill,
    /// List them; they stay.
    List,
}

/// The shorter of a request's time limit and that of the sandbox.
pub(crate) fn time_limit(request: &SpawnRequest, wall_time: Option<Duration>) -> Option<Duration> {
    request.timeout.into_iter().chain(wall_time).min()
}

impl CommandLifecycle {
    /// A command that starts now, in a sandbox that allows `wall_time`.
    pub(crate) fn new(
        request: &SpawnRequest,
        wall_time: Option<Duration>,
        kill_deadline: Duration,
        started_at: Instant,
    ) -> Self {
        let limit = time_limit(request, wall_time);
        Self {
            started_at,
            // A limit beyond the range of the clock is no limit.
            limit: limit.filter(|limit| started_at.checked_add(*limit).is_some()),
            grace: request.grace.min(MAX_GRACE),
            kill_deadline,
            background: request.background,
            state: State::Running,
            ended_at: None,
            status: None,
        }
    }

    /// Time of [`CommandEvent::Deadline`] unless something else happens before.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self.state {
            State::Running => self.limit.map(|limit| self.started_at + limit),
            State::Stopping { kill_at, .. } => Some(kill_at),
            State::Dying { until } => Some(until),
            State::Over => None,
        }
    }

    /// Applies an event and returns the action that follows. Events that no longer matter are ignored.
    pub(crate) fn on(&mut self, event: CommandEvent, now: Instant) -> Option<CommandAction> {
        match (self.state, event) {
            (
                State::Running,
                CommandEvent::Ended {
                    status,
                    alone: false,
                },
            ) => {
                self.ended_at = Some(now);
                self.status = Some(status);
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
                CommandEvent::Ended {
                    status,
                    alone: true,
                },
            ) => {
                self.status.get_or_insert(status);
                self.end(now)
            }
            (State::Running | State::Stopping { .. }, CommandEvent::Gone)
            | (
                State::Dying { .. },
                CommandEvent::Ended { alone: true, .. }
                | CommandEvent::Gone
                | CommandEvent::Deadline,
            ) => self.end(now),
            (State::Running, CommandEvent::Cancelled) => {
                let grace = self.grace.min(MAX_CANCEL_GRACE);
                self.stop(ExitStatus::Cancelled, now + grace, now)
            }
            (State::Running, CommandEvent::Deadline) => {
                let limit = self.limit?;
                self.stop(ExitStatus::TimedOut { limit }, now + self.grace, now)
            }
            (State::Running, CommandEvent::LimitReached(status)) => {
                self.status = Some(status);
                self.kill(now)
            }
            (State::Stopping { kill_at, .. }, CommandEvent::Cancelled) => {
                self.state = State::Stopping {
                    kill_at: kill_at.min(now + MAX_CANCEL_GRACE),
                    is_cancelled: true,
                };
                None
            }
            (State::Stopping { .. }, CommandEvent::Deadline | CommandEvent::LimitReached(_)) => {
                self.kill(now)
            }
            _ => None,
        }
    }

    /// Whether it has neither ended nor been terminated or killed.
    pub(crate) fn is_running(&self) -> bool {
        matches!(self.state, State::Running)
    }

    /// Whether [`CommandEvent::Cancelled`] has an effect.
    pub(crate) fn accepts_cancellation(&self) -> bool {
        match self.state {
            State::Running => true,
            State::Stopping { is_cancelled, .. } => !is_cancelled,
            State::Dying { .. } | State::Over => false,
        }
    }

    /// Whether the command has ended.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.state, State::Over)
    }

    /// The reason for which it was stopped, or else the status of its first process; `None` if that
    /// was not reported.
    pub(crate) fn status(&self) -> Option<ExitStatus> {
        self.status
    }

    /// Time from its start to its end, or to `now`. Killing background processes does not count.
    pub(crate) fn duration(&self, now: Instant) -> Duration {
        let until = self.ended_at.unwrap_or(now);
        until.saturating_duration_since(self.started_at)
    }

    fn stop(
        &mut self,
        status: ExitStatus,
        kill_at: Instant,
        now: Instant,
    ) -> Option<CommandAction> {
        self.status = Some(status);
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
            until: now + self.kill_deadline,
        };
        Some(CommandAction::Kill)
    }

    fn end(&mut self, now: Instant) -> Option<CommandAction> {
        self.state = State::Over;
        self.ended_at.get_or_insert(now);
        None
    }
}

#[cfg(test)]
mod tests;
