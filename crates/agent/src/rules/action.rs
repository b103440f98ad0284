//! The actions that the state machine asks for. They follow from facts and are never written down.

use std::sync::Arc;

use cantle_core::event::{EventKind, Finish};
use cantle_core::message::ToolCall;
use cantle_core::tool::Decision;

use crate::error::RunError;

/// The result of a run: a finish call, `None` for an answer in text, or an error.
pub(crate) type RunEnd = Result<Option<Finish>, RunError>;

/// Something to do.
#[derive(Debug)]
pub(crate) enum Action {
    /// Ask the model for a turn, counted from 1.
    AskModel { turn: u32 },
    /// Ask the model for a summary of the history.
    Summarize { attempt: SummaryAttempt },
    /// Start a call. Several in a row run side by side.
    StartCall {
        /// Its position in the turn.
        index: usize,
        call: Arc<ToolCall>,
        /// The decision on it, if it was made in an earlier process.
        decision: Option<Decision>,
        /// Whether an earlier process had started it, and it continues where it was.
        restarted: bool,
    },
    /// Ask the hooks whether an answer in text may end the run, like this finish call.
    AcceptText { finish: Finish },
    /// Emit an event that follows from the facts.
    Emit(Box<EventKind>),
    /// End the run.
    End(RunEnd),
}

/// The attempts at a summary, each more insistent than the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SummaryAttempt {
    /// With the tools of every other request, so that the provider's prompt cache is used.
    First,
    /// With the tools, and an instruction to answer with text.
    TextOnly,
    /// Without tools.
    WithoutTools,
}
