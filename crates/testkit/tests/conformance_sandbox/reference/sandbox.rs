//! Sandbox of the reference backend.

use std::collections::BTreeMap;
use std::future::pending;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use cantle_core::policy::Policy;
use cantle_core::sandbox::{
    ByteRange, ByteStream, ChangeNotice, Connection, Connections, FileInfo, Process, Sandbox,
    SandboxError, SandboxErrorKind, SandboxHandle, SandboxInfo, SandboxPath, SpawnRequest, Walk,
    WriteOptions, walk_by_command,
};
use cantle_core::secret::SecretText;
use futures_util::{StreamExt as _, stream};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::yield_now;

use super::files::Files;
use super::{Fault, SandboxState, command, kill_tagged, remove_all};

#[derive(Debug)]
pub(super) struct Local {
    pub(super) state: SandboxState,
    pub(super) info: SandboxInfo,
    pub(super) files: Files,
    pub(super) environment: BTreeMap<String, SecretText>,
    pub(super) wall_time: Option<std::time::Duration>,
    pub(super) root: PathBuf,
    connections: Connections,
    closed: AtomicBool,
    /// Token of the persisted handle.
    handle: Mutex<Option<String>>,
    own: Mutex<Option<TempDir>>,
}

impl Local {
    pub(super) fn new(
        state: SandboxState,
        info: SandboxInfo,
        policy: Policy,
        root: PathBuf,
        own: TempDir,
    ) -> Result<Self, SandboxError> {
        let working_directory = info.working_directory.clone();
        Ok(Self {
            files: Files::new(root.clone(), working_directory, state.fault)?,
            state,
            info,
            environment: policy.environment,
            wall_time: policy.limits.wall_time,
            root,
            connections: Connections::default(),
            closed: AtomicBool::new(false),
            handle: Mutex::default(),
            own: Mutex::new(Some(own)),
        })
    }

    pub(super) fn has(&self, fault: Fault) -> bool {
        self.state.fault == Some(fault)
    }

    fn must_be_open(&self) -> Result<(), SandboxError> {
        if self.closed.load(Ordering::SeqCst) && !self.has(Fault::WorksAfterClose) {
            return Err(SandboxError::new(
                SandboxErrorKind::Closed,
                "the sandbox is closed",
            ));
        }
        if *self.state.gone.borrow() && !self.has(Fault::HidesTheKill) {
            return Err(SandboxError::gone("the sandbox was killed"));
        }
        Ok(())
    }

    fn with_fault<T>(&self, result: Result<T, SandboxError>) -> Result<T, SandboxError> {
        if self.has(Fault::ReportsOneErrorKind) {
            return result.map_err(|it| SandboxError::new(SandboxErrorKind::Io, it.to_string()));
        }
        result
    }

    fn end_commands(&self) {
        if !self.has(Fault::LeavesProcesses) {
            kill_tagged(&self.state.tags.sandbox);
        }
    }

    /// Acquires the single stream with `Fault::SharesOneStream`.
    async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        let stream = Arc::clone(&self.state.stream);
        match self.has(Fault::SharesOneStream) {
            true => stream.acquire_owned().await.ok(),
            false => None,
        }
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        self.end_commands();
        let Some(own) = self.own.lock().unwrap().take() else {
            return;
        };
        let handle = self.handle.lock().unwrap().take();
        let handle = handle.filter(|_| !(self.has(Fault::PersistsOnce) && self.state.reattached));
        match handle {
            _ if self.closed.load(Ordering::SeqCst) => {}
            Some(token) => drop(self.state.kept.lock().unwrap().insert(token, own)),
            None if self.has(Fault::LeavesFiles) => drop(own.keep()),
            None => remove_all(own.path()),
        }
    }
}

#[async_trait]
impl Sandbox for Local {
    fn info(&self) -> &SandboxInfo {
        &self.info
    }

    async fn spawn(&self, request: SpawnRequest) -> Result<Box<dyn Process>, SandboxError> {
        self.must_be_open()?;
        self.with_fault(command::spawn(self, request).await)
    }

