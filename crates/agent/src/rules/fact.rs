//! Facts: the input of the state machine, and the content of a journal.

use std::sync::Arc;
use std::time::Duration;

use cantle_core::content::Content;
use cantle_core::ledger::{Ledger, ModelCall};
use cantle_core::llm::{LlmError, LlmErrorKind, StopReason};
use cantle_core::message::AssistantMessage;
use cantle_core::metadata::Metadata;
use cantle_core::sandbox::SandboxHandle;
use cantle_core::tool::Decision;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::budget::BudgetState;
use super::settings::Rules;
use super::standing::StandingApproval;

/// Something that happened to a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum Fact {
    /// The model answered.
    ModelAnswered {
        message: Box<AssistantMessage>,
        stop: StopReason,
        call: ModelCall,
    },
    /// An attempt at a model call failed.
    AttemptFailed {
        error_kind: LlmErrorKind,
        reason: String,
        call: ModelCall,
        /// Delay before the next attempt.
        #[serde(rename = "after_s", default, with = "cantle_core::seconds")]
        after: Duration,
        /// Start of the text that it streamed before.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        discarded: String,
        /// Whether no other attempt is made, because a budget is exhausted.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_last: bool,
    },
    /// A model call failed for good.
    ModelFailed(ModelFailure),
    /// The model answered a request for a summary.
    Summarized {
        /// The summary; blank if the answer has no text.
        text: String,
        /// Files in the sandbox's working directory.
        files: Vec<String>,
        call: ModelCall,
    },
    /// An approval decided on a call of the turn.
    CallDecided { index: usize, decision: Decision },
    /// A user approved a call and later ones like it.
    ApprovedAlways(StandingApproval),
    /// The hooks agreed that an answer in text ends the run.
    TextAccepted,
    /// The hooks refused that an answer in text ends the run.
    TextRefused {
        /// The reason, for the model.
        feedback: String,
    },
    /// A call of the turn started.
    CallStarted {
        index: usize,
        /// Seconds since the Unix epoch.
        time: f64,
    },
    /// A call of the turn ended.
    CallFinished {
        index: usize,
        outcome: Box<CallOutcome>,
    },
    /// A call of the turn was stopped with the run, and continues when the run is resumed.
    CallSuspended { index: usize },
    /// A background sub-agent ended.
    SubAgentEnded(SubAgentEnded),
    /// A sub-agent was stopped with the run, and continues when the run is resumed. Its own journal
    /// then reports the same costs again.
    #[serde(rename = "sub_agent_left")]
    SubAgentSuspended { tool: String, ledger: Box<Ledger> },
    /// The user sent a message for the next turn.
    #[serde(rename = "user_said")]
    UserMessage { content: Content },
    /// A hook added a message before the model was asked.
    #[serde(rename = "told")]
    HookMessage { content: Content },
    /// Little is left of a budget.
    BudgetNear(BudgetState),
    /// A budget is exhausted.
    #[serde(rename = "budget_spent")]
    BudgetExhausted(BudgetState),
    /// A budget was exhausted before the turn that begins now: the run was resumed, or its budget is
    /// zero.
    #[serde(rename = "budget_was_spent")]
    BudgetExhaustedBeforeTurn(BudgetState),
    /// A hook ended the run.
    Stopped { reason: String },
    /// The time for the last turn ran out as well.
    OutOfTime {
        state: BudgetState,
        /// The model call that was given up, if any.
        call: Option<ModelCall>,
    },
    /// Money is limited, and a call of this model had no known cost.
    CostUnknown { model: String },
    /// The run was cancelled.
    Cancelled {
        /// The model call that was given up, if any.
        call: Option<ModelCall>,
    },
    /// Another process continues the run.
    Resumed {
        /// The rules from now on.
        rules: Rules,
        /// A message for the model about state that was lost.
        #[serde(rename = "lost")]
        lost_state: Option<String>,
        /// The new sandbox, if the run's own is gone.
        #[serde(rename = "fresh", default, skip_serializing_if = "Option::is_none")]
        new_sandbox: Option<NewSandbox>,
        /// Seconds since the Unix epoch.
        time: f64,
    },
}

