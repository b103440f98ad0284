//! Stores that fail, and files that were changed below the catalogue.

use std::fmt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use cantle_files::object_store::memory::InMemory;
use cantle_files::object_store::path::Path;
use cantle_files::object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
};
use cantle_files::{FileStore, Files, FilesError, FilesErrorKind, MemoryRecords, NewFile, Usage};
use futures_util::stream::{self, BoxStream, TryStreamExt as _};
use tokio::sync::Notify;

use crate::{directory, local, objects};

/// Stores 30 MiB, which fails and leaves no record.
async fn assert_fails_to_store(files: &Files) {
    let chunks = (0..30).map(|_| Ok::<_, FilesError>(Bytes::from(vec![0; 1 << 20])));
    let stored = files
        .put("alice", NewFile::named("a"), stream::iter(chunks))
        .await;
    assert_eq!(stored.unwrap_err().kind(), FilesErrorKind::Store);
    assert_eq!(files.usage("alice").await.unwrap(), Usage::default());
}

#[tokio::test]
async fn a_store_that_fails_half_way_leaves_neither_record_nor_parts() {
    for part in [0, 1, 2] {
        let store = Arc::new(Failing::at_part(part));
        let files = FileStore::new(Arc::clone(&store) as _);
        let files = Files::open(files, MemoryRecords::new()).await.unwrap();
        assert_fails_to_store(&files).await;
        // The abort is a task: it needs a turn of the runtime.
        let aborted = async {
            while store.aborted.load(Ordering::SeqCst) == 0 {
                tokio::task::yield_now().await;
            }
        };
        let deadline = std::time::Duration::from_secs(60);
        tokio::time::timeout(deadline, aborted)
            .await
            .expect("the upload is aborted");
    }
}

/// Needs root for a file system of its own.
#[tokio::test]
async fn a_full_disk_is_an_error_and_leaves_room_again() {
    let directory = directory();
    let Some(_disk) = SmallDisk::mount(&directory.path().join("objects")) else {
        return;
    };
    let files = local(&directory).await;
    assert_fails_to_store(&files).await;
    // The abort is a task: what was written has to go for this to fit.
    let fits = async {
        let content = vec![0; 15 << 20];
        while let Err(error) = files
            .put_bytes("alice", NewFile::named("b"), content.clone())
            .await
        {
            assert_eq!(error.kind(), FilesErrorKind::Store);
        }
    };
    let deadline = std::time::Duration::from_secs(60);
    tokio::time::timeout(deadline, fits)
        .await
        .expect("the space is free again");
    assert_eq!(objects(&directory).len(), 1);
}

/// A file system of 16 MB.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: &std::path::Path) -> Option<Self> {
        std::fs::create_dir(at).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=16m", "tmpfs"]);
        if !mount.arg(at).status().is_ok_and(|it| it.success()) {
            cantle_testkit::lane::skip("file systems can't be mounted here");
            return None;
        }
        Some(Self(at.to_owned()))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[tokio::test]
async fn a_store_that_is_gone_is_an_error_and_no_answer() {
    let directory = directory();
    let files = local(&directory).await;
    let record = files
        .put_bytes("alice", NewFile::named("a"), "x")
        .await
        .unwrap();
    std::fs::remove_dir_all(directory.path().join("objects")).unwrap();
    let error = files.read_bytes("alice", record.id, 10).await.unwrap_err();
    assert_eq!(error.kind(), FilesErrorKind::Damaged);
    // The record is still there: nothing deletes what it can't see.
    assert_eq!(files.find("alice", record.id).await.unwrap(), record);
}

#[tokio::test]
async fn a_changed_object_is_an_error_at_the_end_of_its_content() {
    let directory = directory();
    let files = local(&directory).await;
    let record = files
        .put_bytes("alice", NewFile::named("a"), "hello")
        .await
        .unwrap();
    let object = directory.path().join("objects").join(&record.key);
    for changed in ["hellO", "hell", ""] {
        std::fs::write(&object, changed).unwrap();
        let error = files.read_bytes("alice", record.id, 10).await.unwrap_err();
        assert_eq!(error.kind(), FilesErrorKind::Damaged, "{changed}");
    }
    std::fs::write(&object, "hello").unwrap();
    assert_eq!(
        files.read_bytes("alice", record.id, 10).await.unwrap(),
        "hello"
    );
}

#[tokio::test]
async fn a_range_of_an_object_that_was_cut_is_an_error() {
    let directory = directory();
    let files = local(&directory).await;
    let record = files
        .put_bytes("alice", NewFile::named("a"), "hello")
        .await
        .unwrap();
    let object = directory.path().join("objects").join(&record.key);
    let read = async |range| {
        let content = files.content(&record, Some(range)).await.unwrap();
        let chunks = content.try_collect::<Vec<_>>().await;
        let chunks = chunks.map_err(|error| error.kind());
        chunks.map(|chunks| chunks.concat())
    };
    std::fs::write(&object, "hel").unwrap();
    assert_eq!(read(1..3).await.unwrap(), b"el");
    assert_eq!(read(1..4).await, Err(FilesErrorKind::Damaged));
    // A range that is the whole file is compared with its SHA-256, too.
    std::fs::write(&object, "hellO").unwrap();
    assert_eq!(read(0..5).await, Err(FilesErrorKind::Damaged));
}

