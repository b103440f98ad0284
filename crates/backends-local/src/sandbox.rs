//! One sandbox: its directory, what runs its commands, and what they share.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use cantle_core::sandbox::{
    ByteRange, ByteStream, FileInfo, Process, Sandbox, SandboxError, SandboxErrorKind,
    SandboxHandle, SandboxInfo, SandboxPath, SpawnRequest, Survival, WriteOptions,
};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio::task::{JoinSet, spawn_blocking};

use crate::blocking;
use crate::command::{self, Source, discard};
use crate::engine::Engine;
use crate::environment::Environment;
use crate::files::Root;
use crate::limits::OwnLimits;

/// How long closing waits for the death of everything in the sandbox.
const END_DEADLINE: Duration = Duration::from_secs(5);

/// What a sandbox is made of.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) info: SandboxInfo,
    pub(crate) root: Root,
    pub(crate) environment: Environment,
    pub(crate) shell: PathBuf,
    /// The limits that we keep ourselves.
    pub(crate) limits: OwnLimits,
    /// What runs its commands.
    pub(crate) engine: Engine,
    /// Whether it stays when it is dropped.
    pub(crate) is_kept: bool,
}

/// What a sandbox and its commands share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) info: SandboxInfo,
    pub(crate) root: Arc<Root>,
    pub(crate) environment: Environment,
    pub(crate) shell: PathBuf,
    pub(crate) limits: OwnLimits,
    pub(crate) engine: Engine,
    numbers: AtomicU32,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    closed: bool,
    /// Whether the files stay when it is dropped.
    kept: bool,
    /// Tasks that look after what commands left: read what it writes, measure what it uses.
    attending: JoinSet<()>,
    /// What the next command is to tell.
    notes: Vec<String>,
}

