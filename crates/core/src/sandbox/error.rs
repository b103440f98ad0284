//! Sandbox errors.

use std::error::Error as StdError;
use std::io;

use serde::{Deserialize, Serialize};

use crate::escape::join_up_to;
use crate::policy::PolicyField;

/// An error of a sandbox operation. [`Display`](std::fmt::Display) is for people;
/// [`advice`](Self::advice) is for the model. A cause is either part of the message or the
/// [`source`](StdError::source).
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct SandboxError {
    kind: SandboxErrorKind,
    message: String,
    advice: Option<String>,
    unenforced: Vec<PolicyField>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// The kind of a [`SandboxError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SandboxErrorKind {
    /// The sandbox ended without being closed.
    Gone,
    /// The sandbox, or the command's input, was closed.
    Closed,
    /// A requirement of the backend is missing.
    Unavailable,
    /// The policy can't be enforced here.
    Unenforceable,
    /// The backend doesn't support the operation.
    Unsupported,
    /// The request is invalid: NUL in a path, arguments too long.
    InvalidInput,
    /// The file, directory or program doesn't exist.
    NotFound,
    /// The path already exists.
    AlreadyExists,
    /// The path is not a regular file.
    NotAFile,
    /// The path is not a directory.
    NotADirectory,
    /// The path leads out of the sandbox.
    OutsideSandbox,
    /// The operating system denied permission.
    PermissionDenied,
    /// No space or inodes are left.
    StorageFull,
    /// Any other I/O error.
    Io,
}

impl SandboxError {
    /// Creates an error.
    pub fn new(kind: SandboxErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            advice: None,
            unenforced: Vec::new(),
            source: None,
        }
    }

    /// Creates an error of kind [`SandboxErrorKind::Gone`].
    pub fn gone(message: impl Into<String>) -> Self {
        Self::new(SandboxErrorKind::Gone, message)
    }

    /// Creates an error of kind [`SandboxErrorKind::Unavailable`].
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(SandboxErrorKind::Unavailable, message)
    }

    /// Creates an error of kind [`SandboxErrorKind::InvalidInput`].
    pub fn invalid_input(message: impl Into<String>) -> Self {
        Self::new(SandboxErrorKind::InvalidInput, message)
    }

    /// The backend doesn't support the operation.
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(SandboxErrorKind::Unsupported, message)
    }

    /// Creates an error that lists the policy fields that can't be enforced.
    pub fn unenforceable(backend: &str, fields: Vec<PolicyField>) -> Self {
        let names = join_up_to(usize::MAX, &fields);
        let message = format!("the {backend} backend can't enforce the policy here: {names}");
        Self {
            unenforced: fields,
            ..Self::new(SandboxErrorKind::Unenforceable, message)
        }
    }

    /// Creates an error from a failed system call, which the message states; `doing` reads like "failed to
    /// read `x`".
    #[expect(
        clippy::needless_pass_by_value,
        reason = "the callers have no further use for the error"
    )]
    pub fn io(doing: impl Into<String>, error: io::Error) -> Self {
        let kind = match error.kind() {
            io::ErrorKind::NotFound => SandboxErrorKind::NotFound,
            io::ErrorKind::AlreadyExists => SandboxErrorKind::AlreadyExists,
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                SandboxErrorKind::PermissionDenied
            }
            io::ErrorKind::NotADirectory => SandboxErrorKind::NotADirectory,
            io::ErrorKind::IsADirectory => SandboxErrorKind::NotAFile,
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                SandboxErrorKind::StorageFull
            }
            io::ErrorKind::InvalidInput
            | io::ErrorKind::InvalidFilename
            | io::ErrorKind::ArgumentListTooLong => SandboxErrorKind::InvalidInput,
            io::ErrorKind::BrokenPipe => SandboxErrorKind::Closed,
            _ => SandboxErrorKind::Io,
        };
        Self::new(kind, format!("{}: {error}", doing.into()))
    }

    /// Sets the advice for the model.
    pub fn with_advice(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }

    /// Sets the cause, which the message does not state.
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Returns the kind.
    pub fn kind(&self) -> SandboxErrorKind {
        self.kind
    }

    /// Returns the advice for the model.
    pub fn advice(&self) -> Option<&str> {
        self.advice.as_deref()
    }

    /// Returns the policy fields of a [`SandboxErrorKind::Unenforceable`] error.
    pub fn unenforced(&self) -> &[PolicyField] {
        &self.unenforced
    }
}

#[cfg(test)]
mod tests;
