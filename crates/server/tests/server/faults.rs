//! Backends that are slow, lose commands or fail to close sandboxes.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use cantle_backends_local::LocalBackend;
use cantle_core::sandbox::{
    Backend, ByteRange, ByteStream, ChangeNotice, Channel, Connection, Exit, ExitStatus, FileInfo,
    OutputChunk, OutputStream, Process, ProcessStdin, PtySize, Sandbox, SandboxContext,
    SandboxError, SandboxHandle, SandboxInfo, SandboxPath, Signal, SpawnRequest, Walk,
    WriteOptions,
};
use cantle_server::{ServeErrorKind, Server, ServerLimits};
use futures_util::{StreamExt as _, stream};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::support::{DEADLINE, TestServer, client, eventually, serve_in, shared_tempdir};

/// A local backend with faults.
#[derive(Debug)]
struct Faulty {
    local: LocalBackend,
    /// A permit for each sandbox that may be opened.
    may_open: Semaphore,
    /// The number of sandboxes that were asked for.
    asked: AtomicUsize,
    pauses: Arc<Pauses>,
    fails_to_close: bool,
}

/// The pauses of a backend's sandboxes.
#[derive(Debug)]
struct Pauses {
    begun: AtomicUsize,
    /// A permit for each one that may be completed.
    may_end: Semaphore,
}

impl Faulty {
    fn new(directory: &tempfile::TempDir) -> Self {
        let local = LocalBackend::new()
            .in_directory(directory.path())
            .workspace_at("/home/user");
        Self {
            local,
            may_open: Semaphore::new(Semaphore::MAX_PERMITS),
            asked: AtomicUsize::new(0),
            pauses: Arc::new(Pauses {
                begun: AtomicUsize::new(0),
                may_end: Semaphore::new(0),
            }),
            fails_to_close: false,
        }
    }
}

#[async_trait]
impl Backend for Faulty {
    fn name(&self) -> &str {
        "faulty"
    }

    async fn open(&self, cx: SandboxContext) -> Result<Arc<dyn Sandbox>, SandboxError> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.may_open.acquire().await.unwrap().forget();
        Ok(Arc::new(FaultySandbox {
            inner: self.local.open(cx).await?,
            pauses: Arc::clone(&self.pauses),
            fails_to_close: self.fails_to_close,
        }))
    }

    async fn reattach(
        &self,
        handle: &SandboxHandle,
        cx: SandboxContext,
    ) -> Result<Arc<dyn Sandbox>, SandboxError> {
        self.local.reattach(handle, cx).await
    }
}

#[derive(Debug)]
struct FaultySandbox {
    inner: Arc<dyn Sandbox>,
    pauses: Arc<Pauses>,
    fails_to_close: bool,
}

#[async_trait]
impl Sandbox for FaultySandbox {
    fn info(&self) -> &SandboxInfo {
        self.inner.info()
    }

    /// Command lines with `lost` lose their end; `cat` ends at a limit after its first output. Programs for some files are
    /// stopped before it or after it, or do not exit when their output has ended.
    async fn spawn(&self, request: SpawnRequest) -> Result<Box<dyn Process>, SandboxError> {
        let request_text = format!("{request:?}");
        let has = |text: &str| request_text.contains(text);
        let fault = if has("lost") {
            Fault::Lost
        } else if has("stopped-late") {
            Fault::Stopped { has_begun: true }
        } else if has("stopped-early") || (has("\"cat\"") && has("/etc/group")) {
            Fault::Stopped { has_begun: false }
        } else if has("\"cat\"") && (has("/etc/nsswitch.conf") || has("/etc/profile")) {
            let has_begun = has("/etc/profile");
            Fault::Closed { has_begun }
        } else if has("\"cat\"") {
            Fault::Cut
        } else {
            return self.inner.spawn(request).await;
        };
        Ok(Box::new(FaultyProcess(fault)))
    }

