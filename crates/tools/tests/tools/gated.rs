//! A sandbox whose reads wait until they are allowed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use cantle_core::sandbox::{
    ByteRange, ByteStream, FileInfo, Process, Sandbox, SandboxError, SandboxInfo, SandboxPath,
    SpawnRequest, WriteOptions,
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

    async fn mkdir(&self, path: &SandboxPath) -> Result<(), SandboxError> {
        self.inner.mkdir(path).await
    }

    async fn remove(&self, path: &SandboxPath) -> Result<(), SandboxError> {
        self.inner.remove(path).await
    }

    async fn rename(&self, from: &SandboxPath, to: &SandboxPath) -> Result<(), SandboxError> {
        self.inner.rename(from, to).await
    }

    async fn close(&self) -> Result<(), SandboxError> {
        self.inner.close().await
    }
}
