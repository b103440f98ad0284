//! Tool errors.

use std::any::Any;
use std::error::Error as StdError;
use std::fmt;

use super::InvalidArguments;
use crate::sandbox::{SandboxError, SandboxErrorKind};

/// The failure of a tool call. The model reads the message. The run continues, unless the sandbox is
/// gone.
///
/// An error that was converted to this one is its [`source`](StdError::source), so that callers can handle it by its
/// type, although the message has its text.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct ToolError {
    kind: ToolErrorKind,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// The kind of a [`ToolError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ToolErrorKind {
    /// The arguments are invalid; the model can correct them.
    InvalidArguments,
    /// The tool failed.
    Failed,
    /// The tool panicked.
    Panicked,
    /// The call was cancelled.
    Cancelled,
    /// The sandbox is gone, which ends the run.
    SandboxGone,
}

impl ToolError {
    fn new(kind: ToolErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            source: None,
        }
    }

    /// Creates an error for the model, which should say what to do instead.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(ToolErrorKind::Failed, message)
    }

    /// Creates an error for a panic with `message`.
    pub fn panicked(message: impl fmt::Display) -> Self {
        let message = format!("The tool failed with an internal error: {message}");
        Self::new(ToolErrorKind::Panicked, message)
    }

    /// Creates an error from a panic payload, as `catch_unwind` and `join` return it.
    pub fn from_panic(payload: &(dyn Any + Send)) -> Self {
        Self::panicked(panic_message(payload))
    }

    /// Creates the error of a cancelled call.
    pub fn cancelled() -> Self {
        Self::new(ToolErrorKind::Cancelled, "The call was cancelled.")
    }

    /// Sets the cause.
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Returns the kind.
    pub fn kind(&self) -> ToolErrorKind {
        self.kind
    }
}

/// Returns the message of a panic payload, or `unknown`.
pub fn panic_message(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied())
        .unwrap_or("unknown")
}

impl From<InvalidArguments> for ToolError {
    fn from(error: InvalidArguments) -> Self {
        Self::new(ToolErrorKind::InvalidArguments, error.to_string()).with_source(error)
    }
}

impl From<SandboxError> for ToolError {
    fn from(error: SandboxError) -> Self {
        let kind = match error.kind() {
            SandboxErrorKind::Gone => ToolErrorKind::SandboxGone,
            _ => ToolErrorKind::Failed,
        };
        let message = match error.advice() {
            Some(advice) => format!("{error}. {advice}"),
            None => error.to_string(),
        };
        Self::new(kind, message).with_source(error)
    }
}
