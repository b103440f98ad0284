//! Reports on files copied between the host and a sandbox.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

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
    /// Whether something had its name, so that it was saved as `NAME.1` or the like.
    pub renamed: bool,
    /// The SHA-256 of its content in hexadecimal, if it was saved on the host.
    pub sha256: Option<String>,
}

/// How output files are saved in a directory of the host.
#[must_use]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutputOptions {
    /// Whether files that exist are replaced. Otherwise they stay, and the new file is saved beside one as
    /// `NAME.1`, unless both are equal or [`earlier`](Self::earlier) allows it.
    pub overwrite: bool,
    /// The SHA-256, in hexadecimal, of files that an earlier run saved, by their path below the directory. They
    /// are replaced if they have not changed since.
    pub earlier: BTreeMap<PathBuf, String>,
    /// Maximum size of one file. A file with holes can be larger than all that its sandbox may store.
    pub max_file_bytes: Option<u64>,
}

impl OutputOptions {
    /// Replaces files that exist.
    pub fn with_overwrite(mut self) -> Self {
        self.overwrite = true;
        self
    }

    /// Replaces files that an earlier run saved, by path and SHA-256.
    pub fn with_earlier(mut self, earlier: impl IntoIterator<Item = (PathBuf, String)>) -> Self {
        self.earlier = earlier.into_iter().collect();
        self
    }

    /// Sets the maximum size of one file.
    pub fn with_max_file_bytes(mut self, bytes: u64) -> Self {
        self.max_file_bytes = Some(bytes);
        self
    }
}

/// A file that was not copied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RefusedFile {
    /// Its path where it was to be copied from.
    pub source: String,
    /// The reason.
    pub reason: String,
}

impl RefusedFile {
    /// A file that was not copied for this reason.
    pub fn new(source: impl Into<String>, reason: impl Into<String>) -> Self {
        Self {
            source: source.into(),
            reason: reason.into(),
        }
    }
}
