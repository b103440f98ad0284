//! Files with owners: objects in a store, and a catalogue of them.
//!
//! [`Files`] joins a [`FileStore`] (a local directory, S3 and compatible stores, Azure, or any `object_store`) with
//! [`Records`] (in memory, SQLite, PostgreSQL). Contents are streamed in both directions, with their SHA-256
//! computed on the way. The object is written first and its record second, so a crash leaves at most an
//! object without a record, which [`Files::sweep`] removes. Every operation names the owner; a file of
//! another owner is answered like one that does not exist.
//!
//! ```
//! # async fn example() -> Result<(), cantle_files::FilesError> {
//! use cantle_files::{FileStore, Files, MemoryRecords, NewFile};
//!
//! let files = Files::open(FileStore::memory(), MemoryRecords::new()).await?;
//! let record = files.put_bytes("alice", NewFile::named("notes.txt"), "Hello").await?;
//! assert_eq!(files.read_bytes("alice", record.id, 100).await?, "Hello");
//! assert!(files.find("bob", record.id).await.is_err());
//! # Ok(())
//! # }
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(example()).unwrap();
//! ```

#![forbid(unsafe_code)]

#[cfg(any(feature = "azure", feature = "s3"))]
mod bucket;
#[cfg(any(feature = "azure", feature = "s3"))]
mod connector;
mod error;
mod files;
mod name;
mod record;
mod records;
mod store;
mod upload;

pub use object_store;

pub use self::error::{FilesError, FilesErrorKind};
pub use self::files::{FileStream, Files, Limits, NewFile, Swept};
pub use self::name::{media_type, safe_name};
pub use self::record::{FileId, FileRecord, Quota, Usage};
#[cfg(feature = "postgres")]
pub use self::records::PostgresRecords;
#[cfg(feature = "sqlite")]
pub use self::records::SqliteRecords;
pub use self::records::{MemoryRecords, Records};
pub use self::store::{FileStore, Urls};
pub use self::upload::StoredObject;
