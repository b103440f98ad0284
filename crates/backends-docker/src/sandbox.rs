//! The sandbox: its container, its command runner, and its end.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use cantle_core::sandbox::{
    ByteRange, ByteStream, FileInfo, Process, Sandbox, SandboxError, SandboxErrorKind,
    SandboxHandle, SandboxInfo, SandboxPath, SpawnRequest, Survival, WriteOptions,
};
use serde::{Deserialize, Serialize};
use tokio_util::task::AbortOnDropHandle;

use crate::container::{Container, remove};
use crate::engine::Engine;
use crate::memory::MemoryLimit;
use crate::owner::ContainerName;
use crate::plain::ExecRunner;
use crate::reclaim;
use crate::relay::Relay;

/// How long `drop` waits for the engine to remove a container.
const DROP_TIMEOUT: Duration = Duration::from_secs(60);

/// How commands run and files are accessed.
#[derive(Debug)]
pub(crate) enum CommandRunner {
    Supervised {
        relay: Relay,
        memory: Option<Arc<MemoryLimit>>,
    },
    Exec {
        runner: ExecRunner,
        /// Task that keeps the container alive and notices its end.
        watch: Mutex<Option<AbortOnDropHandle<()>>>,
    },
}

/// Responsibility for removing the container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ownership {
    /// It stops with its stream, and the engine removes it.
    AutoRemoved,
    /// It stops with its stream, and the sandbox removes it.
    Owned,
    /// It belongs to the user and is left alone.
    External,
}

/// A sandbox in a container.
pub(crate) struct DockerSandbox {
    info: SandboxInfo,
    container: Container,
    runner: CommandRunner,
    ownership: Ownership,
    state: Mutex<SandboxState>,
}

#[derive(Debug, Default)]
struct SandboxState {
    closed: bool,
    kept: bool,
}

/// The token of a kept sandbox's handle.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct HandleToken {
    pub(crate) sandbox: String,
    /// The engine's address, for people.
    engine: String,
}

impl DockerSandbox {
    pub(crate) fn new(
        info: SandboxInfo,
        container: Container,
        runner: CommandRunner,
        ownership: Ownership,
    ) -> Self {
        Self {
            info,
            container,
            runner,
            ownership,
            state: Mutex::default(),
        }
    }

    /// Marks the sandbox as kept.
    pub(crate) fn into_kept(self) -> Self {
        self.state().kept = true;
        self
    }

    fn state(&self) -> MutexGuard<'_, SandboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_open(&self) -> Result<(), SandboxError> {
        if self.state().closed {
            let message = "the sandbox is closed";
            return Err(SandboxError::new(SandboxErrorKind::Closed, message));
        }
        Ok(())
    }

    /// Turns "gone" into "closed" if the sandbox was closed during the operation.
    fn map_gone<T>(&self, result: Result<T, SandboxError>) -> Result<T, SandboxError> {
        match result {
            Err(error) if error.kind() == SandboxErrorKind::Gone => {
                self.check_open()?;
                Err(error)
            }
            result => result,
        }
    }

    /// Marks the sandbox as closed; returns whether it was open.
    fn begin_closing(&self) -> bool {
        !std::mem::replace(&mut self.state().closed, true)
    }

    /// Closes the stream, which ends all commands.
    async fn end_commands(&self) {
        match &self.runner {
            CommandRunner::Supervised { relay, .. } => {
                // Removing the container kills a supervisor that doesn't exit.
                if let Err(error) = relay.close().await {
                    tracing::debug!(%error, "the supervisor did not exit in time");
                }
            }
            CommandRunner::Exec { watch, .. } => {
                watch.lock().unwrap_or_else(PoisonError::into_inner).take();
            }
        }
    }
}

/// Calls a method of the command runner.
macro_rules! delegate {
    ($self:ident, $method:ident($($argument:expr),*)) => {{
        $self.check_open()?;
        let result = match &$self.runner {
            CommandRunner::Supervised { relay, .. } => relay.$method($($argument),*).await,
            CommandRunner::Exec { runner, .. } => runner.$method($($argument),*).await,
        };
        $self.map_gone(result)
    }};
}

#[async_trait]
impl Sandbox for DockerSandbox {
    fn info(&self) -> &SandboxInfo {
        &self.info
    }

