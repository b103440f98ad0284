//! Errors of a run store.

use std::io;
use std::path::Path;

/// An error of a run store, or of a run in it.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct StoreError {
    kind: StoreErrorKind,
    message: String,
}

/// The kinds of [`StoreError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// The run does not exist.
    NotFound,
    /// Another process works on the run.
    InUse,
    /// The run is finished and can't be resumed.
    Finished,
    /// The journal is damaged, or of a later version.
    Unreadable,
    /// The disk or the directory failed.
    Io,
}

impl StoreError {
    pub(super) fn new(kind: StoreErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
        }
    }

    pub(super) fn io(action: &str, path: &Path, error: &io::Error) -> Self {
        let message = format!("failed to {action} {}: {error}", path.display());
        Self::new(StoreErrorKind::Io, message)
    }

    /// Returns the kind.
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }
}
