//! The statements that SQLite and PostgreSQL share, and their rows.
//!
//! SQLite numbers parameters in the order in which they appear first, PostgreSQL by their names.

use std::error::Error as StdError;

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

/// The result of work with a driver. Whatever fails is a failure of the catalogue.
pub(super) type Result<T> = std::result::Result<T, Box<dyn StdError + Send + Sync>>;

/// Creates a record from a row, whose columns a method of the driver returns.
macro_rules! record {
    ($row:ident.$get:ident) => {
        $crate::record::FileRecord {
            id: $row.$get::<_, String>(0)?.parse()?,
            owner: $row.$get(1)?,
            filename: $row.$get(2)?,
            key: $row.$get(3)?,
            mime_type: $row.$get(4)?,
            size_bytes: $crate::records::sql::counted($row.$get(5)?),
            sha256: $row.$get(6)?,
            public_url: $row.$get(7)?,
            created_at: jiff::Timestamp::from_microsecond($row.$get(8)?)?,
            run: $row.$get(9)?,
            metadata: serde_json::from_str(&$row.$get::<_, String>(10)?)?,
        }
    };
}
pub(super) use record;

/// Returns the id after which a list begins: without one, an id that is greater than every other.
pub(super) fn after(id: Option<FileId>) -> String {
    id.unwrap_or(FileId::max()).to_string()
}

/// Returns the text of a record's metadata.
pub(super) fn metadata(record: &FileRecord) -> String {
    serde_json::to_string(&record.metadata).unwrap_or_default()
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
pub(super) fn pending(version: i64) -> std::result::Result<Vec<(i64, &'static str)>, FilesError> {
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