    async fn read(&self, path: &SandboxPath, range: ByteRange) -> Result<ByteStream, SandboxError> {
        self.inner.read(path, range).await
    }

    async fn write(
        &self,
        path: &SandboxPath,
        options: WriteOptions,
        data: ByteStream,
    ) -> Result<(), SandboxError> {
        self.inner.write(path, options, data).await
    }

    async fn stat(&self, path: &SandboxPath) -> Result<FileInfo, SandboxError> {
        self.inner.stat(path).await
    }

    async fn list(&self, path: &SandboxPath) -> Result<Vec<FileInfo>, SandboxError> {
        self.inner.list(path).await
    }

    async fn walk(
        &self,
        directory: &SandboxPath,
        max_entries: usize,
    ) -> Result<Walk, SandboxError> {
        self.inner.walk(directory, max_entries).await
    }

    async fn mkdir(&self, path: &SandboxPath) -> Result<(), SandboxError> {
        self.inner.mkdir(path).await
    }

    async fn remove(&self, path: &SandboxPath) -> Result<(), SandboxError> {
        self.inner.remove(path).await
    }

    async fn rename(&self, from: &SandboxPath, to: &SandboxPath) -> Result<(), SandboxError> {
        self.inner.rename(from, to).await
    }

    async fn connect(&self, port: u16) -> Result<Connection, SandboxError> {
        self.inner.connect(port).await
    }

    async fn watch(&self, directories: &[SandboxPath]) -> Result<ChangeNotice, SandboxError> {
        self.inner.watch(directories).await
    }

    async fn attributes(
        &self,
        paths: &[SandboxPath],
        prefix: &str,
    ) -> Result<Vec<BTreeMap<String, String>>, SandboxError> {
        self.inner.attributes(paths, prefix).await
    }

    async fn persist(&self) -> Result<SandboxHandle, SandboxError> {
        self.pauses.begun.fetch_add(1, Ordering::Relaxed);
        self.pauses.may_end.acquire().await.unwrap().forget();
        self.inner.persist().await
    }

    async fn close(&self) -> Result<(), SandboxError> {
        let closed = self.inner.close().await;
        match self.fails_to_close {
            true => Err(io_error("it is stuck")),
            false => closed,
        }
    }
}

fn io_error(message: &str) -> SandboxError {
    SandboxError::io("failed to ask the engine", io::Error::other(message))
}

#[derive(Clone, Copy)]
enum Fault {
    Lost,
    Cut,
    Stopped { has_begun: bool },
    Closed { has_begun: bool },
}

struct FaultyProcess(Fault);

#[async_trait]
impl Process for FaultyProcess {
    fn id(&self) -> Option<u32> {
        None
    }

    fn take_output(&mut self) -> Option<OutputStream> {
        let chunk = OutputChunk {
            channel: Channel::Stdout,
            bytes: Bytes::from_static(b"start"),
        };
        let first = stream::iter([Ok(chunk)]);
        let output: OutputStream = match self.0 {
            Fault::Lost | Fault::Cut | Fault::Closed { has_begun: true } => Box::pin(first),
            Fault::Closed { has_begun: false } => Box::pin(stream::empty()),
            Fault::Stopped { has_begun: true } => Box::pin(first.chain(stream::pending())),
            Fault::Stopped { has_begun: false } => Box::pin(stream::pending()),
        };
        Some(output)
    }

    fn take_stdin(&mut self) -> Option<Box<dyn ProcessStdin>> {
        match self.0 {
            Fault::Lost | Fault::Cut | Fault::Closed { .. } => None,
            Fault::Stopped { .. } => Some(Box::new(UnreadPipe)),
        }
    }

    async fn signal(&mut self, _signal: Signal) -> Result<(), SandboxError> {
        Ok(())
    }

    async fn resize(&mut self, _size: PtySize) -> Result<(), SandboxError> {
        Ok(())
    }

