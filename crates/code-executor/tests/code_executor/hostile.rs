//! Code, records and stores that mean harm, or fail.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cantle_backends_docker::DockerBackend;
use cantle_core::ids::RunId;
use cantle_core::policy::Policy;
use cantle_core::principal::{Level, Principal};
use cantle_core::sandbox::{Backend as _, SandboxContext};
use cantle_files::object_store::memory::InMemory;
use cantle_files::object_store::path::Path;
use cantle_files::object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use cantle_files::{
    FileStore, Files, Limits, MemoryRecords, NewFile, Quota, Records, SqliteRecords,
};
use futures_util::stream::BoxStream;
use serde_json::json;
use tempfile::TempDir;
use tokio::sync::Notify;

use crate::{User, files, names};

#[tokio::test]
async fn unusual_files_are_stored_or_named() {
    let directory = TempDir::new().unwrap();
    let limits = Limits::new(1 << 20, Quota::default());
    let files = files(&directory).await.with_limits(limits);
    let user = User::new(&files, "alice").await;
    let code = "import os, socket
os.mkfifo('/tmp/pipe')
s = socket.socket(socket.AF_UNIX); s.bind('/tmp/socket')
os.symlink('/proc/self/environ', 'link')
os.symlink('/', '/tmp/root')
for name in ['x' * 251 + '.csv', '名' * 80, 'a\\x01\\n.txt', b'\\xff\\xfe.bin', '-rf', '; rm']:
    open(name, 'w').write('x')
with open('/tmp/holes', 'w') as f: f.truncate(5 << 30)";
    let result = user.python(code).await;
    assert_eq!(result["stderr"], "");
    let mut expected = ["__rm", "a__.txt", "rf", "__.bin"]
        .map(str::to_owned)
        .to_vec();
    expected.push(format!("{}.csv", "x".repeat(196)));
    expected.push("名".repeat(66));
    expected.sort_unstable();
    assert_eq!(names(&result), expected);
    let warnings = result["warnings"].as_array().unwrap();
    let warnings: Vec<_> = warnings.iter().map(|it| it.as_str().unwrap()).collect();
    assert_eq!(
        warnings,
        [
            "link was not stored: it is a link, which is not followed",
            "holes was not stored: the file is larger than the limit of 1048576 bytes",
            "pipe was not stored: it is not a regular file",
            "root was not stored: it is a link, which is not followed",
            "socket was not stored: it is not a regular file",
        ]
    );
    user.close().await;
}

#[tokio::test]
async fn many_files_are_stored_up_to_a_limit_and_old_ones_never() {
    let directory = TempDir::new().unwrap();
    let files = files(&directory).await;
    let user = User::new(&files, "alice").await;
    let code = "for n in range(130): open(f'/tmp/{n:03}', 'w').write('x')";
    let result = user.python(code).await;
    assert_eq!(names(&result).len(), 100);
    assert_eq!(result["warnings"].as_array().unwrap().len(), 20);
    // 30 files were not stored.
    assert_eq!(result["warnings"][19], "There are 11 more warnings.");
    // More than is searched: what is new can't be told from what is old.
    let code = "import os; os.mkdir('many')
for n in range(21_000): os.close(os.open(f'many/{n}', os.O_CREAT | os.O_WRONLY))";
    let made = user.call("run_python", json!({"code": code, "timeout": 60}));
    assert_eq!(made.await.unwrap()["exit_code"], 0);
    let again = user.python("print('nothing new')").await;
    assert_eq!(names(&again), [""; 0]);
    assert!(
        again["warnings"]
            .to_string()
            .contains("has more than 20000 entries"),
        "{again}"
    );
    user.close().await;
}

#[tokio::test]
async fn directories_share_the_limit_of_files() {
    let directory = TempDir::new().unwrap();
    let user = User::new(&files(&directory).await, "alice").await;
    let code = "for n in range(101): open(f'{n:03}', 'w').write('x')
open('/tmp/late', 'w').write('x')";
    let result = user.python(code).await;
    assert_eq!(names(&result).len(), 100);
    let warnings = ["100", "late"]
        .map(|name| format!("{name} was not stored: the maximum number of files is reached"));
    assert_eq!(result["warnings"], json!(warnings));
    user.close().await;
}

