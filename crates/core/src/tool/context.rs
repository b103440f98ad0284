//! The context of a tool call.

use std::fmt;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::ToolError;
use super::question::{AskUser, NoUser, QuestionId};
use crate::ids::RunId;
use crate::principal::Principal;
use crate::progress::{NoProgress, Progress};
use crate::sandbox::Sandbox;

/// Everything that a tool call gets besides its arguments.
#[derive(Clone)]
#[non_exhaustive]
pub struct ToolContext {
    /// The run the call belongs to.
    pub run: RunId,
    /// The id of the call.
    pub call_id: String,
    /// Number of parent runs; 0 in the run that the user started.
    pub depth: u32,
    /// The principal on whose behalf the call is made, if the program has set one.
    pub principal: Option<Principal>,
    /// Cancelled when the call should end, after cancellation of the run or a timeout.
    pub cancellation: CancellationToken,
    /// The session's sandbox, if it has one.
    pub sandbox: Option<Arc<dyn Sandbox>>,
    /// Receives output while the call runs.
    pub progress: Arc<dyn Progress>,
    /// Asks the user.
    pub user: Arc<dyn AskUser>,
}

impl ToolContext {
    /// Creates a context without a sandbox, a user or a progress receiver.
    pub fn new(run: RunId, call_id: impl Into<String>) -> Self {
        Self {
            run,
            call_id: call_id.into(),
            depth: 0,
            principal: None,
            cancellation: CancellationToken::new(),
            sandbox: None,
            progress: Arc::new(NoProgress),
            user: Arc::new(NoUser),
        }
    }

    /// Returns the id for a question from this call.
    pub fn question_id(&self) -> QuestionId {
        QuestionId::new(self.run, &self.call_id)
    }

    /// Returns the principal, or an error for the model.
    ///
    /// # Errors
    /// [`ToolErrorKind::Failed`](super::ToolErrorKind::Failed) if the session has no principal.
    pub fn require_principal(&self) -> Result<&Principal, ToolError> {
        self.principal.as_ref().ok_or_else(|| {
            ToolError::failed(
                "user_id is required: this session acts for no one, so it has no files.",
            )
        })
    }

    /// Returns the sandbox, or an error for the model.
    ///
    /// # Errors
    /// [`ToolErrorKind::Failed`](super::ToolErrorKind::Failed) if the session has no sandbox.
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
