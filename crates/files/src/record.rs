//! One file of the catalogue.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::error::{FilesError, FilesErrorKind};

/// Id of a file: a UUID whose order is that of creation.
pub type FileId = Uuid;

/// The catalogue's entry for one file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FileRecord {
    /// Id of the file.
    pub id: FileId,
    /// Id of the principal whose file it is.
    pub owner: String,
    /// Name, without directories; see [`safe_name`](crate::safe_name).
    pub filename: String,
    /// Key of the object, below the store's prefix.
    pub key: String,
    /// Media type, from the name's extension.
    pub mime_type: String,
    /// Size.
    pub size_bytes: u64,
    /// SHA-256 of the content, in hexadecimal digits.
    pub sha256: String,
    /// Permanent address, if the store has public ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public_url: Option<String>,
    /// Time of the record, in microseconds.
    pub created_at: Timestamp,
    /// The run that produced the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// Facts of the program that stored the file.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
}

/// Files that an owner has stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Usage {
    /// Number of files.
    pub files: u64,
    /// Total size.
    pub bytes: u64,
}

impl Usage {
    /// Creates a usage.
    pub fn new(files: u64, bytes: u64) -> Self {
        Self { files, bytes }
    }
}

/// Maximum of the files of one owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Quota {
    /// Number of files.
    pub files: u64,
    /// Total size.
    pub bytes: u64,
}

impl Quota {
    /// Creates a quota.
    pub fn new(files: u64, bytes: u64) -> Self {
        Self { files, bytes }
    }

    /// Checks that a file of this size may be added.
    ///
    /// # Errors
    /// The quota [is exceeded](Self::exceeded).
    pub fn check(self, usage: Usage, size_bytes: u64) -> Result<(), FilesError> {
        let bytes = usage.bytes.saturating_add(size_bytes);
        match usage.files < self.files && bytes <= self.bytes {
            true => Ok(()),
            false => Err(self.exceeded()),
        }
    }

    /// Returns the refusal of a file for which there is no quota.
    pub fn exceeded(self) -> FilesError {
        let message = format!(
            "the quota of {} files and {} bytes is used up: delete files that are no longer needed",
            self.files, self.bytes
        );
        FilesError::new(FilesErrorKind::QuotaExceeded, message)
    }
}

impl Default for Quota {
    /// 10,000 files, 10 GiB.
    fn default() -> Self {
        Self::new(10_000, 10 << 30)
    }
}
