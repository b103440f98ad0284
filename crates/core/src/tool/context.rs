//! What a tool gets with each call.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;

use super::ToolError;
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
        }
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

/// Takes a tool's output while it runs. For people who watch: pieces may be joined or dropped.
pub trait Progress: Send + Sync {
    /// A piece of output.
    fn output(&self, text: &str);
}

/// Nobody watches.
#[derive(Debug)]
struct NoProgress;

impl Progress for NoProgress {
    fn output(&self, _: &str) {}
}

/// Somebody who can be asked while a run goes on.
#[async_trait]
pub trait AskUser: Send + Sync {
    /// Whether there is anybody; the system prompt tells the model.
    fn is_available(&self) -> bool;

    /// Asks and waits for the answer.
    ///
    /// # Errors
    /// Where nobody can or will answer; the model sees the message.
    async fn ask(&self, question: Question) -> Result<String, ToolError>;
}

/// A question to the user.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Question {
    /// What is asked.
    pub text: String,
    /// The answers to choose from; any text where empty.
    pub choices: Vec<String>,
    /// The answer where the user gives none.
    pub default: Option<String>,
}

impl Question {
    /// A question that any text answers.
    pub fn new(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            choices: Vec::new(),
            default: None,
        }
    }
}

/// Nobody is there to be asked.
#[derive(Debug)]
#[expect(clippy::exhaustive_structs, reason = "a unit")]
pub struct NoUser;

#[async_trait]
impl AskUser for NoUser {
    fn is_available(&self) -> bool {
        false
    }

    async fn ask(&self, _: Question) -> Result<String, ToolError> {
        Err(ToolError::failed(
            "Nobody can be asked in this run. Decide yourself and go on.",
        ))
    }
}
