//! Tool errors.

use std::any::Any;
use std::error::Error as StdError;
use std::fmt;

use super::ArgumentError;
use crate::sandbox::{SandboxError, SandboxErrorKind};

/// The failure of a tool call. The model reads the message. The run continues, unless the sandbox is
/// gone.
#[derive(Debug)]
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
    /// Creates an error for the model, which should say what to do instead.
    pub fn failed(message: impl Into<String>) -> Self {
        Self {
            kind: ToolErrorKind::Failed,
            message: message.into(),
            source: None,
        }
    }

    /// Creates an error for a panic with `message`.
    pub fn panicked(message: impl fmt::Display) -> Self {
        let message = format!("The tool failed with an internal error: {message}");
        Self {
            kind: ToolErrorKind::Panicked,
            message,
            source: None,
        }
    }

    /// Creates an error from a panic payload, as `catch_unwind` and `join` return it.
    #[must_use]
    pub fn from_panic(payload: &(dyn Any + Send)) -> Self {
        Self::panicked(panic_message(payload))
    }

    /// Creates the error of a cancelled call.
    #[must_use]
    pub fn cancelled() -> Self {
        let message = "The call was cancelled.".to_owned();
        Self {
            kind: ToolErrorKind::Cancelled,
            message,
            source: None,
        }
    }

    /// Sets the cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Returns the kind.
    #[must_use]
    pub fn kind(&self) -> ToolErrorKind {
        self.kind
    }
}

/// Returns the message of a panic payload, or `unknown`.
#[must_use]
pub fn panic_message(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied())
        .unwrap_or("unknown")
}

impl fmt::Display for ToolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for ToolError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

impl From<ArgumentError> for ToolError {
    fn from(error: ArgumentError) -> Self {
        let message = error.to_string();
        Self {
            kind: ToolErrorKind::InvalidArguments,
            message,
            source: Some(Box::new(error)),
        }
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
        Self {
            kind,
            message,
            source: Some(Box::new(error)),
        }
    }
}