    fn take_notes(&mut self) -> Vec<String> {
        Vec::new()
    }

    async fn wait(&mut self) -> Result<Exit, SandboxError> {
        let limit = Duration::from_secs(1);
        match self.0 {
            Fault::Lost => Err(io_error("the command was lost")),
            Fault::Cut => {
                // The server sends what there is.
                tokio::task::yield_now().await;
                Ok(Exit::new(ExitStatus::TimedOut { limit }, limit))
            }
            Fault::Stopped { .. } | Fault::Closed { .. } => std::future::pending().await,
        }
    }
}

/// The input of a stopped program, with room for a little.
struct UnreadPipe;

#[async_trait]
impl ProcessStdin for UnreadPipe {
    async fn write(&mut self, _data: Bytes) -> Result<(), SandboxError> {
        Ok(())
    }
}

/// Serves the sandboxes of a backend.
async fn serve_backend(backend: Arc<Faulty>, directory: tempfile::TempDir) -> TestServer {
    serve_in(directory, |_| Server::builder(backend)).await
}

/// Serves sandboxes with faults, with a short time limit for what makes no progress.
async fn serve_impatiently() -> TestServer {
    let directory = shared_tempdir();
    let backend = Arc::new(Faulty::new(&directory));
    let mut limits = ServerLimits::default();
    limits.idle = Duration::from_millis(300);
    serve_in(directory, |_| Server::builder(backend).limits(limits)).await
}

