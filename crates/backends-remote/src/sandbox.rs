//! A sandbox of the remote backend, and its handle.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use cantle_core::sandbox::{
    ByteRange, ByteStream, ChangeNotice, Connection, FileInfo, Process, Sandbox, SandboxError,
    SandboxErrorKind, SandboxHandle, SandboxInfo, SandboxPath, SpawnRequest, Survival, Walk,
    WriteOptions, walk_by_command,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::api::is_id;
use crate::shared::Shared;
use crate::{NAME, command};

/// The token of a kept sandbox's handle.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct HandleToken {
    pub(crate) sandbox: String,
    pub(crate) directory: String,
    /// The network fields of the request that created it; old tokens lack them.
    pub(crate) network: Option<Map<String, Value>>,
}

/// Parses the token of a handle.
pub(crate) fn parse_handle(handle: &SandboxHandle) -> Result<HandleToken, SandboxError> {
    let token: HandleToken = serde_json::from_str(&handle.token).map_err(|error| {
        SandboxError::gone("the handle is not one of the remote backend").with_source(error)
    })?;
    if !is_id(&token.sandbox) {
        return Err(SandboxError::gone("the handle names no valid sandbox"));
    }
    Ok(token)
}

/// A sandbox of the remote backend.
#[derive(Debug)]
pub(crate) struct RemoteSandbox {
    shared: Arc<Shared>,
}

impl RemoteSandbox {
    pub(crate) fn new(shared: Shared) -> Self {
        let shared = Arc::new(shared);
        shared.spawn_until_closed(Arc::clone(&shared).keep_alive());
        if let Some(idle) = shared.service.options.pause_when_idle {
            shared.spawn_until_closed(Arc::clone(&shared).pause_when_idle(idle));
        }
        Self { shared }
    }
}

#[async_trait]
impl Sandbox for RemoteSandbox {
    fn info(&self) -> &SandboxInfo {
        &self.shared.info
    }

    async fn spawn(&self, request: SpawnRequest) -> Result<Box<dyn Process>, SandboxError> {
        Ok(Box::new(command::spawn(&self.shared, request).await?))
    }

    async fn read(&self, path: &SandboxPath, range: ByteRange) -> Result<ByteStream, SandboxError> {
        self.shared.activate().await?.read(path, range).await
    }

    async fn write(
        &self,
        path: &SandboxPath,
        options: WriteOptions,
        data: ByteStream,
    ) -> Result<(), SandboxError> {
        self.shared
            .activate()
            .await?
            .write(path, options, data)
            .await
    }

    async fn stat(&self, path: &SandboxPath) -> Result<FileInfo, SandboxError> {
        self.shared.activate().await?.stat(path).await
    }

    async fn list(&self, path: &SandboxPath) -> Result<Vec<FileInfo>, SandboxError> {
        self.shared.activate().await?.list(path).await
    }

    async fn walk(
        &self,
        directory: &SandboxPath,
        max_entries: usize,
    ) -> Result<Walk, SandboxError> {
        walk_by_command(self, directory, max_entries).await
    }

    async fn mkdir(&self, path: &SandboxPath) -> Result<(), SandboxError> {
        self.shared.activate().await?.mkdir(path).await
    }

    async fn remove(&self, path: &SandboxPath) -> Result<(), SandboxError> {
        self.shared.activate().await?.remove(path).await
    }

    async fn rename(&self, from: &SandboxPath, to: &SandboxPath) -> Result<(), SandboxError> {
        self.shared.activate().await?.rename(from, to).await
    }

    async fn connect(&self, _: u16) -> Result<Connection, SandboxError> {
        Err(SandboxError::unsupported(
            "the remote backend can't connect to ports of a sandbox",
        ))
    }

    async fn watch(&self, _: &[SandboxPath]) -> Result<ChangeNotice, SandboxError> {
        Err(SandboxError::unsupported(
            "the remote backend watches no directories",
        ))
    }

    async fn attributes(
        &self,
        _: &[SandboxPath],
        _: &str,
    ) -> Result<Vec<BTreeMap<String, String>>, SandboxError> {
        Err(SandboxError::unsupported(
            "the remote backend reads no attributes",
        ))
    }

    async fn persist(&self) -> Result<SandboxHandle, SandboxError> {
        self.shared.check()?;
        if self.shared.info.survival == Survival::Nothing {
            let message = "this sandbox can't be kept: it was not opened as durable";
            return Err(SandboxError::unsupported(message));
        }
        let token = HandleToken {
            sandbox: self.shared.id.clone(),
            directory: self.shared.home.clone(),
            network: self.shared.network.clone(),
        };
        let token = serde_json::to_string(&token).map_err(|error| {
            let message = "failed to encode the handle";
            SandboxError::new(SandboxErrorKind::Io, message).with_source(error)
        })?;
        self.shared.kept.store(true, Ordering::Relaxed);
        Ok(SandboxHandle::new(NAME, token))
    }

    async fn close(&self) -> Result<(), SandboxError> {
        if self.shared.closed.is_cancelled() {
            return Ok(());
        }
        self.shared.closed.cancel();
        // Completes even if this future is dropped.
        self.shared.service.kill(&self.shared.id).await
    }
}

impl Drop for RemoteSandbox {
    fn drop(&mut self) {
        let was_closed = self.shared.closed.is_cancelled();
        self.shared.closed.cancel();
        // Commands observe `closed`; other tasks are no longer needed.
        let mut tasks = std::mem::take(&mut *self.shared.tasks.lock());
        tasks.abort_all();
        if !was_closed && !self.shared.kept.load(Ordering::Relaxed) {
            self.shared.service.kill_in_background(&self.shared.id);
        }
    }
}