impl Shared {
    fn new(parts: Parts) -> Self {
        Self {
            info: parts.info,
            root: Arc::new(parts.root),
            environment: parts.environment,
            shell: parts.shell,
            limits: parts.limits,
            engine: parts.engine,
            numbers: AtomicU32::new(0),
            state: Mutex::new(State {
                kept: parts.is_kept,
                ..State::default()
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state().closed
    }

    fn check_open(&self) -> Result<(), SandboxError> {
        if self.is_closed() {
            let message = "the sandbox is closed";
            return Err(SandboxError::new(SandboxErrorKind::Closed, message));
        }
        Ok(())
    }

    /// A number that no other command of this sandbox has.
    pub(crate) fn next_number(&self) -> u32 {
        self.numbers.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// What is said of a sandbox that doesn't answer any more.
    #[cfg(confined)]
    pub(crate) fn gone(&self) -> SandboxError {
        match self.check_open() {
            Err(closed) => closed,
            Ok(()) => SandboxError::gone("the sandbox has ended: its supervisor was killed"),
        }
    }

    /// Reads a source for as long as somebody writes to it.
    pub(crate) fn discard(&self, source: Source) {
        self.attend(discard(source));
    }

    /// Does something about what commands left, until it is done or the sandbox is gone.
    pub(crate) fn attend(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut state = self.state();
        while state.attending.try_join_next().is_some() {}
        state.attending.spawn(task);
    }

    /// Has something told with the end of the next command.
    pub(crate) fn note(&self, note: String) {
        self.state().notes.push(note);
    }

    /// What is to be told with the end of a command.
    pub(crate) fn take_notes(&self) -> Vec<String> {
        std::mem::take(&mut self.state().notes)
    }

    /// Whether nobody else closes it already.
    fn begin_closing(&self) -> bool {
        !std::mem::replace(&mut self.state().closed, true)
    }

    /// Keeps the files.
    fn keep(&self) -> Result<SandboxHandle, SandboxError> {
        if self.info.survival == Survival::Nothing {
            let message = "this sandbox can't be kept: it was not opened as a durable one";
            return Err(SandboxError::unsupported(message));
        }
        let token = Token {
            directory: self.root.places().base(),
        };
        let token = serde_json::to_string(&token).map_err(|error| {
            let message = "the sandbox's directory has a path that is no text";
            SandboxError::new(SandboxErrorKind::InvalidInput, message).with_source(error)
        })?;
        self.root.keep()?;
        self.state().kept = true;
        Ok(SandboxHandle::new(&*self.info.backend, token))
    }

    /// Kills what runs, and removes the directory or leaves it for somebody else. Blocks.
    fn tear_down(&self, leave: bool) -> Result<(), SandboxError> {
        let ended = self.engine.end(Instant::now() + END_DEADLINE);
        let removed = if leave {
            self.root.release();
            Ok(())
        } else {
            self.root.delete()
        };
        if ended {
            return removed;
        }
        let mut message = "something in the sandbox can't be killed".to_owned();
        if let Err(error) = removed {
            message = format!("{message}; {error}");
        }
        Err(SandboxError::new(
            SandboxErrorKind::PermissionDenied,
            message,
        ))
    }
}

/// What a handle says of a sandbox that was kept.
#[derive(Debug, Serialize, Deserialize)]
struct Token {
    directory: PathBuf,
}

/// The directory that a handle names.
pub(crate) fn kept_at(handle: &SandboxHandle) -> Result<PathBuf, SandboxError> {
    let token: Token = serde_json::from_str(&handle.token).map_err(|error| {
        let message = "the handle names no sandbox that the local backend has kept";
        SandboxError::gone(message).with_source(error)
    })?;
    Ok(token.directory)
}

/// A sandbox of the local backend.
#[derive(Debug)]
pub(crate) struct LocalSandbox {
    shared: Arc<Shared>,
}

impl LocalSandbox {
    pub(crate) fn new(parts: Parts) -> Self {
        Self {
            shared: Arc::new(Shared::new(parts)),
        }
    }

    /// Does something with the files, off the runtime.
    async fn with_files<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Root) -> Result<T, SandboxError> + Send + 'static,
    ) -> Result<T, SandboxError> {
        self.shared.check_open()?;
        let root = Arc::clone(&self.shared.root);
        blocking::run(move || work(&root)).await
    }
}

#[async_trait]
impl Sandbox for LocalSandbox {
    fn info(&self) -> &SandboxInfo {
        &self.shared.info
    }

    async fn spawn(&self, request: SpawnRequest) -> Result<Box<dyn Process>, SandboxError> {
        self.shared.check_open()?;
        Ok(Box::new(command::start(&self.shared, request).await?))
    }

    async fn read(&self, path: &SandboxPath, range: ByteRange) -> Result<ByteStream, SandboxError> {
        let path = path.clone();
        self.with_files(move |root| root.read(&path, range)).await
    }

    async fn write(
        &self,
        path: &SandboxPath,
        options: WriteOptions,
        data: ByteStream,
    ) -> Result<(), SandboxError> {
        self.shared.check_open()?;
        Root::write(&self.shared.root, path, options, data).await
    }

    async fn stat(&self, path: &SandboxPath) -> Result<FileInfo, SandboxError> {
        let path = path.clone();
        self.with_files(move |root| root.stat(path)).await
    }

    async fn list(&self, path: &SandboxPath) -> Result<Vec<FileInfo>, SandboxError> {
        let path = path.clone();
        self.with_files(move |root| root.list(&path)).await
    }

    async fn mkdir(&self, path: &SandboxPath) -> Result<(), SandboxError> {
        let path = path.clone();
        self.with_files(move |root| root.mkdir(&path)).await
    }

    async fn remove(&self, path: &SandboxPath) -> Result<(), SandboxError> {
        let path = path.clone();
        self.with_files(move |root| root.remove(&path)).await
    }

    async fn rename(&self, from: &SandboxPath, to: &SandboxPath) -> Result<(), SandboxError> {
        let (from, to) = (from.clone(), to.clone());
        self.with_files(move |root| root.rename(&from, &to)).await
    }

    async fn persist(&self) -> Result<SandboxHandle, SandboxError> {
        self.shared.check_open()?;
        let shared = Arc::clone(&self.shared);
        blocking::run(move || shared.keep()).await
    }

    async fn close(&self) -> Result<(), SandboxError> {
        if !self.shared.begin_closing() {
            return Ok(());
        }
        let shared = Arc::clone(&self.shared);
        let (done, answer) = oneshot::channel();
        // Nobody waits for the last of it; it is over in some milliseconds.
        let closing = spawn_blocking(move || {
            // Where nobody waits any more, nobody needs the answer.
            let _ = done.send(shared.tear_down(false));
            shared.engine.reap();
        });
        match answer.await {
            Ok(result) => result,
            Err(_) => closing.await.map_err(blocking::interrupted),
        }
    }
}

impl Drop for LocalSandbox {
    fn drop(&mut self) {
        if self.shared.begin_closing() {
            // Nobody is left to be told. What stays is killed and removed as far as that goes.
            let leave = self.shared.state().kept;
            let _ = self.shared.tear_down(leave);
            self.shared.engine.reap();
        }
    }
}