#[tokio::test]
async fn a_record_of_another_program_leads_nowhere() {
    let directory = TempDir::new().unwrap();
    let files = files(&directory).await;
    let mut record = files
        .put_bytes("alice", NewFile::named("a"), "x")
        .await
        .unwrap();
    files.remove("alice", record.id).await.unwrap();
    let records = SqliteRecords::open(directory.path().join("catalogue.sqlite"));
    let records = records.await.unwrap();
    record.filename = "../../home/x/.bashrc".to_owned();
    std::fs::write(directory.path().join("objects").join(&record.key), "x").unwrap();
    records.insert(&record, Quota::default()).await.unwrap();
    let user = User::new(&files, "alice").await;
    let loaded = user
        .call("load_file", json!({ "file_id": record.id }))
        .await
        .unwrap();
    assert_eq!(loaded["local_path"], "/tmp/bashrc");
    // A link in its place is not followed out of the sandbox.
    user.python("import os; os.remove('/tmp/bashrc'); os.symlink('/etc/hostname', '/tmp/bashrc')")
        .await;
    let before = std::fs::read("/etc/hostname").ok();
    let _ = user
        .call("load_file", json!({ "file_id": record.id }))
        .await;
    assert_eq!(std::fs::read("/etc/hostname").ok(), before);
    user.close().await;
}

#[tokio::test]
async fn a_store_that_hangs_holds_up_nobody_else() {
    let store = Arc::new(Slow::default());
    let slow = FileStore::new(Arc::clone(&store) as _);
    let slow = Files::open(slow, MemoryRecords::new()).await.unwrap();
    let quick = Files::open(FileStore::memory(), MemoryRecords::new())
        .await
        .unwrap();
    let (alice, bob) = (
        User::new(&slow, "alice").await,
        User::new(&quick, "bob").await,
    );
    let code = "open('/tmp/a.txt', 'w').write('x')";
    store.hangs.store(true, std::sync::atomic::Ordering::SeqCst);
    // On one thread: a call that blocked it would hold up the other.
    let ((), made) = tokio::join!(
        async {
            tokio::time::timeout(Duration::from_secs(60), store.asked.notified())
                .await
                .unwrap();
            assert_eq!(names(&bob.python(code).await), ["a.txt"]);
            store.release.notify_one();
        },
        alice.python(code)
    );
    assert_eq!(names(&made), ["a.txt"]);
    alice.close().await;
    bob.close().await;
}

#[tokio::test]
async fn the_tools_work_in_a_container() {
    let names = ["CANTLE_TEST_DOCKER_HOST", "CANTLE_TEST_DOCKER_IMAGE"];
    let [Ok(host), Ok(image)] = names.map(std::env::var) else {
        return cantle_testkit::lane::skip("there is no container engine");
    };
    let directory = TempDir::new().unwrap();
    let backend = DockerBackend::from_image(image).with_host(host);
    let context = SandboxContext::new(RunId::new(), Policy::unconfined());
    let user = User {
        files: files(&directory).await,
        sandbox: backend.open(context).await.unwrap(),
        principal: Some(Principal::new("alice", Level::User).unwrap()),
    };
    let code = "import os; os.makedirs('output/sub')
for f in ['/tmp/a.csv', 'output/sub/b.bin']: open(f, 'w').write('x')
raise SystemExit(3)";
    let made = user.python(code).await;
    assert_eq!(
        (crate::names(&made), &made["exit_code"]),
        (vec!["a.csv", "b.bin"], &json!(3))
    );
    let shell = async |command: &str| {
        user.call("run_shell", json!({ "command": command }))
            .await
            .unwrap()
    };
    assert_eq!(
        shell("cat output/sub/b.bin; echo x > $TMPDIR/y").await["stdout"],
        "x"
    );
    for command in [
        "tee /tmp/a.csv < /dev/null",
        "sed -i s/x/y/ /tmp/a.csv",
        "echo y > output/new",
    ] {
        let refused = shell(command).await;
        assert_eq!(refused["success"], false, "{command}: {refused}");
    }
    assert_eq!(shell("cat /tmp/a.csv").await["stdout"], "x");
    user.close().await;
}

/// A store in memory whose first upload waits.
#[derive(Debug, Default)]
struct Slow {
    store: InMemory,
    hangs: std::sync::atomic::AtomicBool,
    asked: Notify,
    release: Notify,
}

impl fmt::Display for Slow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Slow")
    }
}

#[async_trait]
impl ObjectStore for Slow {
    async fn put_opts(
        &self,
        at: &Path,
        data: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        if self.hangs.swap(false, std::sync::atomic::Ordering::SeqCst) {
            self.asked.notify_one();
            self.release.notified().await;
        }
        self.store.put_opts(at, data, options).await
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.store.put_multipart_opts(at, options).await
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
