//! Errors of stores and catalogues.

use std::error::Error as StdError;

use cantle_core::sandbox::{SandboxError, SandboxErrorKind};
use cantle_core::tool::ToolError;
use object_store::Error as ObjectError;

/// An error of a store or a catalogue. [`Display`](std::fmt::Display) says what to do where something can
/// be done; the cause is the [`source`](StdError::source).
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct FilesError {
    kind: FilesErrorKind,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// The kind of a [`FilesError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FilesErrorKind {
    /// The owner has no such file.
    NotFound,
    /// The file is larger than a file may be.
    TooLarge,
    /// The owner may not store that much.
    QuotaExceeded,
    /// An argument is invalid: an empty owner, a range beyond the file.
    InvalidInput,
    /// A setting is invalid, or names what does not work here.
    Configuration,
    /// The source of an upload failed.
    Source,
    /// The store's object differs from the record.
    Damaged,
    /// The store failed.
    Store,
    /// The catalogue failed.
    Catalogue,
}

impl FilesError {
    /// Creates an error.
    pub fn new(kind: FilesErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            source: None,
        }
    }

    /// Sets the cause.
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Returns the kind.
    pub fn kind(&self) -> FilesErrorKind {
        self.kind
    }

    /// The answer for a file that does not exist and for one of another owner.
    pub(crate) fn not_found(id: impl std::fmt::Display) -> Self {
        Self::new(FilesErrorKind::NotFound, format!("File not found: {id}"))
    }

    pub(crate) fn configuration(message: impl Into<String>) -> Self {
        Self::new(FilesErrorKind::Configuration, message)
    }

    pub(crate) fn store(source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::new(FilesErrorKind::Store, "the file store failed").with_source(source)
    }

    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(crate) fn catalogue(source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::new(FilesErrorKind::Catalogue, "the file catalogue failed").with_source(source)
    }
}

impl From<ObjectError> for FilesError {
    fn from(error: ObjectError) -> Self {
        Self::store(error)
    }
}

/// The message without its cause, which may name the store's addresses.
impl From<FilesError> for ToolError {
    fn from(error: FilesError) -> Self {
        Self::failed(error.to_string()).with_source(error)
    }
}

impl From<FilesError> for SandboxError {
    fn from(error: FilesError) -> Self {
        let converted = Self::new(SandboxErrorKind::Io, error.message);
        match error.source {
            Some(source) => converted.with_source(source),
            None => converted,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sandbox_error_names_the_cause_once() {
        let error = SandboxError::from(FilesError::store("no route to host"));
        assert_eq!(error.to_string(), "the file store failed");
        let cause = error.source().map(ToString::to_string);
        assert_eq!(cause.as_deref(), Some("no route to host"));
    }
}
