//! Errors of a run store.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::path::Path;

/// An error of a run store, or of a run in it.
#[derive(Debug)]
pub struct StoreError {
    kind: StoreErrorKind,
    message: String,
    source: Option<io::Error>,
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
            source: None,
        }
    }

    pub(super) fn io(action: &str, path: &Path, source: io::Error) -> Self {
        Self {
            kind: StoreErrorKind::Io,
            message: format!("failed to {action} {}: {source}", path.display()),
            source: Some(source),
        }
    }

    /// Returns the kind.
    #[must_use]
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for StoreError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        // The message includes that of the source.
        self.source.as_ref()?.source()
    }
}
