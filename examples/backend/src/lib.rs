//! A backend of one's own, whole: [`Polite`] runs every command with low priority in the sandboxes
//! of another backend.
//!
//! It shows what a backend crate needs: `cantle-core` for the traits, `cantle-testkit` for the test
//! that says when it is right (`tests/conformance.rs`), and nothing else of Cantle. A backend from
//! scratch has the same two types: configuration that implements [`Backend`], and what it opens,
//! which implements [`Sandbox`] and answers `Unsupported` where it can't do something.

use std::ffi::OsString;
use std::sync::Arc;

use async_trait::async_trait;
use cantle_core::policy::Policy;
use cantle_core::sandbox::{
    Backend, ByteRange, ByteStream, Command, FileInfo, Process, Sandbox, SandboxContext,
    SandboxError, SandboxHandle, SandboxInfo, SandboxPath, SpawnRequest, WriteOptions,
};

/// Opens sandboxes of another backend, in which every command gets out of the way of others.
#[derive(Debug, Clone)]
pub struct Polite<B> {
    inner: B,
    niceness: u8,
}

impl<B: Backend> Polite<B> {
    /// Commands in sandboxes of `inner` run with this niceness: 0 is ordinary, 19 the lowest
    /// priority.
    pub fn new(inner: B, niceness: u8) -> Self {
        Self { inner, niceness: niceness.min(19) }
    }

    fn wrap(&self, sandbox: Arc<dyn Sandbox>, policy: &Policy) -> Arc<dyn Sandbox> {
        // `renice` is a program: where a command may start none, it runs as it is.
        let may_renice = policy.subprocesses != Some(false);
        let niceness = may_renice.then_some(self.niceness);
        Arc::new(PoliteSandbox { inner: sandbox, niceness })
    }
}

#[async_trait]
impl<B: Backend> Backend for Polite<B> {
    fn name(&self) -> &str {
        self.inner.name()
    }

    async fn open(&self, cx: SandboxContext) -> Result<Arc<dyn Sandbox>, SandboxError> {
        let policy = cx.policy.clone();
        Ok(self.wrap(self.inner.open(cx).await?, &policy))
    }

    async fn reattach(
        &self,
        handle: &SandboxHandle,
        cx: SandboxContext,
    ) -> Result<Arc<dyn Sandbox>, SandboxError> {
        let policy = cx.policy.clone();
        Ok(self.wrap(self.inner.reattach(handle, cx).await?, &policy))
    }
}

#[derive(Debug)]
struct PoliteSandbox {
    inner: Arc<dyn Sandbox>,
    niceness: Option<u8>,
}

#[async_trait]
impl Sandbox for PoliteSandbox {
    fn info(&self) -> &SandboxInfo {
        self.inner.info()
    }

    async fn spawn(&self, mut request: SpawnRequest) -> Result<Box<dyn Process>, SandboxError> {
        if let (Command::Shell(line), Some(niceness)) = (&request.command, self.niceness) {
            // `renice` first, and only then the command line as it is: its text must not change.
            let mut polite = OsString::from(format!("renice -n {niceness} -p $$ >/dev/null 2>&1\n"));
            polite.push(line);
            request.command = Command::Shell(polite);
        }
        self.inner.spawn(request).await
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

    async fn mkdir(&self, path: &SandboxPath) -> Result<(), SandboxError> {
        self.inner.mkdir(path).await
    }

    async fn remove(&self, path: &SandboxPath) -> Result<(), SandboxError> {
        self.inner.remove(path).await
    }

    async fn rename(&self, from: &SandboxPath, to: &SandboxPath) -> Result<(), SandboxError> {
        self.inner.rename(from, to).await
    }

    async fn persist(&self) -> Result<SandboxHandle, SandboxError> {
        self.inner.persist().await
    }

    async fn close(&self) -> Result<(), SandboxError> {
        self.inner.close().await
    }
}
