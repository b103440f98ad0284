//! What can go wrong with an agent, a session and a run.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use cantle_core::event::RunStatus;
use cantle_core::llm::{LlmError, LlmErrorKind};
use cantle_core::sandbox::{SandboxError, SandboxErrorKind};

use crate::budget::BudgetState;

/// An agent whose definition makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct AgentError {
    message: String,
}

impl AgentError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
        }
    }
}

/// A session that could not be opened, run or closed.
#[derive(Debug)]
pub struct SessionError {
    kind: SessionErrorKind,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// The kinds of session failure that callers tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SessionErrorKind {
    /// An input file is missing, a pattern matches nothing, or two inputs would be one file.
    Input,
    /// The output directory can't be written.
    Output,
    /// A provider could not open or close.
    Provider,
    /// The sandbox could not be opened or failed.
    Sandbox,
    /// Two tools have the same name, or more than one sandbox was opened.
    Tools,
    /// A budget can't be kept: nobody says what the model's calls cost.
    Budget,
    /// A run of this session is not over yet.
    Busy,
    /// The journal of the run can't be read, or there is nothing to go on with.
    Journal,
    /// The run was begun by an agent that is different.
    Identity,
}

impl SessionError {
    pub(crate) fn new(kind: SessionErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            source: None,
        }
    }

    pub(crate) fn with_source(
        mut self,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        self.source = Some(source.into());
        self
    }

    /// The sandbox's error behind it, where it is one.
    #[must_use]
    pub fn sandbox_error(&self) -> Option<&SandboxError> {
        let mut cause = self
            .source
            .as_deref()
            .map(|it| it as &(dyn StdError + 'static));
        while let Some(error) = cause {
            if let Some(session) = error.downcast_ref::<Self>() {
                return session.sandbox_error();
            }
            if let Some(found) = error.downcast_ref() {
                return Some(found);
            }
            cause = error.source();
        }
        None
    }

    /// Whether a sandbox that should be opened again is gone.
    pub(crate) fn is_gone(&self) -> bool {
        let error = self.sandbox_error();
        error.is_some_and(|error| error.kind() == SandboxErrorKind::Gone)
    }

    /// What kind of failure it is.
    #[must_use]
    pub fn kind(&self) -> SessionErrorKind {
        self.kind
    }
}

impl fmt::Display for SessionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for SessionError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        // What the source says itself has been said.
        self.source.as_deref()?.source()
    }
}

/// Why a run ended without finishing. Its text is one short line; what lies behind it is in
/// [`source`](StdError::source).
#[derive(Clone, Debug)]
pub struct RunError {
    kind: RunErrorKind,
    message: String,
    advice: Option<String>,
    llm: Option<Arc<LlmError>>,
}

/// The ways a run ends without finishing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RunErrorKind {
    /// The turns ran out.
    MaxTurns,
    /// The conversation does not fit the model's context window.
    ContextOverflow,
    /// An answer was cut off at the model's output limit.
    OutputLimit,
    /// A budget is spent: tokens, money, time or tool calls.
    Budget,
    /// The model did the same over and over.
    NoProgress,
    /// A hook ended it.
    Stopped,
    /// A hook panicked; the message says which.
    Hook,
    /// It was cancelled.
    Cancelled,
    /// The model or its provider failed.
    Model,
    /// The sandbox is gone.
    SandboxGone,
    /// The journal can't be written: what comes after could not be resumed.
    Journal,
    /// Something of ours failed.
    Internal,
}

impl RunError {
    pub(crate) fn new(kind: RunErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            advice: None,
            llm: None,
        }
    }

    pub(crate) fn cancelled() -> Self {
        Self::new(RunErrorKind::Cancelled, "the run was cancelled")
    }

    pub(crate) fn budget(spent: BudgetState) -> Self {
        Self::new(
            RunErrorKind::Budget,
            format!("the run's budget is spent: {spent}"),
        )
    }

    pub(crate) fn with_advice(mut self, advice: &str) -> Self {
        self.advice = Some(advice.to_owned());
        self
    }

    /// The same with the model's failure that it is about, whose words it has.
    pub(crate) fn with_llm(mut self, failure: Arc<LlmError>) -> Self {
        self.llm = Some(failure);
        self
    }

    /// How it ended.
    #[must_use]
    pub fn kind(&self) -> RunErrorKind {
        self.kind
    }

    /// The kind of the model's failure, where it was that.
    #[must_use]
    pub fn llm_kind(&self) -> Option<LlmErrorKind> {
        self.llm.as_ref().map(|failure| failure.kind())
    }

    /// What to try, for people.
    #[must_use]
    pub fn advice(&self) -> Option<&str> {
        let from_model = || self.llm.as_ref()?.advice();
        self.advice.as_deref().or_else(from_model)
    }

    /// The same as a run's status.
    #[must_use]
    pub fn status(&self) -> RunStatus {
        match self.kind {
            RunErrorKind::MaxTurns
            | RunErrorKind::ContextOverflow
            | RunErrorKind::OutputLimit
            | RunErrorKind::Budget
            | RunErrorKind::NoProgress => RunStatus::LimitReached,
            RunErrorKind::Stopped | RunErrorKind::Cancelled => RunStatus::Cancelled,
            RunErrorKind::Model => RunStatus::ModelFailed,
            RunErrorKind::SandboxGone => RunStatus::SandboxFailed,
            RunErrorKind::Hook | RunErrorKind::Journal | RunErrorKind::Internal => {
                RunStatus::InternalError
            }
        }
    }
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for RunError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        // What the failure says itself has been said.
        self.llm.as_ref()?.source()
    }
}
