//! One sandbox: its container, what runs its commands, and how it ends.

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
use crate::owner::Name;
use crate::plain::Plain;
use crate::reclaim;
use crate::relay::Relay;

/// How long dropping a sandbox waits for what only the engine can remove.
const DROP_DEADLINE: Duration = Duration::from_secs(60);

/// What runs commands and serves files.
#[derive(Debug)]
pub(crate) enum Means {
    Supervised {
        relay: Relay,
        memory: Option<Arc<MemoryLimit>>,
    },
    Plain {
        plain: Plain,
        /// Keeps the container alive, and notices its end.
        watch: Mutex<Option<AbortOnDropHandle<()>>>,
    },
}

/// What becomes of the container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It ends with its stream, and the engine removes it.
    Itself,
    /// It ends with its stream, and stays until we remove it.
    Ours,
    /// It isn't ours.
    Theirs,
}

/// A sandbox in a container.
pub(crate) struct DockerSandbox {
    info: SandboxInfo,
    container: Container,
    means: Means,
    end: End,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    closed: bool,
    kept: bool,
}

/// What a handle says of a sandbox that was kept.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Token {
    pub(crate) sandbox: String,
    /// Where the engine was, for people.
    engine: String,
}

impl DockerSandbox {
    pub(crate) fn new(info: SandboxInfo, container: Container, means: Means, end: End) -> Self {
        Self {
            info,
            container,
            means,
            end,
            state: Mutex::default(),
        }
    }

    /// The same, kept already.
    pub(crate) fn kept(self) -> Self {
        self.state().kept = true;
        self
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_open(&self) -> Result<(), SandboxError> {
        if self.state().closed {
            let message = "the sandbox is closed";
            return Err(SandboxError::new(SandboxErrorKind::Closed, message));
        }
        Ok(())
    }

    /// An answer that may have come because we closed the sandbox meanwhile.
    fn told<T>(&self, answer: Result<T, SandboxError>) -> Result<T, SandboxError> {
        match answer {
            Err(error) if error.kind() == SandboxErrorKind::Gone => {
                self.check_open()?;
                Err(error)
            }
            answer => answer,
        }
    }

    /// Whether nobody else closes it already.
    fn begin_closing(&self) -> bool {
        !std::mem::replace(&mut self.state().closed, true)
    }

    /// Closes our stream, which ends what runs.
    async fn end_commands(&self) {
        match &self.means {
            Means::Supervised { relay, .. } => {
                // What doesn't end by itself the engine ends.
                if let Err(error) = relay.close().await {
                    tracing::debug!(%error, "the supervisor did not end in time");
                }
            }
            Means::Plain { watch, .. } => {
                watch.lock().unwrap_or_else(PoisonError::into_inner).take();
            }
        }
    }
}

/// One call to whatever means there is.
macro_rules! means {
    ($self:ident, $method:ident($($argument:expr),*)) => {{
        $self.check_open()?;
        let answer = match &$self.means {
            Means::Supervised { relay, .. } => relay.$method($($argument),*).await,
            Means::Plain { plain, .. } => plain.$method($($argument),*).await,
        };
        $self.told(answer)
    }};
}

#[async_trait]
impl Sandbox for DockerSandbox {
    fn info(&self) -> &SandboxInfo {
        &self.info
    }

    async fn spawn(&self, request: SpawnRequest) -> Result<Box<dyn Process>, SandboxError> {
        let process = means!(self, spawn(request))?;
        Ok(match &self.means {
            Means::Supervised {
                relay,
                memory: Some(limit),
            } => limit.watch(relay, process),
            _ => process,
        })
    }

    async fn read(&self, path: &SandboxPath, range: ByteRange) -> Result<ByteStream, SandboxError> {
        means!(self, read(path, range))
    }

    async fn write(
        &self,
        path: &SandboxPath,
        options: WriteOptions,
        data: ByteStream,
    ) -> Result<(), SandboxError> {
        means!(self, write(path, options, data))
    }

    async fn stat(&self, path: &SandboxPath) -> Result<FileInfo, SandboxError> {
        means!(self, stat(path))
    }

    async fn list(&self, path: &SandboxPath) -> Result<Vec<FileInfo>, SandboxError> {
        means!(self, list(path))
    }

    async fn mkdir(&self, path: &SandboxPath) -> Result<(), SandboxError> {
        means!(self, mkdir(path))
    }

    async fn remove(&self, path: &SandboxPath) -> Result<(), SandboxError> {
        means!(self, remove(path))
    }

    async fn rename(&self, from: &SandboxPath, to: &SandboxPath) -> Result<(), SandboxError> {
        means!(self, rename(from, to))
    }

    async fn persist(&self) -> Result<SandboxHandle, SandboxError> {
        self.check_open()?;
        if self.info.survival == Survival::Nothing || self.end != End::Ours {
            let message = "this sandbox can't be kept: it was not opened as a durable one";
            return Err(SandboxError::unsupported(message));
        }
        let id = self.container.sandbox.clone();
        let token = Token {
            sandbox: id.clone(),
            engine: self.container.engine.report().address.clone(),
        };
        let token = serde_json::to_string(&token).map_err(|error| {
            SandboxError::new(SandboxErrorKind::Io, "failed to write a handle").with_source(error)
        })?;
        if !self.state().kept {
            let kept = Name::Kept { id };
            let renamed = self.container.rename(&self.container.id, &kept).await;
            renamed.map_err(|error| {
                crate::engine::failure::failed("failed to mark the container as kept", error)
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
        match self.end {
            End::Theirs => Ok(()),
            End::Itself | End::Ours => {
                let removed = self.container.remove().await;
                if removed.is_err() {
                    reclaim::let_go(&self.container.engine, &self.container.id);
                }
                removed
            }
        }
    }
}

impl Drop for DockerSandbox {
    fn drop(&mut self) {
        let left_behind = self.begin_closing() && !self.state().kept && self.end == End::Ours;
        if left_behind {
            // With our stream, all that runs ends by itself; what stays the engine removes only when
            // it is asked to, and there is no waiting here.
            remove_from_elsewhere(&self.container);
        }
    }
}

/// Removes a container without the runtime that we may be on, and waits for that.
fn remove_from_elsewhere(container: &Container) {
    let (address, id) = (container.engine.address().to_string(), container.id.clone());
    let work = move || -> Option<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .ok()?;
        let removed = runtime.block_on(async {
            tokio::time::timeout(DROP_DEADLINE, async {
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
        reclaim::let_go(&container.engine, &container.id);
        tracing::warn!(
            container = container.id,
            "a container is left behind for `reclaim`"
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
