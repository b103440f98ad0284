//! Why a tool failed.

use std::any::Any;
use std::error::Error as StdError;
use std::fmt;

use super::ArgumentError;
use crate::sandbox::{SandboxError, SandboxErrorKind};

/// A tool that could not do its work. The model sees the message; the run goes on, unless the
/// sandbox is gone.
#[derive(Debug)]
pub struct ToolError {
    kind: ToolErrorKind,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// The kinds of tool failure that the loop tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ToolErrorKind {
    /// The arguments are not what the tool takes; the model can mend them.
    InvalidArguments,
    /// The tool failed.
    Failed,
    /// The tool panicked.
    Panicked,
    /// The call was cancelled.
    Cancelled,
    /// The sandbox is gone; this ends the run.
    SandboxGone,
}

impl ToolError {
    /// A tool that failed; the model reads `message`, so it says what to do instead.
    pub fn failed(message: impl Into<String>) -> Self {
        Self {
            kind: ToolErrorKind::Failed,
            message: message.into(),
            source: None,
        }
    }

    /// A tool that panicked with `message`.
    pub fn panicked(message: impl fmt::Display) -> Self {
        let message = format!("The tool failed with an internal error: {message}");
        Self {
            kind: ToolErrorKind::Panicked,
            message,
            source: None,
        }
    }

    /// A tool that panicked with this payload, as `catch_unwind` and `join` return it.
    #[must_use]
    pub fn of_panic(payload: &(dyn Any + Send)) -> Self {
        Self::panicked(panic_message(payload))
    }

    /// A call that was cancelled.
    #[must_use]
    pub fn cancelled() -> Self {
        let message = "The call was cancelled.".to_owned();
        Self {
            kind: ToolErrorKind::Cancelled,
            message,
            source: None,
        }
    }

    /// The same with the error that caused it.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// What kind of failure it is.
    #[must_use]
    pub fn kind(&self) -> ToolErrorKind {
        self.kind
    }
}

/// What a panic said, as far as it was text.
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
