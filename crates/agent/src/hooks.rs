//! Hooks: code of yours that looks on and decides.

use std::fmt;

use async_trait::async_trait;
use cantle_core::content::Content;
use cantle_core::event::Finish;
use cantle_core::message::{SharedMessage, ToolCall};

/// Decides before a model call, before and after a tool call, and at the finish. Each function says,
/// unless it is yours, that all goes on as it would.
///
/// A hook may take its time: the run waits for it. What it decided is in the journal, so that a call
/// which began is not decided on again where the run is resumed.
#[async_trait]
pub trait Hooks: fmt::Debug + Send + Sync {
    /// Before the model is asked for a turn, with the conversation it will see.
    async fn before_model(&self, turn: u32, messages: &[SharedMessage]) -> BeforeModel {
        let _ = (turn, messages);
        BeforeModel::Ask
    }

    /// Before a tool is called.
    async fn before_tool(&self, call: &ToolCall) -> BeforeTool {
        let _ = call;
        BeforeTool::Call
    }

    /// After a tool was called, with what the model would see.
    async fn after_tool(&self, call: &ToolCall, result: &Content, success: bool) -> AfterTool {
        let _ = (call, result, success);
        AfterTool::Keep
    }

    /// Before a finish call that succeeded ends the run.
    async fn at_finish(&self, finish: &Finish) -> AtFinish {
        let _ = finish;
        AtFinish::Accept
    }
}

/// What is done before a model call.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum BeforeModel {
    /// The model is asked.
    Ask,
    /// It is told this in the user's role, and asked.
    Tell(Content),
    /// The run ends here.
    Stop {
        /// Why, for people.
        reason: String,
    },
}

/// What is done before a tool call.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum BeforeTool {
    /// The tool is called, as far as [approvals](crate::Approvals) go.
    Call,
    /// It is called with other arguments.
    Edit {
        /// The arguments: a JSON object, as text.
        arguments: String,
    },
    /// It is not called.
    Refuse {
        /// Why, for the model.
        reason: String,
    },
    /// Somebody is asked.
    Ask,
}

/// What is done with a tool's result.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum AfterTool {
    /// The model sees it.
    Keep,
    /// The model sees this.
    Replace(Content),
}

/// What is done with a finish call.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum AtFinish {
    /// It ends the run.
    Accept,
    /// It does not; the run goes on.
    Refuse {
        /// What is missing, for the model.
        feedback: String,
    },
}
