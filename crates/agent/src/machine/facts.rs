//! What the machine is told, and what it tells. Facts are what a journal holds, so they are written
//! down as they are; actions follow from them and never are.

use std::sync::Arc;
use std::time::Duration;

use cantle_core::content::Content;
use cantle_core::event::Finish;
use cantle_core::ledger::{Ledger, ModelCall};
use cantle_core::llm::{LlmError, StopReason};
use cantle_core::message::{AssistantMessage, ToolCall};
use cantle_core::metadata::Metadata;
use cantle_core::sandbox::SandboxHandle;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Rules;
use crate::approval::Decision;
use crate::budget::BudgetState;
use crate::error::RunError;

/// A thing that happened.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum Fact {
    /// The model answered.
    ModelAnswered {
        /// Its turn.
        message: Box<AssistantMessage>,
        /// Why it stopped.
        stop: StopReason,
        /// The call, for the ledger.
        call: ModelCall,
    },
    /// The model call failed for good.
    ModelFailed(ModelFailure),
    /// What may become a summary came.
    Summarized {
        /// What the model wrote; blank where it wrote no text.
        text: String,
        /// What is in the sandbox's working directory.
        files: Vec<String>,
        /// The call, for the ledger.
        call: ModelCall,
    },
    /// Somebody decided on a call.
    CallDecided {
        /// Which call of the turn.
        index: usize,
        /// What.
        decision: Decision,
    },
    /// A tool call began.
    CallStarted {
        /// Which call of the turn.
        index: usize,
        /// When, in seconds since the Unix epoch.
        time: f64,
    },
    /// A tool call ended.
    CallFinished {
        /// Which call of the turn.
        index: usize,
        /// How.
        outcome: Box<CallOutcome>,
    },
    /// A tool call was stopped with the run. It is open, and goes on where the run does.
    CallSuspended {
        /// Which call of the turn.
        index: usize,
    },
    /// A sub-agent in the background ended.
    SubAgentEnded(SubAgentEnded),
    /// A sub-agent was stopped with the run, and goes on where that does. What it used so far is said
    /// again by its own journal then.
    SubAgentLeft {
        /// Its tool.
        tool: String,
        /// What it used.
        ledger: Box<Ledger>,
    },
    /// The user has something to say, at the next turn.
    UserSaid {
        /// What.
        content: Content,
    },
    /// A hook had something to say before the model was asked.
    Told {
        /// What.
        content: Content,
    },
    /// Most of a budget is spent.
    BudgetNear(BudgetState),
    /// A budget is spent.
    BudgetSpent(BudgetState),
    /// A budget was spent before the model is asked, which begins now: that of a run that is taken up,
    /// or may use nothing.
    BudgetWasSpent(BudgetState),
    /// A hook decided that the run ends here.
    Stopped {
        /// Why.
        reason: String,
    },
    /// The time for the last turn is over, too.
    OutOfTime {
        /// The budget.
        state: BudgetState,
        /// The model call that was given up, where there was one.
        call: Option<ModelCall>,
    },
    /// The run should end now.
    Cancelled {
        /// The model call that was given up, where there was one.
        call: Option<ModelCall>,
    },
    /// Another process goes on with the run.
    Resumed {
        /// The rules from now on.
        rules: Rules,
        /// What the model must know of what was lost.
        lost: Option<String>,
        /// The new sandbox, where the run's own is gone.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        fresh: Option<FreshSandbox>,
        /// When, in seconds since the Unix epoch.
        time: f64,
    },
}

impl Fact {
    /// The model call in it.
    pub(crate) fn model_call(&self) -> Option<&ModelCall> {
        match self {
            Self::ModelAnswered { call, .. } | Self::Summarized { call, .. } => Some(call),
            Self::ModelFailed(failure) => Some(&failure.call),
            Self::Cancelled { call } | Self::OutOfTime { call, .. } => call.as_ref(),
            _ => None,
        }
    }
}

/// How a sub-agent in the background ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SubAgentEnded {
    /// What the model calls it by.
    pub(crate) id: String,
    /// Its tool.
    pub(crate) tool: String,
    /// What came of it, as the model reads it.
    pub(crate) result: String,
    /// Whether a call waits for it, which tells the model.
    pub(crate) awaited: bool,
    /// What it used.
    pub(crate) ledger: Box<Ledger>,
}

