//! Events of a run, for displays.
//!
//! The console, JSON lines and tracing all read this type. Durable events are numbered and never lost.
//! Deltas (pieces of streamed text) have no number and may be joined or dropped if a reader is slow.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::ids::RunId;
use crate::ledger::Ledger;
use crate::llm::StopReason;
use crate::metadata::Metadata;
use crate::sandbox::SandboxInfo;
use crate::usage::TokenUsage;

/// An event of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Event {
    /// Sequence number among the run's durable events, from 0; `None` for a delta.
    pub number: Option<u64>,
    /// The run it happened in.
    pub run: RunId,
    /// The parent run, for a sub-agent.
    pub parent: Option<RunId>,
    /// Number of parent runs; 0 for the run that the user started.
    pub depth: u32,
    /// Time of the event; serialized as seconds since the Unix epoch.
    #[serde(with = "unix_seconds")]
    pub time: SystemTime,
    /// The kind of event with its data.
    #[serde(flatten)]
    pub kind: EventKind,
}

impl Event {
    /// Creates an event of a run without a parent.
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

/// The kind of an event, with its data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum EventKind {
    /// A run started.
    RunStarted {
        /// The agent's name.
        agent: String,
        /// The model.
        model: String,
        /// The task, as text.
        task: String,
        /// Maximum number of turns.
        max_turns: u32,
        /// The tools' names, in order.
        tools: Vec<String>,
        /// The sandbox and its enforcement.
        sandbox: Option<SandboxInfo>,
        /// Input files, as paths in the sandbox.
        input_files: Vec<String>,
        /// The parent run's call that started it, for a sub-agent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        parent_call: Option<String>,
    },
    /// A problem that the user should know about.
    Warning {
        /// The text.
        message: String,
    },
    /// A model call started.
    TurnStarted {
        /// Number of the turn, from 1.
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
    /// An attempt of a model call failed and is retried.
    ModelRetry {
        /// Number of the next attempt, from 1.
        attempt: u32,
        /// Delay before the next attempt.
        #[serde(rename = "after_s", with = "crate::seconds")]
        after: Duration,
        /// The error of the last attempt.
        reason: String,
        /// Start of the text that the last attempt streamed before it failed. It is no part of the answer.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        discarded: String,
        /// Token usage of the failed attempt, often an estimate.
        #[serde(default)]
        usage: TokenUsage,
        /// Cost of the failed attempt in US dollars, if known.
        #[serde(default)]
        cost_usd: Option<f64>,
    },
    /// A model call ended.
    ModelAnswered {
        /// Number of the turn, from 1.
        turn: u32,
        /// Text of the answer, without reasoning.
        text: String,
        /// Number of tool calls.
        tool_calls: usize,
        /// Token usage of the call.
        usage: TokenUsage,
        /// Whether `usage` is an estimate because the provider reported none.
        usage_estimated: bool,
        /// Cost in US dollars, if known.
        cost_usd: Option<f64>,
        /// Date of the price list that `cost_usd` was computed from, if it was.
        #[serde(skip_serializing_if = "Option::is_none")]
        list_price_date: Option<String>,
        /// The model that answered, as named by the provider.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        served_by: Option<String>,
        /// The reason for which the model stopped.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stop: Option<StopReason>,
        /// Elapsed time.
        #[serde(rename = "duration_s", with = "crate::seconds")]
        duration: Duration,
    },
    /// The context window overflowed, and the latest turn was removed from the history.
    TurnDropped {
        /// Number of the turn, from 1.
        turn: u32,
    },
    /// A summary replaced a part of the history.
    HistorySummarized {
        /// Number of replaced messages.
        replaced: usize,
        /// The summary.
        #[serde(default)]
        text: String,
        /// Token usage of the model call that wrote it.
        #[serde(default)]
        usage: TokenUsage,
        /// Whether `usage` is an estimate because the provider reported none.
        #[serde(default)]
        usage_estimated: bool,
        /// Cost of that call in US dollars, if known.
        #[serde(default)]
        cost_usd: Option<f64>,
        /// Elapsed time of that call.
        #[serde(rename = "duration_s", default, with = "crate::seconds")]
        duration: Duration,
    },
    /// An interrupted run was resumed.
    RunResumed {
        /// Number of turns before the interruption.
        turns: u32,
        /// The ledger before it. Sub-agents that are resumed, too, report their own.
        #[serde(default)]
        ledger: Ledger,
    },
    /// A tool call needs approval.
    ApprovalRequested {
        /// The id of the call.
        call_id: String,
        /// The tool's name.
        tool: String,
        /// The arguments as the model wrote them.
        arguments: String,
        /// Digest of the arguments, to which the approval is bound.
        digest: String,
    },
    /// A decision was made on a tool call.
    ApprovalGiven {
        /// The id of the call.
        call_id: String,
        /// Whether the call may run.
        approved: bool,
        /// The reason of a rejection.
        reason: Option<String>,
    },
    /// A tool call started.
    ToolStarted {
        /// The id of the call.
        call_id: String,
        /// The tool's name.
        tool: String,
        /// The arguments as JSON, or the model's text if it is not JSON.
        arguments: Value,
    },
    /// A piece of a running tool's output. A delta.
    ToolOutputDelta {
        /// The id of the call.
        call_id: String,
        /// The piece.
        text: String,
    },
    /// A tool call ended.
    ToolFinished {
        /// The id of the call.
        call_id: String,
        /// The tool's name.
        tool: String,
        /// Text of the result for the model.
        result: String,
        /// Whether the call succeeded.
        success: bool,
        /// Whether its arguments were valid.
        arguments_valid: bool,
        /// The arguments of a call that did not start, as in [`ToolStarted`](Self::ToolStarted).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        arguments: Option<Value>,
        /// The report of the tool on this call, such as the pages that it read.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        metadata: Option<Metadata>,
        /// Elapsed time.
        #[serde(rename = "duration_s", with = "crate::seconds")]
        duration: Duration,
    },
    /// The loop sent a message in the user's role.
    UserMessage {
        /// The text.
        text: String,
    },
    /// An output file was saved.
    OutputSaved {
        /// The path the model named.
        source: String,
        /// The path on the host.
        path: String,
        /// Its size.
        size_bytes: u64,
    },
    /// An output file was refused.
    OutputRefused {
        /// The path the model named.
        source: String,
        /// The reason.
        reason: String,
    },
    /// The run ended. Always the last event.
    RunFinished {
        /// How the run ended.
        status: RunStatus,
        /// The finish call, if the run finished.
        finish: Option<Finish>,
        /// The error, if it did not finish.
        error: Option<String>,
        /// Number of turns.
        turns: u32,
        /// Elapsed time.
        #[serde(rename = "duration_s", with = "crate::seconds")]
        duration: Duration,
        /// The ledger.
        ledger: Ledger,
    },
}

impl EventKind {
    /// Returns whether the event is a delta: unnumbered, and possibly dropped.
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
    /// A finish call succeeded.
    Finished,
    /// The model answered in text and did not call a finish tool.
    AnsweredInText,
    /// A limit was reached: turns, a budget, the context window or output tokens; or the model made no
    /// progress.
    LimitReached,
    /// It was cancelled.
    Cancelled,
    /// The model provider failed.
    ModelFailed,
    /// The sandbox failed.
    SandboxFailed,
    /// An internal error occurred.
    InternalError,
}

/// The finish call that ended a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Finish {
    /// The finish tool.
    pub tool: String,
    /// The parameters from the model.
    pub params: Value,
}

impl Finish {
    /// Creates a finish call.
    pub fn new(tool: impl Into<String>, params: Value) -> Self {
        Self {
            tool: tool.into(),
            params,
        }
    }
}

mod unix_seconds {
    use std::time::{SystemTime, UNIX_EPOCH};

    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    use crate::seconds;

    pub(super) fn serialize<S: Serializer>(time: &SystemTime, to: S) -> Result<S::Ok, S::Error> {
        seconds::serialize(&time.duration_since(UNIX_EPOCH).unwrap_or_default(), to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<SystemTime, D::Error> {
        let time = seconds::unix_time(f64::deserialize(from)?);
        time.ok_or_else(|| D::Error::custom("the time is not one since 1970"))
    }
}

#[cfg(test)]
mod tests;
