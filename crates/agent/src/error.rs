//! Errors of agents, sessions and runs.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use cantle_core::event::RunStatus;
use cantle_core::llm::{LlmError, LlmErrorKind};
use cantle_core::sandbox::{SandboxError, SandboxErrorKind};
use cantle_core::tool::ProviderError;

use crate::resource::Resource;

/// An invalid agent definition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidAgent(pub(crate) String);

/// An error of opening, using or closing a session.
#[derive(Debug)]
pub struct SessionError {
    kind: SessionErrorKind,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// The kinds of [`SessionError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SessionErrorKind {
    /// An input file is missing, a pattern matches nothing, or two inputs would be one file.
    Input,
    /// The output directory can't be written.
    Output,
    /// A provider could not open or close.
    Provider,
    /// The sandbox could not be opened, or failed.
    Sandbox,
    /// Two tools have the same name, or more than one sandbox was opened.
    Tools,
    /// An approval rule is about a tool or an argument that does not exist.
    Approvals,
    /// A budget of money can't be enforced: the cost of the model's calls is unknown.
    Budget,
    /// Another run of this session is in progress.
    Busy,
    /// The journal of the run can't be read, or the run can't be resumed.
    Journal,
    /// The run was begun by a different agent.
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

    /// Returns the sandbox error that caused it, if any.
    pub fn sandbox_error(&self) -> Option<&SandboxError> {
        let mut cause = self
            .source
            .as_deref()
            .map(|it| it as &(dyn StdError + 'static));
        while let Some(error) = cause {
            if let Some(session) = error.downcast_ref::<Self>() {
                return session.sandbox_error();
            }
            if let Some(provider) = error.downcast_ref::<ProviderError>() {
                return provider.sandbox_error();
            }
            if let Some(found) = error.downcast_ref() {
                return Some(found);
            }
            cause = error.source();
        }
        None
    }

    /// Whether a sandbox that was to be reattached is gone.
    pub(crate) fn is_gone(&self) -> bool {
        let error = self.sandbox_error();
        error.is_some_and(|error| error.kind() == SandboxErrorKind::Gone)
    }

    /// Returns the kind.
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
        // The message includes that of the source.
        self.source.as_deref()?.source()
    }
}

/// The reason why a run ended without finishing. Its message is one short line; the cause is the
/// [`source`](StdError::source).
#[derive(Clone, Debug)]
pub struct RunError {
    kind: RunErrorKind,
    message: String,
    advice: Option<String>,
    llm: Option<Arc<LlmError>>,
    resource: Option<Resource>,
}

/// The kinds of [`RunError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RunErrorKind {
    /// The maximum number of turns was reached.
    MaxTurns,
    /// The conversation does not fit the model's context window.
    ContextOverflow,
    /// An answer was cut off at the model's output limit.
    OutputLimit,
    /// A budget was exhausted: tokens, money, time or tool calls.
    Budget,
    /// The model repeated the same calls.
    NoProgress,
    /// A hook ended the run.
    Stopped,
    /// A hook panicked; the message says which.
    Hook,
    /// The run was cancelled.
    Cancelled,
    /// The model or its provider failed.
    Model,
    /// The sandbox is gone.
    SandboxGone,
    /// The journal can't be written, so the run could not be resumed.
    Journal,
    /// An internal error.
    Internal,
}

impl RunError {
    pub(crate) fn new(kind: RunErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            advice: None,
            llm: None,
            resource: None,
        }
    }

    pub(crate) fn cancelled() -> Self {
        Self::new(RunErrorKind::Cancelled, "the run was cancelled")
    }

    /// The error of a run whose journal can't be written.
    pub(crate) fn journal(error: &impl fmt::Display) -> Self {
        let advice = "Free space on the disk, or make the directory writable; then resume the run.";
        Self::new(RunErrorKind::Journal, error.to_string()).with_advice(advice)
    }

    pub(crate) fn with_advice(mut self, advice: &str) -> Self {
        self.advice = Some(advice.to_owned());
        self
    }

    /// Sets the resource whose budget is exhausted.
    pub(crate) fn with_resource(mut self, resource: Resource) -> Self {
        self.resource = Some(resource);
        self
    }

    /// Sets the model error, whose message this error includes.
    pub(crate) fn with_llm(mut self, failure: Arc<LlmError>) -> Self {
        self.llm = Some(failure);
        self
    }

    /// Returns the kind.
    pub fn kind(&self) -> RunErrorKind {
        self.kind
    }

    /// Returns the kind of the model error that caused it, if any.
    pub fn llm_kind(&self) -> Option<LlmErrorKind> {
        self.llm.as_ref().map(|failure| failure.kind())
    }

    /// Returns the resource whose budget was exhausted, if that ended the run.
    pub fn resource(&self) -> Option<Resource> {
        self.resource
    }

    /// Returns advice for people, if any.
    pub fn advice(&self) -> Option<&str> {
        let from_model = || self.llm.as_ref()?.advice();
        self.advice.as_deref().or_else(from_model)
    }

    /// Returns the corresponding status.
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
        // The message includes that of the model error.
        self.llm.as_ref()?.source()
    }
}