    async fn spawn(&self, request: SpawnRequest) -> Result<Box<dyn Process>, SandboxError> {
        let process = delegate!(self, spawn(request))?;
        Ok(match &self.runner {
            CommandRunner::Supervised {
                relay,
                memory: Some(limit),
            } => limit.watch(relay, process),
            _ => process,
        })
    }

    async fn read(&self, path: &SandboxPath, range: ByteRange) -> Result<ByteStream, SandboxError> {
        delegate!(self, read(path, range))
    }

    async fn write(
        &self,
        path: &SandboxPath,
        options: WriteOptions,
        data: ByteStream,
    ) -> Result<(), SandboxError> {
        delegate!(self, write(path, options, data))
    }

    async fn stat(&self, path: &SandboxPath) -> Result<FileInfo, SandboxError> {
        delegate!(self, stat(path))
    }

    async fn list(&self, path: &SandboxPath) -> Result<Vec<FileInfo>, SandboxError> {
        delegate!(self, list(path))
    }

    async fn mkdir(&self, path: &SandboxPath) -> Result<(), SandboxError> {
        delegate!(self, mkdir(path))
    }

    async fn remove(&self, path: &SandboxPath) -> Result<(), SandboxError> {
        delegate!(self, remove(path))
    }

    async fn rename(&self, from: &SandboxPath, to: &SandboxPath) -> Result<(), SandboxError> {
        delegate!(self, rename(from, to))
    }

    async fn persist(&self) -> Result<SandboxHandle, SandboxError> {
        self.check_open()?;
        if self.info.survival == Survival::Nothing || self.ownership != Ownership::Owned {
            let message = "this sandbox can't be kept: it was not opened as durable";
            return Err(SandboxError::unsupported(message));
        }
        let id = self.container.sandbox.clone();
        let token = HandleToken {
            sandbox: id.clone(),
            engine: self.container.engine.report().address.clone(),
        };
        let token = serde_json::to_string(&token).map_err(|error| {
            SandboxError::new(SandboxErrorKind::Io, "failed to encode the handle")
                .with_source(error)
        })?;
        if !self.state().kept {
            let kept = ContainerName::Kept { id };
            let renamed = self.container.rename(&self.container.id, &kept).await;
            renamed.map_err(|error| {
                crate::engine::failure::request_failed(
                    "failed to mark the container as kept",
                    error,
                )
            })?;
            self.state().kept = true;
        }
        Ok(SandboxHandle::new(&*self.info.backend, token))
    }

    async fn close(&self) -> Result<(), SandboxError> {
        if !self.begin_closing() {
            return Ok(());
        }
        self.end_commands().await;
        match self.ownership {
            Ownership::External => Ok(()),
            Ownership::AutoRemoved | Ownership::Owned => {
                let removed = self.container.remove().await;
                if removed.is_err() {
                    reclaim::remember_unremoved(&self.container.engine, &self.container.id);
                }
                removed
            }
        }
    }
}

impl Drop for DockerSandbox {
    fn drop(&mut self) {
        let left_behind =
            self.begin_closing() && !self.state().kept && self.ownership == Ownership::Owned;
        if left_behind {
            // Commands end with the stream, but a durable container stays until it is removed, and `drop` can't
            // await the request.
            remove_blocking(&self.container);
        }
    }
}

/// Removes a container on a runtime of its own, and waits for it.
fn remove_blocking(container: &Container) {
    let (address, id) = (container.engine.address().to_string(), container.id.clone());
    let work = move || -> Option<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .ok()?;
        let removed = runtime.block_on(async {
            tokio::time::timeout(DROP_TIMEOUT, async {
                let engine = Engine::connect(Some(&address)).await?;
                remove(&engine, &id).await
            })
            .await
        });
        removed.ok()?.ok()
    };
    let done = std::thread::Builder::new()
        .spawn(work)
        .ok()
        .and_then(|thread| thread.join().ok());
    if done.flatten().is_none() {
        reclaim::remember_unremoved(&container.engine, &container.id);
        tracing::warn!(
            container = container.id,
            "failed to remove a container; `reclaim` will"
        );
    }
}

impl fmt::Debug for DockerSandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DockerSandbox")
            .field("id", &self.info.id)
            .field("container", &self.container.id)
            .finish_non_exhaustive()
    }
}
