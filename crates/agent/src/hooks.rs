//! Hooks: code of yours that looks on and decides.

use std::fmt;
use std::panic::AssertUnwindSafe;

use async_trait::async_trait;
use cantle_core::content::Content;
use cantle_core::event::Finish;
use cantle_core::message::{SharedMessage, ToolCall};
use cantle_core::tool::panic_message;
use futures_util::FutureExt as _;

use crate::error::{RunError, RunErrorKind};

/// Decides before a model call, before and after a tool call, and at the finish. Each function says,
/// unless it is yours, that all goes on as it would.
///
/// A hook may take its time: the run waits for it. What it decided is in the journal, so that a call
/// which began is not decided on again where the run is resumed. One that panics ends the run with
/// [`RunErrorKind::Hook`]: what it would have decided, nobody knows.
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

/// Calls a hook; one that panics is an error that names it.
pub(crate) async fn guarded<T>(name: &str, hook: impl Future<Output = T>) -> Result<T, RunError> {
    let called = AssertUnwindSafe(hook).catch_unwind().await;
    called.map_err(|payload| {
        let said = panic_message(payload.as_ref());
        let message = format!("the hook `{name}` panicked: {said}");
        RunError::new(RunErrorKind::Hook, message)
    })
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
    /// The model sees this, as a success or a failure. A finish call that succeeded ends the run, and
    /// one that failed does not, whatever is said here.
    Answer {
        /// What it sees.
        content: Content,
        /// Whether the tool is said to have done what it was asked to.
        success: bool,
    },
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
