//! Why a server could not be started, or ended other than it was asked to.

use std::error::Error as StdError;

/// A server that did not start, or did not end well.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct ServeError {
    kind: ServeErrorKind,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// The kinds of failure that callers tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ServeErrorKind {
    /// An address that others can reach, and no key.
    KeyNeeded,
    /// The settings make no sense: an empty key, a domain that is none.
    InvalidInput,
    /// The address can't be listened on.
    Bind,
    /// The state directory can't be used, or another server uses it.
    State,
    /// Something may be left behind.
    LeftBehind,
}

impl ServeError {
    pub(crate) fn new(kind: ServeErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            source: None,
        }
    }

    pub(crate) fn io(
        kind: ServeErrorKind,
        doing: impl std::fmt::Display,
        error: std::io::Error,
    ) -> Self {
        Self {
            kind,
            message: format!("{doing}: {error}"),
            source: Some(error.into()),
        }
    }

    /// What kind of failure it is.
    #[must_use]
    pub fn kind(&self) -> ServeErrorKind {
        self.kind
    }
}
