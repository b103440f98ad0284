//! Stores and catalogues together: directories, S3, SQLite, PostgreSQL, and what fails between them.
#![cfg(all(unix, feature = "sqlite"))]
#![expect(
    clippy::unwrap_used,
    reason = "the lints know a test by its attribute, and what tests share has none"
)]

mod catalogue;
mod conformance;
mod crashes;
mod faults;
#[cfg(feature = "s3")]
mod s3;
#[cfg(feature = "s3")]
mod scripted;
mod urls;
mod wrong;

use std::path::Path;

use cantle_files::{FileStore, Files, SqliteRecords};
use tempfile::TempDir;

/// A directory in memory: the tests store durably, and a disk's `fsync` would be most of their time.
pub(crate) fn directory() -> TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() {
        return TempDir::new_in(memory).unwrap();
    }
    TempDir::new().unwrap()
}

pub(crate) async fn records(directory: &TempDir) -> SqliteRecords {
    let file = directory.path().join("catalogue.sqlite");
    SqliteRecords::open(file).await.unwrap()
}

/// A directory store with a SQLite catalogue.
pub(crate) async fn local(directory: &TempDir) -> Files {
    let store = FileStore::directory(directory.path().join("objects")).unwrap();
    Files::open(store, records(directory).await).await.unwrap()
}

/// All files of the store, with those of uploads that never ended.
pub(crate) fn objects(directory: &TempDir) -> Vec<String> {
    let groups = std::fs::read_dir(directory.path().join("objects")).unwrap();
    let groups = groups.flatten().filter(|it| it.path().is_dir());
    groups
        .flat_map(|group| std::fs::read_dir(group.path()).unwrap().flatten())
        .map(|file| file.file_name().into_string().unwrap())
        .collect()
}
