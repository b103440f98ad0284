//! Why something about a sandbox failed.

use std::error::Error as StdError;
use std::fmt;
use std::io;

use serde::{Deserialize, Serialize};

use crate::policy::PolicyField;

/// A sandbox operation that failed. [`Display`](fmt::Display) is for people;
/// [`advice`](Self::advice) is a sentence for the model on what to do instead.
#[derive(Debug)]
pub struct SandboxError {
    kind: SandboxErrorKind,
    message: String,
    advice: Option<String>,
    unenforced: Vec<PolicyField>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// The kinds of failure that callers tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SandboxErrorKind {
    /// The sandbox no longer exists, and not because we closed it.
    Gone,
    /// It was closed, or the command's input was.
    Closed,
    /// Something the backend needs is missing.
    Unavailable,
    /// The policy asks for what can't be enforced here.
    Unenforceable,
    /// The backend can't do this.
    Unsupported,
    /// The request makes no sense: NUL in a path, arguments too long.
    InvalidInput,
    /// There is no such file, directory or program.
    NotFound,
    /// Something is already there.
    AlreadyExists,
    /// It is not a regular file.
    NotAFile,
    /// It is not a directory.
    NotADirectory,
    /// The path leads out of the sandbox.
    OutsideSandbox,
    /// The system said no.
    PermissionDenied,
    /// No space or no inodes are left.
    StorageFull,
    /// Anything else that went wrong below.
    Io,
}

impl SandboxError {
    /// A failure of `kind`.
    pub fn new(kind: SandboxErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            advice: None,
            unenforced: Vec::new(),
            source: None,
        }
    }

    /// The sandbox no longer exists.
    pub fn gone(message: impl Into<String>) -> Self {
        Self::new(SandboxErrorKind::Gone, message)
    }

    /// The backend can't do this.
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(SandboxErrorKind::Unsupported, message)
    }

    /// The policy sets fields that can't be enforced here.
    #[must_use]
    pub fn unenforceable(backend: &str, fields: Vec<PolicyField>) -> Self {
        let names = fields
            .iter()
            .map(PolicyField::to_string)
            .collect::<Vec<_>>()
            .join(", ");
        let message = format!("the {backend} backend can't enforce the policy here: {names}");
        Self {
            unenforced: fields,
            ..Self::new(SandboxErrorKind::Unenforceable, message)
        }
    }

    /// A failed system call; `doing` reads like "failed to read `x`".
    #[must_use]
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
        Self::new(kind, format!("{}: {error}", doing.into())).with_source(error)
    }

    /// The same with a sentence for the model on what to do instead.
    #[must_use]
    pub fn with_advice(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }

    /// The same with the error that caused it.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// What kind of failure it is.
    #[must_use]
    pub fn kind(&self) -> SandboxErrorKind {
        self.kind
    }

    /// What the model can do instead.
    #[must_use]
    pub fn advice(&self) -> Option<&str> {
        self.advice.as_deref()
    }

    /// The policy fields that can't be enforced, for [`SandboxErrorKind::Unenforceable`].
    #[must_use]
    pub fn unenforced(&self) -> &[PolicyField] {
        &self.unenforced
    }
}

impl fmt::Display for SandboxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for SandboxError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

#[cfg(test)]
mod tests;