impl Fact {
    /// The model call of this fact.
    pub(crate) fn model_call(&self) -> Option<&ModelCall> {
        match self {
            Self::ModelAnswered { call, .. }
            | Self::AttemptFailed { call, .. }
            | Self::Summarized { call, .. } => Some(call),
            Self::ModelFailed(failure) => Some(&failure.call),
            Self::Cancelled { call } | Self::OutOfTime { call, .. } => call.as_ref(),
            _ => None,
        }
    }
}

/// The end of a background sub-agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SubAgentEnded {
    /// The id by which the model refers to it.
    pub(crate) id: String,
    pub(crate) tool: String,
    /// The result as the model reads it.
    pub(crate) result: String,
    /// Whether a call is waiting for it and returns the result.
    pub(crate) awaited: bool,
    /// The ids of these calls. One that is repeated after a resume returns the result.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) awaited_by: Vec<String>,
    pub(crate) ledger: Box<Ledger>,
}

/// A sandbox that replaces one that is gone.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct NewSandbox {
    /// A handle for reattaching, if the sandbox outlives the process.
    pub(crate) handle: Option<SandboxHandle>,
}

/// A model call that failed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ModelFailure {
    #[serde(with = "llm_error")]
    pub(crate) error: Arc<LlmError>,
    pub(crate) call: ModelCall,
}

/// The end of a tool call.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts of a call")]
pub(crate) struct CallOutcome {
    pub(crate) content: Content,
    pub(crate) success: bool,
    pub(crate) arguments_valid: bool,
    /// Whether the call did not succeed because its run was cancelled.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) cancelled: bool,
    /// Number of repairs to the arguments.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) repairs: u32,
    /// The parsed arguments of a finish call.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub(crate) arguments: Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) metadata: Option<Metadata>,
    #[serde(rename = "duration_s", with = "cantle_core::seconds")]
    pub(crate) duration: Duration,
    /// End of the call, in seconds since the Unix epoch.
    pub(crate) time: f64,
    /// The sandbox's error if it is gone; ends the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sandbox_gone: Option<String>,
    /// Whether processes of the call still run that end with this process.
    #[serde(
        rename = "left_running",
        default,
        skip_serializing_if = "std::ops::Not::not"
    )]
    pub(crate) has_background_processes: bool,
    /// The ledger of the sub-agent that was called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sub_agent: Option<Box<Ledger>>,
    /// Whether the call was stopped with the run and continues with it. It then has no result yet.
    #[serde(skip)]
    pub(crate) suspended: bool,
}

impl CallOutcome {
    /// A failed call.
    pub(crate) fn failure(text: impl Into<Content>, duration: Duration, time: f64) -> Self {
        Self {
            content: text.into(),
            success: false,
            arguments_valid: true,
            cancelled: false,
            repairs: 0,
            arguments: Value::Null,
            metadata: None,
            duration,
            time,
            sandbox_gone: None,
            has_background_processes: false,
            sub_agent: None,
            suspended: false,
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// The form of a model error in a journal: its kind, message and advice.
mod llm_error {
    use std::sync::Arc;

    use cantle_core::llm::{LlmError, LlmErrorKind};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct ErrorRecord {
        kind: LlmErrorKind,
        message: String,
        advice: Option<String>,
    }

    pub(super) fn serialize<S: Serializer>(error: &LlmError, to: S) -> Result<S::Ok, S::Error> {
        let record = ErrorRecord {
            kind: error.kind(),
            message: error.to_string(),
            advice: error.advice().map(str::to_owned),
        };
        record.serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Arc<LlmError>, D::Error> {
        let record = ErrorRecord::deserialize(from)?;
        let error = LlmError::new(record.kind, record.message);
        Ok(Arc::new(match record.advice {
            Some(advice) => error.with_advice(advice),
            None => error,
        }))
    }
}
