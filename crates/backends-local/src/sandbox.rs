//! A sandbox of the local backend.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use cantle_command_driver::run_off_runtime;
use cantle_core::sandbox::{
    ByteRange, ByteStream, ChangeNotice, Connection, FileInfo, Process, Sandbox, SandboxError,
    SandboxHandle, SandboxInfo, SandboxPath, SpawnRequest, Walk, WriteOptions, walk_by_command,
};
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;

use crate::blocking;
use crate::command;
use crate::files::Root;
use crate::shared::Shared;

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

    /// Runs a file operation on a blocking thread.
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

    async fn walk(
        &self,
        directory: &SandboxPath,
        max_entries: usize,
    ) -> Result<Walk, SandboxError> {
        if !self.shared.root.contains(directory) {
            // Commands see more than this sandbox's own files.
            return walk_by_command(self, directory, max_entries).await;
        }
        let directory = directory.clone();
        self.with_files(move |root| root.walk(&directory, max_entries))
            .await
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

    #[cfg(confined)]
    async fn connect(&self, port: u16) -> Result<Connection, SandboxError> {
        self.shared.check_open()?;
        let connecting = self.shared.engine.connect(port);
        self.shared.connections.open(connecting).await
    }

    #[cfg(confined)]
    async fn watch(&self, directories: &[SandboxPath]) -> Result<ChangeNotice, SandboxError> {
        self.shared.check_open()?;
        let (shared, directories) = (Arc::clone(&self.shared), directories.to_vec());
        let watch = move || {
            let places = &shared.watch_places;
            shared.notices.watch(&shared.root, places, &directories)
        };
        blocking::run(watch).await
    }

    #[cfg(confined)]
    async fn attributes(
        &self,
        paths: &[SandboxPath],
        prefix: &str,
    ) -> Result<Vec<BTreeMap<String, String>>, SandboxError> {
        let (paths, prefix) = (paths.to_vec(), prefix.to_owned());
        self.with_files(move |root| Ok(root.attributes(&paths, &prefix)))
            .await
    }

    #[cfg(not(confined))]
    async fn connect(&self, _: u16) -> Result<Connection, SandboxError> {
        Err(SandboxError::unsupported(
            "without confinement, ports are those of this machine: connect to them directly",
        ))
    }

    #[cfg(not(confined))]
    async fn watch(&self, _: &[SandboxPath]) -> Result<ChangeNotice, SandboxError> {
        Err(SandboxError::unsupported(
            "the local backend watches directories on Linux only",
        ))
    }

    #[cfg(not(confined))]
    async fn attributes(
        &self,
        _: &[SandboxPath],
        _: &str,
    ) -> Result<Vec<BTreeMap<String, String>>, SandboxError> {
        Err(SandboxError::unsupported(
            "the local backend reads attributes on Linux only",
        ))
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
        // The caller waits until the processes have ended and the files are removed, but not for the
        // kernel to unmount the file systems.
        let closing = spawn_blocking(move || {
            // The caller may have been cancelled.
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
        if !self.shared.begin_closing() {
            return;
        }
        // The kernel starts to kill the processes at once.
        self.shared.engine.begin_end();
        let shared = Arc::clone(&self.shared);
        run_off_runtime(move || {
            // There is no caller to report an error to.
            let _ = shared.tear_down(shared.is_kept());
            shared.engine.reap();
        });
    }
}