#[tokio::test(flavor = "multi_thread")]
async fn writers_of_one_key_leave_the_whole_object_of_one_of_them() {
    let directory = directory();
    let write = async |content: u8| {
        let store = FileStore::directory(directory.path().join("objects")).unwrap();
        for _ in 0..20 {
            let chunks = (0..4).map(|_| Ok::<_, FilesError>(Bytes::from(vec![content; 100_000])));
            let stored = store.put_object("run/a", stream::iter(chunks)).await;
            assert_eq!(stored.unwrap().size_bytes, 400_000);
        }
    };
    tokio::join!(write(1), write(2));
    assert_eq!(objects(&directory), ["a"]);
    let content = std::fs::read(directory.path().join("objects/run/a")).unwrap();
    let first = content[0];
    assert!(content.len() == 400_000 && content.iter().all(|byte| *byte == first));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_upload_leaves_nothing() {
    let directory = directory();
    let files = local(&directory).await;
    let (asked, wait) = tokio::sync::oneshot::channel();
    let chunks = vec![Ok::<_, FilesError>(Bytes::from(vec![0; 20 << 20]))];
    let hang = stream::once(async {
        let _ = asked.send(());
        std::future::pending().await
    });
    let source = futures_util::StreamExt::chain(stream::iter(chunks), hang);
    {
        let put = files.put("alice", NewFile::named("a"), source);
        tokio::select! {
            stored = put => panic!("{stored:?}"),
            asked = wait => asked.unwrap(),
        }
    }
    let gone = async {
        while !objects(&directory).is_empty() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    let deadline = std::time::Duration::from_secs(60);
    tokio::time::timeout(deadline, gone)
        .await
        .expect("the staged file is removed");
}

#[tokio::test]
async fn an_upload_that_is_dropped_at_its_end_is_completed() {
    let store = Arc::new(Failing::at_part(usize::MAX));
    let files = FileStore::new(Arc::clone(&store) as _);
    let content = stream::iter([Ok::<_, FilesError>(Bytes::from(vec![0; 20 << 20]))]);
    {
        let put = files.put_object("a", content);
        tokio::select! {
            stored = put => panic!("{stored:?}"),
            () = store.ending.notified() => {}
        }
    }
    store.goes_on.notify_one();
    let completed = async {
        let at = Path::from("a");
        while store.get_opts(&at, GetOptions::default()).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    let deadline = std::time::Duration::from_secs(60);
    tokio::time::timeout(deadline, completed)
        .await
        .expect("the parts become the object");
}

#[tokio::test]
async fn a_file_that_is_dropped_at_its_end_has_a_record() {
    let store = Arc::new(Failing::at_part(usize::MAX));
    let files = FileStore::new(Arc::clone(&store) as _);
    let files = Files::open(files, MemoryRecords::new()).await.unwrap();
    {
        let put = files.put_bytes("alice", NewFile::named("a"), vec![0_u8; 20 << 20]);
        tokio::select! {
            stored = put => panic!("{stored:?}"),
            () = store.ending.notified() => {}
        }
    }
    store.goes_on.notify_one();
    let recorded = async {
        while files.list("alice", None, 1).await.unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    let deadline = std::time::Duration::from_secs(60);
    tokio::time::timeout(deadline, recorded)
        .await
        .expect("the object gets a record");
}

/// A store in memory whose uploads fail at a part, and wait before they end.
#[derive(Debug)]
struct Failing {
    store: InMemory,
    part: usize,
    aborted: Arc<AtomicUsize>,
    ending: Arc<Notify>,
    goes_on: Arc<Notify>,
}

impl Failing {
    fn at_part(part: usize) -> Self {
        Self {
            store: InMemory::new(),
            part,
            aborted: Arc::default(),
            ending: Arc::default(),
            goes_on: Arc::default(),
        }
    }
}

impl fmt::Display for Failing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Failing")
    }
}

#[derive(Debug)]
struct FailingUpload {
    upload: Box<dyn MultipartUpload>,
    parts: usize,
    fails_at: usize,
    aborted: Arc<AtomicUsize>,
    ending: Arc<Notify>,
    goes_on: Arc<Notify>,
}

#[async_trait]
impl MultipartUpload for FailingUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        self.parts += 1;
        if self.parts > self.fails_at {
            return Box::pin(async {
                Err(Error::Generic {
                    store: "Failing",
                    source: "no space is left".into(),
                })
            });
        }
        self.upload.put_part(data)
    }

    async fn complete(&mut self) -> Result<PutResult> {
        self.ending.notify_one();
        self.goes_on.notified().await;
        self.upload.complete().await
    }

    async fn abort(&mut self) -> Result<()> {
        self.aborted.fetch_add(1, Ordering::SeqCst);
        self.upload.abort().await
    }
}

#[async_trait]
impl ObjectStore for Failing {
    async fn put_opts(
        &self,
        at: &Path,
        data: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        self.store.put_opts(at, data, options).await
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        Ok(Box::new(FailingUpload {
            upload: self.store.put_multipart_opts(at, options).await?,
            parts: 0,
            fails_at: self.part,
            aborted: Arc::clone(&self.aborted),
            ending: Arc::clone(&self.ending),
            goes_on: Arc::clone(&self.goes_on),
        }))
    }

    async fn get_opts(&self, at: &Path, options: GetOptions) -> Result<GetResult> {
        self.store.get_opts(at, options).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.store.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.store.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.store.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.store.copy_opts(from, to, options).await
    }
}
