//! Hooks: code of the caller that observes a run and makes decisions in it.

use std::fmt;
use std::panic::AssertUnwindSafe;

use async_trait::async_trait;
use auto_impl::auto_impl;
use cantle_core::content::Content;
use cantle_core::event::Finish;
use cantle_core::message::{SharedMessage, ToolCall};
use cantle_core::tool::panic_message;
use futures_util::FutureExt as _;

use crate::error::{RunError, RunErrorKind};

/// Decisions before a model call, before and after a tool call, and at the finish. By default, none
/// changes the run.
///
/// The run waits for its hooks. Decisions are in the journal, so that a resumed run does not repeat
/// those on calls that have started. A hook that panics ends the run with [`RunErrorKind::Hook`].
#[async_trait]
#[auto_impl(Arc, Box)]
pub trait Hooks: fmt::Debug + Send + Sync {
    /// Called before the model is asked for a turn, with the conversation that it will see.
    async fn before_model(&self, turn: u32, messages: &[SharedMessage]) -> BeforeModel {
        let _ = (turn, messages);
        BeforeModel::Ask
    }

    /// Called before a tool.
    async fn before_tool(&self, call: &ToolCall) -> BeforeTool {
        let _ = call;
        BeforeTool::Call
    }

    /// Called after a tool, with the result for the model.
    async fn after_tool(&self, call: &ToolCall, result: &Content, success: bool) -> AfterTool {
        let _ = (call, result, success);
        AfterTool::Keep
    }

    /// Called before a successful finish call ends the run, or an answer in text, which is the `reason` then.
    async fn at_finish(&self, finish: &Finish) -> AtFinish {
        let _ = finish;
        AtFinish::Accept
    }
}

/// Calls a hook. A panic becomes an error with the hook's name.
pub(crate) async fn guarded<T>(name: &str, hook: impl Future<Output = T>) -> Result<T, RunError> {
    let called = AssertUnwindSafe(hook).catch_unwind().await;
    called.map_err(|payload| {
        let panic = panic_message(payload.as_ref());
        let message = format!("the hook `{name}` panicked: {panic}");
        RunError::new(RunErrorKind::Hook, message)
    })
}

/// The decision before a model call.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum BeforeModel {
    /// Asks the model.
    Ask,
    /// Adds a message in the user's role, and asks the model.
    Tell(Content),
    /// Ends the run.
    Stop {
        /// The reason, for people.
        reason: String,
    },
}

/// The decision before a tool call.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum BeforeTool {
    /// Calls the tool, if [approvals](crate::Approvals) allow it.
    Call,
    /// Calls the tool with other arguments.
    Edit {
        /// The arguments: a JSON object, as text.
        arguments: String,
    },
    /// Refuses the call.
    Refuse {
        /// The reason, for the model.
        reason: String,
    },
    /// Requests approval.
    Ask,
}

/// The decision on a tool's result.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum AfterTool {
    /// Keeps the result.
    Keep,
    /// Replaces the content.
    Replace(Content),
    /// Replaces the content and the success. Whether a finish call ends the run does not change.
    Answer {
        /// The new content.
        content: Content,
        /// Whether the call counts as successful.
        success: bool,
    },
}

/// The decision on a finish call.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum AtFinish {
    /// Ends the run.
    Accept,
    /// Continues the run.
    Refuse {
        /// The reason, for the model.
        feedback: String,
    },
}
