//! Catalogues in SQLite: schemas, claims, many files, two processes.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use cantle_files::{
    FileStore, Files, FilesErrorKind, Limits, MemoryRecords, NewFile, Quota, SqliteRecords,
};
use futures_util::FutureExt as _;

use crate::{directory, local, records};

/// Selects the part of a test that a process of its own performs.
pub(crate) const PART: &str = "CANTLE_FILES_PART";

/// Runs a test of this program as a process of its own.
pub(crate) fn part(name: &str, directory: &tempfile::TempDir) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "--nocapture", "--test-threads=1", name])
        .env(PART, directory.path());
    command
}

#[tokio::test]
async fn ten_thousand_files_are_listed_by_page() {
    const FILES: usize = 10_000;
    let directory = directory();
    let store = FileStore::memory();
    let files = Files::open(store, records(&directory).await).await.unwrap();
    for _ in 0..FILES {
        let new = NewFile::named("a");
        files.put_bytes("alice", new, "x").await.unwrap();
    }
    let over = files.put_bytes("alice", NewFile::named("a"), "x").await;
    assert_eq!(over.unwrap_err().kind(), FilesErrorKind::QuotaExceeded);
    let mut ids = Vec::new();
    loop {
        // More than a page may have.
        let page = files
            .list("alice", ids.last().copied(), u32::MAX)
            .await
            .unwrap();
        if page.is_empty() {
            break;
        }
        assert_eq!(page.len(), 1000);
        ids.extend(page.into_iter().map(|record| record.id));
    }
    assert_eq!(ids.len(), FILES);
    assert!(ids.is_sorted_by(|one, next| one > next));
}

#[tokio::test]
async fn a_catalogue_of_a_newer_program_is_refused() {
    let directory = directory();
    drop(records(&directory).await);
    let file = directory.path().join("catalogue.sqlite");
    let connection = rusqlite::Connection::open(&file).unwrap();
    connection
        .execute("UPDATE cantle_files_schema SET version = 99", [])
        .unwrap();
    let error = SqliteRecords::open(file).await.unwrap_err();
    assert_eq!(error.kind(), FilesErrorKind::Configuration);
    assert!(error.to_string().contains("newer program"), "{error}");
}

#[tokio::test]
async fn a_store_belongs_to_one_catalogue() {
    let directory = directory();
    let record = local(&directory)
        .await
        .put_bytes("alice", NewFile::named("a"), "x")
        .await
        .unwrap();
    let store = FileStore::directory(directory.path().join("objects")).unwrap();
    let error = Files::open(store, MemoryRecords::new()).await.unwrap_err();
    assert_eq!(error.kind(), FilesErrorKind::Configuration);
    let again = local(&directory).await;
    assert_eq!(again.find("alice", record.id).await.unwrap(), record);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_share_a_catalogue() {
    let directory = directory();
    let processes = [(); 2].map(|()| {
        part("catalogue::stores_twenty_files", &directory)
            .spawn()
            .unwrap()
    });
    for mut process in processes {
        assert!(process.wait().unwrap().success());
    }
    let files = local(&directory).await;
    let usage = files.usage("alice").await.unwrap();
    assert_eq!((usage.files, usage.bytes), (30, 30));
    assert_eq!(files.list("alice", None, 100).await.unwrap().len(), 30);
    assert_eq!(crate::objects(&directory).len(), 30);
}

/// A part of [`two_processes_share_a_catalogue`], whose quota allows 30 files.
#[tokio::test]
async fn stores_twenty_files() {
    let Some(directory) = std::env::var_os(PART) else {
        return;
    };
    let directory = std::path::PathBuf::from(directory);
    let records = SqliteRecords::open(directory.join("catalogue.sqlite"))
        .await
        .unwrap();
    let store = FileStore::directory(directory.join("objects")).unwrap();
    let files = Files::open(store, records).await.unwrap();
    let files = files.with_limits(Limits::new(10, Quota::new(30, 100)));
    for _ in 0..20 {
        if let Err(error) = files.put_bytes("alice", NewFile::named("a"), "x").await {
            assert_eq!(error.kind(), FilesErrorKind::QuotaExceeded, "{error:?}");
        }
    }
}

#[tokio::test]
async fn a_call_that_waits_for_the_catalogue_ends_with_its_caller() {
    let directory = directory();
    let files = local(&directory).await;
    let put = async || files.put_bytes("alice", NewFile::named("a"), "x").await;
    let (first, second) = (put().await.unwrap(), put().await.unwrap());
    let file = directory.path().join("catalogue.sqlite");
    let other = rusqlite::Connection::open(file).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let (removed, ()) = tokio::join!(files.remove("alice", first.id), async {
        let waiting = files.remove("alice", second.id).now_or_never();
        assert!(waiting.is_none(), "{waiting:?}");
        other.execute_batch("COMMIT").unwrap();
    });
    assert_eq!(removed.unwrap(), first);
    assert_eq!(files.list("alice", None, 10).await.unwrap(), [second]);
}

/// Mounts a file system of FUSE that no program serves: for others than its user, the kernel answers by itself.
const MOUNT: &str = "import ctypes, os, sys
libc = ctypes.CDLL(None)
point = sys.argv[1].encode()
fuse = os.open('/dev/fuse', os.O_RDWR)
options = b'fd=%d,rootmode=40000,user_id=1,group_id=1' % fuse
print(libc.mount(b'host:', point, b'fuse.' + sys.argv[2].encode(), 0, options), flush=True)
sys.stdin.read()
libc.umount2(point, 2)";

/// Needs root and FUSE.
#[tokio::test]
async fn a_catalogue_on_a_network_file_system_is_refused() {
    let directory = directory();
    let mut refused = 0;
    for (program, is_network) in [("sshfs", true), ("ntfs-3g", false)] {
        let point = directory.path().join(program);
        std::fs::create_dir(&point).unwrap();
        let mut python = Command::new("python3");
        python.args(["-c", MOUNT]).arg(&point).arg(program);
        python.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut python = python.spawn().unwrap();
        let mut answer = String::new();
        let mut stdout = BufReader::new(python.stdout.take().unwrap());
        stdout.read_line(&mut answer).unwrap();
        if answer == "0\n" {
            let link = point.with_extension("link");
            std::os::unix::fs::symlink(&point, &link).unwrap();
            for place in [point, link.join("new/directory")] {
                let error = SqliteRecords::open(place.join("catalogue.sqlite"));
                let error = error.await.unwrap_err().to_string();
                let message = "is on fuse.sshfs, a network file system";
                // Nothing can be written there either way.
                assert_eq!(error.contains(message), is_network, "{error}");
                refused += 1;
            }
        }
        drop(python.stdin.take());
        python.wait().unwrap();
    }
    if refused == 0 {
        cantle_testkit::lane::skip("file systems of FUSE can't be mounted here");
    }
}
