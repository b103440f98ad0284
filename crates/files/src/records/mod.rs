//! Catalogues: the records of files.

mod memory;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod sql;
#[cfg(feature = "sqlite")]
mod sqlite;

use async_trait::async_trait;
use auto_impl::auto_impl;

pub use self::memory::MemoryRecords;
#[cfg(feature = "postgres")]
pub use self::postgres::PostgresRecords;
#[cfg(feature = "sqlite")]
pub use self::sqlite::SqliteRecords;
use crate::error::FilesError;
use crate::record::{FileId, FileRecord, Quota, Usage};

/// A catalogue of files, used by several processes at once if it is durable.
///
/// Implementations pass `cantle_testkit::conformance::files`.
#[async_trait]
#[auto_impl(Arc, Box)]
pub trait Records: Send + Sync + 'static {
    /// Id of this catalogue, which stays the same as long as it exists. A store belongs to one catalogue.
    fn identity(&self) -> &str;

    /// Adds a record, unless its owner would exceed the quota; concurrent inserts never exceed it together.
    ///
    /// # Errors
    /// [`QuotaExceeded`](crate::FilesErrorKind::QuotaExceeded), or the catalogue fails.
    async fn insert(&self, record: &FileRecord, quota: Quota) -> Result<(), FilesError>;

    /// Returns a file of this owner.
    ///
    /// # Errors
    /// The catalogue fails.
    async fn find(&self, owner: &str, id: FileId) -> Result<Option<FileRecord>, FilesError>;

    /// Returns up to `limit` files of this owner, newest first, from the one after `after`.
    ///
    /// # Errors
    /// The catalogue fails.
    async fn list(
        &self,
        owner: &str,
        after: Option<FileId>,
        limit: u32,
    ) -> Result<Vec<FileRecord>, FilesError>;

    /// Returns what this owner has stored.
    ///
    /// # Errors
    /// The catalogue fails.
    async fn usage(&self, owner: &str) -> Result<Usage, FilesError>;

    /// Removes a record of this owner and returns it.
    ///
    /// # Errors
    /// The catalogue fails.
    async fn remove(&self, owner: &str, id: FileId) -> Result<Option<FileRecord>, FilesError>;

    /// Returns the file whose object has this key, whoever owns it.
    ///
    /// # Errors
    /// The catalogue fails.
    async fn by_key(&self, key: &str) -> Result<Option<FileRecord>, FilesError>;
}
