//! The server's error type.

/// A failure to start or to shut down the server.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct ServeError {
    kind: ServeErrorKind,
    message: String,
}

/// Kinds of [`ServeError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ServeErrorKind {
    /// The address is reachable from other machines and no key is configured.
    KeyNeeded,
    /// Binding to the address failed.
    Bind,
    /// The state directory is not usable, or in use by another server.
    State,
    /// Some sandboxes could not be closed.
    LeftBehind,
}

impl ServeError {
    pub(crate) fn new(kind: ServeErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
        }
    }

    /// Returns the kind of failure.
    pub fn kind(&self) -> ServeErrorKind {
        self.kind
    }
}