/// A sandbox in the place of one that is gone.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct FreshSandbox {
    /// Where to find it again, where it outlives the process.
    pub(crate) handle: Option<SandboxHandle>,
}

/// A model call that failed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ModelFailure {
    #[serde(with = "written_error")]
    pub(crate) error: Arc<LlmError>,
    /// The call, for the ledger.
    pub(crate) call: ModelCall,
}

/// How a tool call ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts of a call")]
pub(crate) struct CallOutcome {
    pub(crate) content: Content,
    pub(crate) success: bool,
    pub(crate) arguments_valid: bool,
    /// How many near-misses in the arguments were mended.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) repairs: u32,
    /// The arguments as parsed, for a finish tool.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub(crate) arguments: Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) metadata: Option<Metadata>,
    #[serde(rename = "duration_s", with = "crate::time::seconds")]
    pub(crate) duration: Duration,
    /// When, in seconds since the Unix epoch.
    pub(crate) time: f64,
    /// Why the sandbox is gone, where it is: that ends the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sandbox_gone: Option<String>,
    /// Whether it left something running that ends with our process.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) left_running: bool,
    /// The accounts of the sub-agent that was called, where one was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sub_agent: Option<Box<Ledger>>,
    /// Whether it was stopped with the run and goes on with it: then this is no result.
    #[serde(skip)]
    pub(crate) open: bool,
}

impl CallOutcome {
    /// A call that did not work, for a reason of ours.
    pub(crate) fn failure(text: impl Into<Content>, duration: Duration, time: f64) -> Self {
        Self {
            content: text.into(),
            success: false,
            arguments_valid: true,
            repairs: 0,
            arguments: Value::Null,
            metadata: None,
            duration,
            time,
            sandbox_gone: None,
            left_running: false,
            sub_agent: None,
            open: false,
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// A thing to do.
#[derive(Debug)]
pub(crate) enum Action {
    /// Ask the model for this turn, counted from 1.
    AskModel {
        /// Which turn.
        turn: u32,
    },
    /// Ask the model for a summary of the conversation.
    Summarize {
        /// How insistently.
        attempt: SummaryAttempt,
    },
    /// Start a call. Several in a row run side by side.
    StartCall(CallStart),
    /// Tell those who watch that a call was answered without running.
    CallRefused {
        /// The call.
        call: ToolCall,
        /// The answer.
        text: String,
    },
    /// Tell those who watch what the loop said in the user's role.
    Say {
        /// What.
        text: String,
    },
    /// Tell those who watch that a turn was taken back.
    TurnDropped {
        /// Which turn.
        turn: u32,
    },
    /// Tell those who watch that a summary replaced a part of the conversation.
    HistorySummarized {
        /// How many messages it stands for.
        replaced: usize,
    },
    /// The run is over.
    End(End),
}

/// A call to start.
#[derive(Debug)]
pub(crate) struct CallStart {
    /// Which call of the turn.
    pub(crate) index: usize,
    pub(crate) call: ToolCall,
    /// What was decided on it, where somebody had to be asked before.
    pub(crate) decision: Option<Decision>,
    /// Whether it had started in another process, and is of a kind that goes on where it was.
    pub(crate) again: bool,
}

/// How insistently a summary is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SummaryAttempt {
    /// With the tools at hand, as in every request before, so that the provider's cache is used.
    First,
    /// The same, with a word that text is wanted.
    TextOnly,
    /// Without any tool to call.
    WithoutTools,
}

/// How a run ended: with a finish call, or not.
pub(crate) type End = Result<Finish, RunError>;

/// An error of a model as a journal keeps it: what callers tell apart, and its words.
mod written_error {
    use std::sync::Arc;

    use cantle_core::llm::{LlmError, LlmErrorKind};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct Written {
        kind: LlmErrorKind,
        message: String,
        advice: Option<String>,
    }

    pub(super) fn serialize<S: Serializer>(error: &LlmError, to: S) -> Result<S::Ok, S::Error> {
        let written = Written {
            kind: error.kind(),
            message: error.to_string(),
            advice: error.advice().map(str::to_owned),
        };
        written.serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Arc<LlmError>, D::Error> {
        let Written {
            kind,
            message,
            advice,
        } = Written::deserialize(from)?;
        let error = LlmError::new(kind, message);
        Ok(Arc::new(match advice {
            Some(advice) => error.with_advice(advice),
            None => error,
        }))
    }
}
