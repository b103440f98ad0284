//! One sandbox: its directory, its supervisor, and what its commands share.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use cantle_core::sandbox::{
    ByteRange, ByteStream, FileInfo, Process, Sandbox, SandboxError, SandboxErrorKind, SandboxInfo,
    SandboxPath, SpawnRequest, WriteOptions,
};
use cantle_supervisor::wire::Order;
use tokio::sync::oneshot;
use tokio::task::{JoinSet, spawn_blocking};

use crate::blocking;
use crate::command::{self, Source, discard};
use crate::environment::Environment;
use crate::files::Root;
use crate::limits::OwnLimits;
use crate::proxy::{Denials, Proxy};
use crate::supervisor::Supervisor;

/// How long closing waits for the death of everything in the sandbox.
const END_DEADLINE: Duration = Duration::from_secs(5);

/// How long an order may wait for those before it.
const ORDER_DEADLINE: Duration = Duration::from_secs(2);

/// What a sandbox and its commands share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) info: SandboxInfo,
    pub(crate) root: Arc<Root>,
    pub(crate) environment: Environment,
    pub(crate) shell: PathBuf,
    /// The limits that we keep ourselves.
    pub(crate) limits: OwnLimits,
    /// Whether it can make terminals of its own.
    pub(crate) has_terminals: bool,
    /// The way out, where some hosts may be reached.
    proxy: OnceLock<Proxy>,
    supervisor: Supervisor,
    numbers: AtomicU32,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    closed: bool,
    /// Tasks that read what processes still write that commands left.
    discarding: JoinSet<()>,
}

impl Shared {
    pub(crate) fn new(
        info: SandboxInfo,
        root: Root,
        environment: Environment,
        shell: PathBuf,
        limits: OwnLimits,
        has_terminals: bool,
        supervisor: Supervisor,
    ) -> Self {
        Self {
            info,
            root: Arc::new(root),
            environment,
            shell,
            limits,
            has_terminals,
            proxy: OnceLock::new(),
            supervisor,
            numbers: AtomicU32::new(0),
            state: Mutex::default(),
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

    /// What was refused on the way out, where there is one.
    pub(crate) fn denials(&self) -> Option<&Denials> {
        self.proxy.get().map(Proxy::denials)
    }

    /// Sends an order to the supervisor; does not block.
    pub(crate) fn order(&self, order: Order, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.supervisor.order(order, fds)
    }

    /// The same, and where the supervisor has many to take, waits until this is one of them.
    pub(crate) fn order_surely(&self, order: Order) -> io::Result<()> {
        self.supervisor
            .order_by(order, Instant::now() + ORDER_DEADLINE)
    }

    /// Whether everything in the sandbox has ended without our asking.
    pub(crate) fn is_gone(&self) -> bool {
        self.supervisor.has_ended()
    }

    /// What is said of a sandbox that doesn't answer any more.
    pub(crate) fn gone(&self) -> SandboxError {
        match self.check_open() {
            Err(closed) => closed,
            Ok(()) => SandboxError::gone("the sandbox has ended: its supervisor was killed"),
        }
    }

    /// Reads a source for as long as somebody writes to it.
    pub(crate) fn discard(&self, source: Source) {
        let mut state = self.state();
        while state.discarding.try_join_next().is_some() {}
        state.discarding.spawn(discard(source));
    }

    /// Whether nobody else closes it already.
    fn begin_closing(&self) -> bool {
        !std::mem::replace(&mut self.state().closed, true)
    }

    /// Kills what runs and removes the directory. Blocks.
    fn tear_down(&self) -> Result<(), SandboxError> {
        let ended = self.supervisor.end(Instant::now() + END_DEADLINE);
        let removed = self.root.delete();
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

/// A sandbox of the local backend.
#[derive(Debug)]
pub(crate) struct LocalSandbox {
    shared: Arc<Shared>,
}

impl LocalSandbox {
    pub(crate) fn new(shared: Shared) -> Self {
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Keeps the proxy for as long as there are commands.
    pub(crate) fn serve(&self, proxy: Proxy) {
        // A sandbox has one.
        let _ = self.shared.proxy.set(proxy);
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

    async fn close(&self) -> Result<(), SandboxError> {
        if !self.shared.begin_closing() {
            return Ok(());
        }
        let shared = Arc::clone(&self.shared);
        let (done, answer) = oneshot::channel();
        // Nobody waits for the last of it; it is over in some milliseconds.
        let closing = spawn_blocking(move || {
            // Where nobody waits any more, nobody needs the answer.
            let _ = done.send(shared.tear_down());
            shared.supervisor.reap();
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
            let _ = self.shared.tear_down();
            self.shared.supervisor.reap();
        }
    }
}
