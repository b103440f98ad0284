//! Processes that are killed while they store a file.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use cantle_files::{
    FileId, FileRecord, FileStore, Files, FilesError, NewFile, Quota, Records, SqliteRecords, Usage,
};
use futures_util::{StreamExt as _, stream};

use crate::catalogue::{PART, part};
use crate::{directory, local, objects};

const READY: &str = "ready to be killed";

/// Starts a part of a test, and kills it when it is ready.
fn kill(name: &str, directory: &tempfile::TempDir) {
    let mut process = part(name, directory)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let is_ready = lines.map_while(Result::ok).any(|line| line.contains(READY));
    process.kill().unwrap();
    process.wait().unwrap();
    assert!(is_ready, "the process ended before");
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_between_object_and_record_the_sweep_removes_the_object() {
    let directory = directory();
    kill("crashes::hangs_between_object_and_record", &directory);
    assert_eq!(objects(&directory).len(), 1);
    let files = local(&directory).await;
    assert_eq!(files.list("alice", None, 10).await.unwrap(), []);
    assert_eq!(files.usage("alice").await.unwrap(), Usage::default());
    // A young object may belong to an upload that is not finished.
    let swept = files.sweep(Duration::from_secs(3600)).await.unwrap();
    assert_eq!((swept.objects, objects(&directory).len()), (0, 1));
    let swept = files.sweep(Duration::ZERO).await.unwrap();
    assert_eq!((swept.objects, swept.bytes), (1, 1));
    assert_eq!(objects(&directory), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_during_an_upload_the_sweep_removes_its_parts() {
    let directory = directory();
    kill("crashes::hangs_in_an_upload", &directory);
    assert_eq!(objects(&directory).len(), 1);
    let files = local(&directory).await;
    assert_eq!(files.list("alice", None, 10).await.unwrap(), []);
    assert_eq!(files.sweep(Duration::ZERO).await.unwrap().objects, 1);
    assert_eq!(objects(&directory), [""; 0]);
}

#[tokio::test]
async fn the_sweep_finds_what_uploads_left_at_every_depth() {
    let directory = directory();
    let files = local(&directory).await;
    let objects = directory.path().join("objects");
    std::fs::create_dir_all(objects.join("run/a")).unwrap();
    let staged = ["top#1", "run/b#1", "run/a/b#2"].map(|name| objects.join(name));
    for path in &staged {
        std::fs::write(path, "x").unwrap();
    }
    assert_eq!(files.sweep(Duration::ZERO).await.unwrap().objects, 3);
    assert!(!staged.iter().any(|path| path.exists()));
}

async fn files_of_part() -> Option<Files> {
    let directory = std::path::PathBuf::from(std::env::var_os(PART)?);
    let records = SqliteRecords::open(directory.join("catalogue.sqlite"))
        .await
        .unwrap();
    let store = FileStore::directory(directory.join("objects")).unwrap();
    Some(Files::open(store, Hanging(records)).await.unwrap())
}

#[expect(clippy::print_stdout, reason = "the test waits for it")]
fn say_ready() {
    println!("{READY}");
}

#[tokio::test]
async fn hangs_between_object_and_record() {
    if let Some(files) = files_of_part().await {
        files
            .put_bytes("alice", NewFile::named("a"), "x")
            .await
            .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hangs_in_an_upload() {
    let Some(files) = files_of_part().await else {
        return;
    };
    let chunks = (0..20).map(|_| Ok::<_, FilesError>(Bytes::from(vec![0; 1 << 20])));
    // Some part of the upload was written when a later one is asked for.
    let hang = stream::once(async {
        say_ready();
        std::future::pending().await
    });
    let source = stream::iter(chunks).chain(hang);
    files
        .put("alice", NewFile::named("a"), source)
        .await
        .unwrap();
}

/// A catalogue whose inserts never end.
struct Hanging(SqliteRecords);

#[async_trait]
impl Records for Hanging {
    fn identity(&self) -> &str {
        self.0.identity()
    }

    async fn insert(&self, _: &FileRecord, _: Quota) -> Result<(), FilesError> {
        say_ready();
        std::future::pending().await
    }

    async fn find(&self, owner: &str, id: FileId) -> Result<Option<FileRecord>, FilesError> {
        self.0.find(owner, id).await
    }

    async fn list(
        &self,
        owner: &str,
        after: Option<FileId>,
        limit: u32,
    ) -> Result<Vec<FileRecord>, FilesError> {
        self.0.list(owner, after, limit).await
    }

    async fn usage(&self, owner: &str) -> Result<Usage, FilesError> {
        self.0.usage(owner).await
    }

    async fn remove(&self, owner: &str, id: FileId) -> Result<Option<FileRecord>, FilesError> {
        self.0.remove(owner, id).await
    }

    async fn by_key(&self, key: &str) -> Result<Option<FileRecord>, FilesError> {
        self.0.by_key(key).await
    }
}
