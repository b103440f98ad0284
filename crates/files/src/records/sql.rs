//! The statements that SQLite and PostgreSQL share, and their rows.
//!
//! SQLite numbers parameters in the order in which they appear first, PostgreSQL by their names.

use jiff::Timestamp;

use crate::error::{FilesError, FilesErrorKind};
use crate::record::{FileId, FileRecord};

/// The schema's versions, in order. A released text never changes.
pub(super) const MIGRATIONS: &[&str] = &[include_str!("../../migrations/0001_files.sql")];

/// Version and identity of the catalogue; one row.
pub(super) const SCHEMA: &str = "CREATE TABLE IF NOT EXISTS cantle_files_schema \
    (only_row BIGINT PRIMARY KEY, version BIGINT NOT NULL, identity TEXT NOT NULL)";
pub(super) const FIRST_SCHEMA: &str =
    "INSERT INTO cantle_files_schema VALUES (1, 0, $1) ON CONFLICT DO NOTHING";
pub(super) const READ_SCHEMA: &str = "SELECT version, identity FROM cantle_files_schema";
pub(super) const SET_VERSION: &str = "UPDATE cantle_files_schema SET version = $1";

pub(super) const FIRST_USAGE: &str =
    "INSERT INTO cantle_file_usage VALUES ($1, 0, 0) ON CONFLICT DO NOTHING";
/// Changes no row if the quota would be exceeded.
pub(super) const ADD_USAGE: &str = "UPDATE cantle_file_usage SET files = files + 1, bytes = bytes + $1 \
    WHERE owner = $2 AND files + 1 <= $3 AND bytes + $1 <= $4";
pub(super) const SUBTRACT_USAGE: &str =
    "UPDATE cantle_file_usage SET files = files - 1, bytes = bytes - $1 WHERE owner = $2";
pub(super) const USAGE: &str = "SELECT files, bytes FROM cantle_file_usage WHERE owner = $1";
pub(super) const INSERT: &str =
    "INSERT INTO cantle_files VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)";
pub(super) const FIND: &str = "SELECT * FROM cantle_files WHERE owner = $1 AND id = $2";
pub(super) const LIST: &str =
    "SELECT * FROM cantle_files WHERE owner = $1 AND id < $2 ORDER BY id DESC LIMIT $3";
pub(super) const REMOVE: &str = "DELETE FROM cantle_files WHERE owner = $1 AND id = $2 RETURNING *";
pub(super) const BY_KEY: &str = "SELECT * FROM cantle_files WHERE key = $1";

/// Greater than every id.
pub(super) const AFTER_LAST_ID: &str = "g";

/// The columns of one file as the databases store them.
pub(super) struct Row {
    pub(super) id: String,
    pub(super) owner: String,
    pub(super) filename: String,
    pub(super) key: String,
    pub(super) mime_type: String,
    pub(super) size_bytes: i64,
    pub(super) sha256: String,
    pub(super) public_url: Option<String>,
    pub(super) created_at_us: i64,
    pub(super) run: Option<String>,
    pub(super) metadata: String,
}

/// Creates a [`Row`] from a row of either driver.
macro_rules! row {
    ($row:expr) => {
        $crate::records::sql::Row {
            id: $row.try_get(0)?,
            owner: $row.try_get(1)?,
            filename: $row.try_get(2)?,
            key: $row.try_get(3)?,
            mime_type: $row.try_get(4)?,
            size_bytes: $row.try_get(5)?,
            sha256: $row.try_get(6)?,
            public_url: $row.try_get(7)?,
            created_at_us: $row.try_get(8)?,
            run: $row.try_get(9)?,
            metadata: $row.try_get(10)?,
        }
    };
}
pub(super) use row;

impl Row {
    pub(super) fn of(record: &FileRecord) -> Self {
        Self {
            id: record.id.to_string(),
            owner: record.owner.clone(),
            filename: record.filename.clone(),
            key: record.key.clone(),
            mime_type: record.mime_type.clone(),
            size_bytes: stored(record.size_bytes),
            sha256: record.sha256.clone(),
            public_url: record.public_url.clone(),
            created_at_us: record.created_at.as_microsecond(),
            run: record.run.clone(),
            metadata: serde_json::to_string(&record.metadata).unwrap_or_default(),
        }
    }

    pub(super) fn into_record(self) -> Result<FileRecord, FilesError> {
        let id = FileId::try_parse(&self.id).map_err(FilesError::catalogue)?;
        let created_at =
            Timestamp::from_microsecond(self.created_at_us).map_err(FilesError::catalogue)?;
        let metadata = serde_json::from_str(&self.metadata).map_err(FilesError::catalogue)?;
        Ok(FileRecord {
            id,
            owner: self.owner,
            filename: self.filename,
            key: self.key,
            mime_type: self.mime_type,
            size_bytes: counted(self.size_bytes),
            sha256: self.sha256,
            public_url: self.public_url,
            created_at,
            run: self.run,
            metadata,
        })
    }
}

/// A number as the databases store it.
pub(super) fn stored(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A number that the databases stored.
pub(super) fn counted(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}

/// Returns the migrations that a catalogue of this version lacks, with their versions.
pub(super) fn pending(version: i64) -> Result<Vec<(i64, &'static str)>, FilesError> {
    let known = MIGRATIONS.len();
    let done = usize::try_from(version).unwrap_or(usize::MAX);
    let Some(pending) = MIGRATIONS.get(done..) else {
        let message = format!(
            "the file catalogue has version {version} of the schema, and this program knows {known}: \
             use the newer program that changed it"
        );
        return Err(FilesError::new(FilesErrorKind::Configuration, message));
    };
    Ok((version + 1..).zip(pending.iter().copied()).collect())
}
