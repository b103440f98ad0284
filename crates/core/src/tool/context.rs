//! What a tool gets with each call.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::ToolError;
use super::question::{AskUser, NoUser, QuestionId};
use crate::ids::RunId;
use crate::sandbox::Sandbox;

/// What a tool needs besides its arguments. Nothing reaches a tool by another way: there are no
/// globals and no task-locals.
#[derive(Clone)]
#[non_exhaustive]
pub struct ToolContext {
    /// The run the call belongs to.
    pub run: RunId,
    /// The call.
    pub call_id: String,
    /// How many agents are above this one; 0 in the run that a person started.
    pub depth: u32,
    /// Cancelled when the call should end: the run was cancelled, or its time is over.
    pub cancellation: CancellationToken,
    /// The session's sandbox, where it has one.
    pub sandbox: Option<Arc<dyn Sandbox>>,
    /// Where to tell people what happens while the call runs.
    pub progress: Arc<dyn Progress>,
    /// The way to ask the user.
    pub user: Arc<dyn AskUser>,
    /// What the loop that makes the call hands to tools of its own making, such as sub-agents.
    /// Nothing to anybody else.
    pub caller: Option<Arc<dyn Any + Send + Sync>>,
}

impl ToolContext {
    /// A context with nothing but a call id: no sandbox, nobody to ask or to tell.
    pub fn new(run: RunId, call_id: impl Into<String>) -> Self {
        Self {
            run,
            call_id: call_id.into(),
            depth: 0,
            cancellation: CancellationToken::new(),
            sandbox: None,
            progress: Arc::new(NoProgress),
            user: Arc::new(NoUser),
            caller: None,
        }
    }

    /// The name of a question that this call asks.
    #[must_use]
    pub fn question_id(&self) -> QuestionId {
        QuestionId::new(self.run, &self.call_id)
    }

    /// The sandbox, or an error that says there is none.
    ///
    /// # Errors
    /// [`ToolErrorKind::Failed`](super::ToolErrorKind::Failed) where the session has no sandbox.
    pub fn require_sandbox(&self) -> Result<&Arc<dyn Sandbox>, ToolError> {
        self.sandbox.as_ref().ok_or_else(|| {
            ToolError::failed("This agent has no sandbox, so the tool can't work with files.")
        })
    }
}

impl fmt::Debug for ToolContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolContext")
            .field("run", &self.run)
            .field("call_id", &self.call_id)
            .field("depth", &self.depth)
            .field("sandbox", &self.sandbox.is_some())
            .finish_non_exhaustive()
    }
}

/// Takes what a tool writes while it runs, or what a backend says while it opens a sandbox. For people
/// who watch: pieces may be joined or dropped.
pub trait Progress: fmt::Debug + Send + Sync {
    /// A piece of output.
    fn output(&self, text: &str);
}

/// Nobody watches.
#[derive(Debug)]
pub(crate) struct NoProgress;

impl Progress for NoProgress {
    fn output(&self, _: &str) {}
}