    async fn read(&self, path: &SandboxPath, range: ByteRange) -> Result<ByteStream, SandboxError> {
        self.must_be_open()?;
        let turn = self.turn().await;
        let pieces = self.with_fault(self.files.read(path, range))?;
        let gone = self.state.gone.clone();
        let hangs = self.has(Fault::HangsWhenKilled);
        let paced = stream::unfold((pieces, turn), move |(mut pieces, turn)| {
            let gone = gone.clone();
            async move {
                // Lets other tasks run between two pieces.
                yield_now().await;
                if hangs && *gone.borrow() {
                    pending::<()>().await;
                }
                Some((pieces.next().await?, (pieces, turn)))
            }
        });
        Ok(Box::pin(paced))
    }

    async fn write(
        &self,
        path: &SandboxPath,
        options: WriteOptions,
        data: ByteStream,
    ) -> Result<(), SandboxError> {
        self.must_be_open()?;
        let _turn = self.turn().await;
        let mut gone = self.state.gone.clone();
        let written = tokio::select! {
            written = self.files.write(path, options, data) => written,
            _ = gone.wait_for(|gone| *gone) => Err(SandboxError::gone("the sandbox was killed")),
        };
        self.with_fault(written)
    }

    async fn stat(&self, path: &SandboxPath) -> Result<FileInfo, SandboxError> {
        self.must_be_open()?;
        self.with_fault(self.files.stat(path))
    }

    async fn list(&self, path: &SandboxPath) -> Result<Vec<FileInfo>, SandboxError> {
        self.must_be_open()?;
        self.with_fault(self.files.list(path))
    }

    async fn walk(
        &self,
        directory: &SandboxPath,
        max_entries: usize,
    ) -> Result<Walk, SandboxError> {
        walk_by_command(self, directory, max_entries).await
    }

    async fn mkdir(&self, path: &SandboxPath) -> Result<(), SandboxError> {
        self.must_be_open()?;
        self.with_fault(self.files.mkdir(path))
    }

    async fn remove(&self, path: &SandboxPath) -> Result<(), SandboxError> {
        self.must_be_open()?;
        self.with_fault(self.files.remove(path))
    }

    async fn rename(&self, from: &SandboxPath, to: &SandboxPath) -> Result<(), SandboxError> {
        self.must_be_open()?;
        self.with_fault(self.files.rename(from, to))
    }

    async fn connect(&self, port: u16) -> Result<Connection, SandboxError> {
        self.must_be_open()?;
        if self.state.minimal {
            return Err(SandboxError::unsupported("nothing is connected to here"));
        }
        let connecting = async {
            let connected = TcpStream::connect(("127.0.0.1", port)).await;
            connected.map_err(|error| SandboxError::connect_failed(port, &error))
        };
        let connections = match self.has(Fault::AllowsAnyNumberOfConnections) {
            true => Connections::default(),
            false => self.connections.clone(),
        };
        let mut connected = connections.open(connecting).await;
        if let (Ok(connection), true) = (&mut connected, self.has(Fault::LosesConnections)) {
            let _ = connection.shutdown().await;
        }
        self.with_fault(connected)
    }

    async fn watch(&self, _: &[SandboxPath]) -> Result<ChangeNotice, SandboxError> {
        Err(SandboxError::unsupported("nothing is watched here"))
    }

    async fn attributes(
        &self,
        _: &[SandboxPath],
        _: &str,
    ) -> Result<Vec<BTreeMap<String, String>>, SandboxError> {
        Err(SandboxError::unsupported("no attributes are read here"))
    }

    async fn persist(&self) -> Result<SandboxHandle, SandboxError> {
        self.must_be_open()?;
        if !self.state.can_be_kept {
            return Err(SandboxError::unsupported("the sandbox ends with its owner"));
        }
        let mut token = self.info.id.clone();
        if self.has(Fault::LeaksSecrets) {
            token.extend(self.environment.values().map(SecretText::expose));
        }
        *self.handle.lock().unwrap() = Some(token.clone());
        Ok(SandboxHandle::new("reference", token))
    }

    async fn close(&self) -> Result<(), SandboxError> {
        if self.has(Fault::HangsWhenKilled) && *self.state.gone.borrow() {
            pending::<()>().await;
        }
        let again = self.closed.swap(true, Ordering::SeqCst);
        if again && self.has(Fault::ClosesOnce) {
            return Err(SandboxError::gone("the sandbox is already closed"));
        }
        self.end_commands();
        if !again && !self.has(Fault::LeavesFiles) {
            let own = self.own.lock().unwrap();
            remove_all(own.as_ref().unwrap().path());
        }
        Ok(())
    }
}
