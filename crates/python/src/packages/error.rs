//! Errors of package sets.

use std::io;
use std::path::Path;

use cantle_core::sandbox::{CommandOutput, SandboxError};

/// Maximum number of lines of an installer's output that an error shows.
const SHOWN_LINES: usize = 30;

/// An error of a package set.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct PackageError(PackageFailure);

#[derive(Debug, thiserror::Error)]
enum PackageFailure {
    #[error("{0}")]
    Invalid(String),
    #[error("{0}")]
    Failed(String),
    #[error(transparent)]
    Sandbox(SandboxError),
    #[error("{doing}: {error}")]
    Io { doing: String, error: io::Error },
}

/// The kind of a [`PackageError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PackageErrorKind {
    /// The request is invalid, or needs a host that is not allowed.
    Invalid,
    /// The packages were not found or not installed; the message has the installer's output.
    Failed,
    /// A sandbox failed.
    Sandbox,
    /// The store can't be read or written.
    Io,
}

impl PackageError {
    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self(PackageFailure::Invalid(message.into()))
    }

    pub(super) fn failed(message: impl Into<String>) -> Self {
        Self(PackageFailure::Failed(message.into()))
    }

    /// An installer that failed.
    pub(super) fn of_output(doing: &str, output: &CommandOutput) -> Self {
        let mut text = output.stdout.text() + &output.stderr.text();
        for note in &output.exit.notes {
            text.push('\n');
            text.push_str(note);
        }
        let lines: Vec<_> = text.lines().filter(|it| !it.trim().is_empty()).collect();
        let shown = lines.get(lines.len().saturating_sub(SHOWN_LINES)..);
        let shown = shown.unwrap_or_default().join("\n  ");
        let status = &output.exit.status;
        Self::failed(format!("{doing} failed ({status}):\n  {shown}"))
    }

    pub(super) fn io(doing: &str, path: &Path, error: io::Error) -> Self {
        let doing = format!("failed to {doing} {}", path.display());
        Self(PackageFailure::Io { doing, error })
    }

    /// Returns the kind of error.
    pub fn kind(&self) -> PackageErrorKind {
        match &self.0 {
            PackageFailure::Invalid(_) => PackageErrorKind::Invalid,
            PackageFailure::Failed(_) => PackageErrorKind::Failed,
            PackageFailure::Sandbox(_) => PackageErrorKind::Sandbox,
            PackageFailure::Io { .. } => PackageErrorKind::Io,
        }
    }
}

impl From<SandboxError> for PackageError {
    fn from(error: SandboxError) -> Self {
        Self(PackageFailure::Sandbox(error))
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[test]
    fn a_cause_in_the_message_is_no_source() {
        let error = PackageError::io("read", Path::new("/x"), io::Error::other("broken"));
        assert_eq!(error.to_string(), "failed to read /x: broken");
        assert!(error.source().is_none());
    }
}