#[tokio::test]
async fn sandbox_is_found_by_its_key_although_the_client_has_disconnected() {
    let directory = shared_tempdir();
    let backend = Arc::new(Faulty {
        may_open: Semaphore::new(0),
        ..Faulty::new(&directory)
    });
    let server = serve_backend(Arc::clone(&backend), directory).await;
    let request = || {
        Request::post("/v2/sandboxes")
            .header("x-api-key", "key")
            .header("idempotency-key", "once")
            .body(Full::from(r#"{"templateID":"base"}"#))
            .unwrap()
    };
    tokio::select! {
        _ = server.send(request()) => panic!("no sandbox may be opened"),
        () = eventually("the backend is asked", async || backend.asked.load(Ordering::Relaxed) == 1) => {}
    }
    // The key stays in use.
    let pending = server.ask(request()).await;
    assert_eq!(pending.status, StatusCode::CONFLICT, "{pending:?}");
    backend.may_open.add_permits(1);
    eventually("the sandbox is open", async || {
        server.ask(request()).await.status == StatusCode::CREATED
    })
    .await;
    assert_eq!(backend.asked.load(Ordering::Relaxed), 1);
    let all = server.control(Method::GET, "/v2/sandboxes", None).await;
    assert_eq!(all.json().as_array().unwrap().len(), 1);
    server.stop().await;
}

#[tokio::test]
async fn a_sandbox_whose_deadline_passes_while_it_is_paused_stays_paused() {
    for auto_pause in [false, true] {
        let directory = shared_tempdir();
        let backend = Arc::new(Faulty::new(&directory));
        let pauses = Arc::clone(&backend.pauses);
        let server = serve_backend(backend, directory).await;
        let body = json!({ "templateID": "base", "autoPause": auto_pause });
        let sandbox = server.create(body).await;
        let post = async |what: &str, body: Value| {
            let path = format!("/sandboxes/{}/{what}", sandbox.id);
            server.control(Method::POST, &path, Some(body)).await.status
        };
        let meanwhile = async {
            eventually("the pause has begun", async || {
                pauses.begun.load(Ordering::Relaxed) == 1
            })
            .await;
            let moved = post("timeout", json!({ "timeout": 0 })).await;
            assert_eq!(moved, StatusCode::NO_CONTENT);
            // The server notices the deadline while it answers.
            let path = format!("/sandboxes/{}", sandbox.id);
            for _ in 0..20 {
                server.control(Method::GET, &path, None).await;
            }
            pauses.may_end.add_permits(1);
        };
        let (paused, ()) = tokio::join!(post("pause", json!({})), meanwhile);
        assert_eq!(paused, StatusCode::NO_CONTENT);
        assert_eq!(post("connect", json!({})).await, StatusCode::CREATED);
        server.stop().await;
    }
}

#[tokio::test]
async fn command_that_was_lost_ends_for_its_subscribers() {
    let directory = shared_tempdir();
    let backend = Arc::new(Faulty::new(&directory));
    let server = serve_backend(backend, directory).await;
    let sandbox = server.create_default().await;
    let (output, end) = sandbox.run("lost").await;
    assert_eq!(output, "start");
    assert_eq!(end["exited"], json!(false));
    let error = end["error"].as_str().unwrap();
    assert!(error.contains("the command was lost"), "{error}");
    // The sandbox goes on.
    assert_eq!(sandbox.run("echo on").await.0, "on\n");
    server.stop().await;
}

#[tokio::test]
async fn download_that_was_cut_off_does_not_look_complete() {
    let directory = shared_tempdir();
    let backend = Arc::new(Faulty::new(&directory));
    let server = serve_backend(backend, directory).await;
    let sandbox = server.create_default().await;
    let request = sandbox.request(Method::GET, "/files?path=/etc/passwd");
    let answer = server.send(request.body(Full::default()).unwrap()).await;
    assert_eq!(answer.status(), StatusCode::OK);
    let body = tokio::time::timeout(DEADLINE, answer.into_body().collect());
    assert!(body.await.unwrap().is_err());
    server.stop().await;
}

#[tokio::test]
async fn transfers_end_although_their_program_is_stopped() {
    let server = serve_impatiently().await;
    let sandbox = server.create_default().await;
    for name in ["stopped-early", "stopped-late"] {
        // A new file needs no program.
        let put = sandbox.put(name, "new").await;
        assert_eq!(put.status, StatusCode::OK, "{put:?}");
        let put = sandbox.put(name, "other").await;
        assert_eq!(put.status, StatusCode::GATEWAY_TIMEOUT, "{put:?}");
    }
    let get = sandbox.get("/files?path=/etc/group").await;
    assert_eq!(get.status, StatusCode::GATEWAY_TIMEOUT, "{get:?}");
    server.stop().await;
}

#[tokio::test]
async fn downloads_end_although_their_program_does_not_exit() {
    let server = serve_impatiently().await;
    let sandbox = server.create_default().await;
    let get = tokio::time::timeout(DEADLINE, sandbox.get("/files?path=/etc/nsswitch.conf"));
    assert_eq!(get.await.unwrap().status, StatusCode::GATEWAY_TIMEOUT);
    let request = sandbox.request(Method::GET, "/files?path=/etc/profile");
    let answer = server.send(request.body(Full::default()).unwrap()).await;
    assert_eq!(answer.status(), StatusCode::OK);
    let body = tokio::time::timeout(DEADLINE, answer.into_body().collect());
    assert!(body.await.unwrap().is_err());
    server.stop().await;
}

#[tokio::test]
async fn sandboxes_that_could_not_be_closed_are_reported() {
    let directory = shared_tempdir();
    let backend = Faulty {
        fails_to_close: true,
        ..Faulty::new(&directory)
    };
    let server = Server::builder(backend)
        .bind("127.0.0.1:0".parse().unwrap())
        .await
        .unwrap();
    let (client, shutdown) = (client(server.address()), CancellationToken::new());
    let serving = tokio::spawn(server.serve(shutdown.clone()));
    client.create_default().await;
    shutdown.cancel();
    let ended = tokio::time::timeout(DEADLINE, serving).await;
    let error = ended.unwrap().unwrap().unwrap_err();
    assert_eq!(error.kind(), ServeErrorKind::LeftBehind);
    assert!(error.to_string().contains("1 sandboxes"), "{error}");
}
