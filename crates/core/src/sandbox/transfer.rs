//! Reports on files copied between the host and a sandbox.

use std::path::PathBuf;

use super::{SandboxError, SandboxErrorKind, SandboxPath};

/// The result of an upload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct UploadedFiles {
    /// The copied files, in the order they were found.
    pub files: Vec<UploadedFile>,
    /// The entries that could not be copied.
    pub refused: Vec<RefusedFile>,
}

/// One file copied into a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UploadedFile {
    /// Its path on the host.
    pub from: PathBuf,
    /// Its path in the sandbox.
    pub to: SandboxPath,
    /// Its size.
    pub size_bytes: u64,
}

/// The result of saving output files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SavedOutputs {
    /// The saved files, in the order they were named.
    pub saved: Vec<SavedFile>,
    /// The files that were refused.
    pub refused: Vec<RefusedFile>,
}

impl SavedOutputs {
    /// Records that a file was not copied. Fails if the sandbox is gone.
    pub(super) fn refuse(&mut self, source: &str, error: SandboxError) -> Result<(), SandboxError> {
        if error.kind() == SandboxErrorKind::Gone {
            return Err(error);
        }
        self.refused
            .push(RefusedFile::new(source, error.to_string()));
        Ok(())
    }
}

/// One saved output file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SavedFile {
    /// The path as the run named it.
    pub source: String,
    /// Its path on the host, or in the sandbox it was copied to.
    pub path: PathBuf,
    /// Its size.
    pub size_bytes: u64,
}

/// A file that was not copied.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RefusedFile {
    /// Its path where it was to be copied from.
    pub source: String,
    /// The reason.
    pub reason: String,
}

impl RefusedFile {
    pub(super) fn new(source: impl Into<String>, reason: impl Into<String>) -> Self {
        Self {
            source: source.into(),
            reason: reason.into(),
        }
    }
}
