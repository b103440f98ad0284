//! What the machine is told, and what it tells.

use std::sync::Arc;
use std::time::Duration;

use cantle_core::content::Content;
use cantle_core::event::Finish;
use cantle_core::ledger::ModelCall;
use cantle_core::llm::{LlmError, StopReason};
use cantle_core::message::{AssistantMessage, ToolCall};
use cantle_core::metadata::Metadata;
use serde_json::Value;

use crate::error::RunError;

/// A thing that happened.
#[derive(Debug)]
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
    /// The run should end now.
    Cancelled {
        /// The model call that was given up, where there was one.
        call: Option<ModelCall>,
    },
}

/// A model call that failed.
#[derive(Debug)]
pub(crate) struct ModelFailure {
    pub(crate) error: Arc<LlmError>,
    /// The call, for the ledger.
    pub(crate) call: ModelCall,
}

/// How a tool call ended.
#[derive(Debug)]
pub(crate) struct CallOutcome {
    pub(crate) content: Content,
    pub(crate) success: bool,
    pub(crate) arguments_valid: bool,
    /// The arguments as parsed, for a finish tool.
    pub(crate) arguments: Value,
    pub(crate) metadata: Option<Metadata>,
    pub(crate) duration: Duration,
    /// When, in seconds since the Unix epoch.
    pub(crate) time: f64,
    /// Why the sandbox is gone, where it is: that ends the run.
    pub(crate) sandbox_gone: Option<String>,
}

/// A thing to do.
#[derive(Debug)]
pub(crate) enum Action {
    /// Ask the model for this turn, counted from 1.
    AskModel {
        /// Which turn.
        turn: u32,
    },
    /// Start a call. Several in a row run side by side.
    StartCall {
        /// Which call of the turn.
        index: usize,
        /// The call.
        call: ToolCall,
    },
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
    /// The run is over.
    End(End),
}

/// How a run ended: with a finish call, or not.
pub(crate) type End = Result<Finish, RunError>;
