//! Events: what happened in a run, for whoever watches.
//!
//! The console, JSON lines and tracing are all subscribers of this one type. Durable events are
//! numbered and none is lost; deltas (pieces of text on their way) carry no number and may be
//! joined or dropped where a reader is slow.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::ids::RunId;
use crate::ledger::Ledger;
use crate::sandbox::SandboxInfo;
use crate::usage::TokenUsage;

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Event {
    /// Counts the durable events of a run from 0; `None` for a delta.
    pub number: Option<u64>,
    /// The run it happened in.
    pub run: RunId,
    /// The run that started this one, for a sub-agent's.
    pub parent: Option<RunId>,
    /// How many runs are above; 0 for the one a person started.
    pub depth: u32,
    /// When it happened, in seconds since the Unix epoch.
    #[serde(with = "unix_seconds")]
    pub time: SystemTime,
    /// What happened.
    #[serde(flatten)]
    pub kind: EventKind,
}

impl Event {
    /// Something that happened in `run` at `time`.
    #[must_use]
    pub fn new(number: Option<u64>, run: RunId, time: SystemTime, kind: EventKind) -> Self {
        Self {
            number,
            run,
            parent: None,
            depth: 0,
            time,
            kind,
        }
    }
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum EventKind {
    /// A run began.
    RunStarted {
        /// The agent's name.
        agent: String,
        /// The model.
        model: String,
        /// The task, as text.
        task: String,
        /// Turns it may take.
        max_turns: u32,
        /// The names of its tools, in order.
        tools: Vec<String>,
        /// Its sandbox, with what is enforced in it.
        sandbox: Option<SandboxInfo>,
        /// Input files, as paths in the sandbox.
        input_files: Vec<String>,
    },
    /// Something a person should know before trusting the result.
    Warning {
        /// What.
        message: String,
    },
    /// A model call began.
    TurnStarted {
        /// Which turn, counted from 1.
        turn: u32,
    },
    /// A piece of the model's answer. A delta.
    TextDelta {
        /// The piece.
        text: String,
    },
    /// A piece of the model's visible reasoning. A delta.
    ReasoningDelta {
        /// The piece.
        text: String,
    },
    /// A model call failed before anything came, and is tried again.
    ModelRetry {
        /// Which attempt comes next, counted from 1.
        attempt: u32,
        /// How long is waited before it.
        #[serde(rename = "after_s", with = "crate::seconds")]
        after: Duration,
        /// Why.
        reason: String,
    },
    /// The model answered.
    ModelAnswered {
        /// Which turn, counted from 1.
        turn: u32,
        /// The answer's text, without reasoning.
        text: String,
        /// How many tools it calls.
        tool_calls: usize,
        /// Tokens of this call; estimated where `usage_estimated`.
        usage: TokenUsage,
        /// Whether the provider did not say.
        usage_estimated: bool,
        /// What the provider said it cost, in US dollars.
        cost_usd: Option<f64>,
        /// How long it took.
        #[serde(rename = "duration_s", with = "crate::seconds")]
        duration: Duration,
    },
    /// The context window overflowed; the latest turn was taken out of the history.
    TurnDropped {
        /// Which turn, counted from 1.
        turn: u32,
    },
    /// A summary took the place of a part of the history.
    HistorySummarized {
        /// How many messages it stands for.
        replaced: usize,
    },
    /// The run was interrupted, and goes on.
    RunResumed {
        /// Turns taken before.
        turns: u32,
    },
    /// A call needs somebody's consent; the run waits for it.
    ApprovalRequested {
        /// The call.
        call_id: String,
        /// The tool.
        tool: String,
        /// The arguments as the model wrote them.
        arguments: String,
        /// What consent is bound to: these arguments and no others.
        digest: String,
    },
    /// Somebody decided on a call.
    ApprovalGiven {
        /// The call.
        call_id: String,
        /// Whether it may run.
        approved: bool,
        /// Why not, where it may not.
        reason: Option<String>,
    },
    /// A tool began.
    ToolStarted {
        /// The call.
        call_id: String,
        /// The tool.
        tool: String,
        /// The arguments: as JSON where they are, else the model's text.
        arguments: Value,
    },
    /// A piece of a running tool's output. A delta.
    ToolOutputDelta {
        /// The call.
        call_id: String,
        /// The piece.
        text: String,
    },
    /// A tool ended.
    ToolFinished {
        /// The call.
        call_id: String,
        /// The tool.
        tool: String,
        /// What the model sees of the result, as text.
        result: String,
        /// Whether it did what it was asked to.
        success: bool,
        /// Whether its arguments were valid.
        arguments_valid: bool,
        /// How long it took.
        #[serde(rename = "duration_s", with = "crate::seconds")]
        duration: Duration,
    },
    /// The loop said something to the model in the user's role.
    UserMessage {
        /// What.
        text: String,
    },
    /// An output file was saved.
    OutputSaved {
        /// The path the model named.
        source: String,
        /// Where it is on the host.
        path: String,
        /// Its size.
        size_bytes: u64,
    },
    /// An output file was refused.
    OutputRefused {
        /// The path the model named.
        source: String,
        /// Why.
        reason: String,
    },
    /// The run ended. Always the last event.
    RunFinished {
        /// How: `finished`, or what stopped it.
        status: RunStatus,
        /// The finish tool and its parameters, where it finished.
        finish: Option<Finish>,
        /// Why it did not finish, for people.
        error: Option<String>,
        /// Turns taken.
        turns: u32,
        /// How long it took.
        #[serde(rename = "duration_s", with = "crate::seconds")]
        duration: Duration,
        /// What was paid and used.
        ledger: Ledger,
    },
}

impl EventKind {
    /// Whether it is only a piece of something on its way: unnumbered, and may be lost.
    #[must_use]
    pub fn is_delta(&self) -> bool {
        matches!(
            self,
            Self::TextDelta { .. } | Self::ReasoningDelta { .. } | Self::ToolOutputDelta { .. }
        )
    }
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RunStatus {
    /// A finish tool was called and accepted.
    Finished,
    /// A limit was reached: turns, context, output tokens.
    LimitReached,
    /// It was cancelled.
    Cancelled,
    /// The model provider failed.
    ModelFailed,
    /// The sandbox failed.
    SandboxFailed,
    /// Something of ours failed.
    InternalError,
}

/// The finish call that ended a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Finish {
    /// The finish tool.
    pub tool: String,
    /// Its parameters, as the model gave them.
    pub params: Value,
}

impl Finish {
    /// A call of `tool` with these parameters.
    pub fn new(tool: impl Into<String>, params: Value) -> Self {
        Self {
            tool: tool.into(),
            params,
        }
    }
}

mod unix_seconds {
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(time: &SystemTime, to: S) -> Result<S::Ok, S::Error> {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        to.serialize_f64(since.as_secs_f64())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<SystemTime, D::Error> {
        let seconds = f64::deserialize(from)?;
        let since = Duration::try_from_secs_f64(seconds).map_err(serde::de::Error::custom)?;
        Ok(UNIX_EPOCH + since)
    }
}

#[cfg(test)]
mod tests;
