//! A sandbox whose reads wait until they are allowed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use cantle_core::sandbox::{
    ByteRange, ByteStream, ChangeNotice, Connection, FileInfo, Process, Sandbox, SandboxError,
    SandboxHandle, SandboxInfo, SandboxPath, SpawnRequest, Walk, WriteOptions,
};
use tokio::sync::Semaphore;

#[derive(Debug)]
pub(crate) struct GatedSandbox {
    inner: Arc<dyn Sandbox>,
    /// A permit for each read that is allowed.
    pub(crate) allowed: Semaphore,
    /// The number of reads that were asked for.
    pub(crate) reads: AtomicUsize,
}

impl GatedSandbox {
    pub(crate) fn new(inner: Arc<dyn Sandbox>) -> Self {
        Self {
            inner,
            allowed: Semaphore::new(0),
            reads: AtomicUsize::new(0),
        }
    }
}

#[async_trait]
impl Sandbox for GatedSandbox {
    fn info(&self) -> &SandboxInfo {
        self.inner.info()
    }

    async fn spawn(&self, request: SpawnRequest) -> Result<Box<dyn Process>, SandboxError> {
        self.inner.spawn(request).await
    }

    async fn read(&self, path: &SandboxPath, range: ByteRange) -> Result<ByteStream, SandboxError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.allowed.acquire().await.expect("it is open").forget();
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
        self.inner.persist().await
    }

    async fn close(&self) -> Result<(), SandboxError> {
        self.inner.close().await
    }
}
