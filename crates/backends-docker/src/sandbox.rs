//! The sandbox: its container, its command runner, and its end.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use cantle_command_driver::{OnDrop, run_off_runtime};
use cantle_core::policy::Policy;
use cantle_core::sandbox::{
    ByteRange, ByteStream, ChangeNotice, Connection, Enforcement, FileInfo, Isolation, Process,
    Sandbox, SandboxError, SandboxErrorKind, SandboxHandle, SandboxInfo, SandboxPath, SpawnRequest,
    Survival, Walk, WriteOptions, walk_by_command,
};
use serde::{Deserialize, Serialize};
use tokio::sync::OnceCell;

use crate::container::{Container, inspect, remove};
use crate::engine::failure::request_failed;
use crate::options::Options;
use crate::owner::ContainerName;
use crate::runner::CommandRunner;

/// How long `drop` waits for the engine to remove a container.
const DROP_TIMEOUT: Duration = Duration::from_secs(60);

/// How many containers are followed at most, each of which has the network of the next one.
const MAX_NETWORK_OWNERS: usize = 8;

/// Responsibility for removing the container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ownership {
    /// It stops with its stream, and the engine removes it.
    AutoRemoved,
    /// It is durable: it stops with its stream, and the sandbox removes it unless it is kept.
    Owned { kept: bool },
    /// It belongs to the user and is left alone.
    External,
}

/// A sandbox in a container.
pub(crate) struct DockerSandbox {
    info: SandboxInfo,
    container: Container,
    runner: CommandRunner,
    ownership: Ownership,
    /// Whether the container's loopback interface is that of its machine; asked once.
    shares_network: OnceCell<bool>,
    is_closed: AtomicBool,
    is_kept: AtomicBool,
}

/// The token of a kept sandbox's handle.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct HandleToken {
    pub(crate) sandbox: String,
    /// The engine's address, for people.
    engine: String,
}

impl DockerSandbox {
    /// `mechanisms` and `enforcement` are those of [`SandboxInfo`].
    pub(crate) fn new(
        container: Container,
        options: &Options,
        policy: &Policy,
        runner: CommandRunner,
        mechanisms: Vec<String>,
        enforcement: Vec<Enforcement>,
        ownership: Ownership,
    ) -> Self {
        let directory = options.working_directory.clone();
        let mut info = SandboxInfo::new("docker", container.sandbox.clone(), directory);
        info.isolation = Isolation::Container;
        info.mechanisms = mechanisms;
        if matches!(runner, CommandRunner::Exec { .. }) {
            let exec = "without supervisor: each command is an exec of the engine";
            info.mechanisms.push(exec.to_owned());
        }
        info.enforcement = enforcement;
        info.network.clone_from(&policy.network);
        if matches!(ownership, Ownership::Owned { .. }) {
            info.survival = Survival::Workspace;
        }
        Self {
            info,
            container,
            runner,
            shares_network: OnceCell::new(),
            is_closed: AtomicBool::new(false),
            is_kept: AtomicBool::new(ownership == Ownership::Owned { kept: true }),
            ownership,
        }
    }

    fn check_open(&self) -> Result<(), SandboxError> {
        if self.is_closed.load(Ordering::Acquire) {
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
        !self.is_closed.swap(true, Ordering::AcqRel)
    }
}

/// Calls a method of the command runner.
macro_rules! delegate {
    ($self:ident, $method:ident($($argument:expr),*)) => {{
        $self.check_open()?;
        let result = match &$self.runner {
            CommandRunner::Supervised(relay) => relay.$method($($argument),*).await,
            CommandRunner::Exec { runner, .. } => {
                runner.unless_gone(runner.$method($($argument),*)).await
            }
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
        delegate!(self, spawn(request))
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

    async fn walk(
        &self,
        directory: &SandboxPath,
        max_entries: usize,
    ) -> Result<Walk, SandboxError> {
        walk_by_command(self, directory, max_entries).await
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

    async fn connect(&self, port: u16) -> Result<Connection, SandboxError> {
        self.check_open()?;
        let CommandRunner::Supervised(relay) = &self.runner else {
            let message = format!(
                "port {port} can't be connected to: the supervisor doesn't run in the container"
            );
            return Err(SandboxError::unsupported(message));
        };
        let shares_network = || shares_network(&self.container);
        let shares_network = self.shares_network.get_or_try_init(shares_network).await;
        if *self.map_gone(shares_network)? {
            let message = format!(
                "port {port} can't be connected to: the container shares its machine's network"
            );
            return Err(SandboxError::unsupported(message));
        }
        self.map_gone(relay.open_port(port).await)
    }

    async fn watch(&self, _: &[SandboxPath]) -> Result<ChangeNotice, SandboxError> {
        Err(SandboxError::unsupported(
            "the docker backend watches no directories",
        ))
    }

    async fn attributes(
        &self,
        _: &[SandboxPath],
        _: &str,
    ) -> Result<Vec<BTreeMap<String, String>>, SandboxError> {
        Err(SandboxError::unsupported(
            "the docker backend reads no attributes",
        ))
    }

    async fn persist(&self) -> Result<SandboxHandle, SandboxError> {
        self.check_open()?;
        if self.info.survival == Survival::Nothing {
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
        if !self.is_kept.load(Ordering::Acquire) {
            let kept = ContainerName::Kept { id };
            let renamed = self.container.rename(&self.container.id, &kept).await;
            renamed
                .map_err(|error| request_failed("failed to mark the container as kept", &error))?;
            self.is_kept.store(true, Ordering::Release);
        }
        Ok(SandboxHandle::new(&*self.info.backend, token))
    }

    async fn close(&self) -> Result<(), SandboxError> {
        if !self.begin_closing() {
            return Ok(());
        }
        if self.ownership == Ownership::External {
            self.runner.end_commands().await;
            // The end of the sandbox is not that of the container, and of what runs in it.
            if let CommandRunner::Exec { runner, .. } = &self.runner {
                runner.finish().await;
            }
            return Ok(());
        }
        // Also if this future is dropped.
        let unremoved = OnDrop::new(|| self.container.remember_unremoved());
        self.runner.end_commands().await;
        self.container.remove().await?;
        unremoved.disarm();
        Ok(())
    }
}

impl Drop for DockerSandbox {
    fn drop(&mut self) {
        let is_durable = self.info.survival != Survival::Nothing;
        if self.begin_closing() && is_durable && !self.is_kept.load(Ordering::Acquire) {
            // Commands end with the stream, but a durable container stays until it is removed, and `drop` can't
            // await the request.
            let container = self.container.clone();
            run_off_runtime(move || remove_blocking(&container));
        }
    }
}

/// Whether a container has the network of its machine, itself or through the container whose network it has.
async fn shares_network(container: &Container) -> Result<bool, SandboxError> {
    let mut id = container.id.clone();
    for _ in 0..MAX_NETWORK_OWNERS {
        let found = match inspect(&container.engine, &id).await {
            // An error of this kind would say that no server listens on the port.
            Err(error) if error.kind() == SandboxErrorKind::NotFound => {
                return Err(removed(container, &id));
            }
            found => found?,
        };
        let mode = found.host_config.and_then(|host| host.network_mode);
        match mode.as_deref().and_then(|it| it.strip_prefix("container:")) {
            Some(owner) => owner.clone_into(&mut id),
            None => return Ok(mode.as_deref() == Some("host")),
        }
    }
    Ok(true)
}

/// The error for a port of a container if that, or the owner of its network, was removed.
fn removed(container: &Container, id: &str) -> SandboxError {
    if id == container.id {
        return SandboxError::gone(format!("the container {id} was removed"));
    }
    let message = format!(
        "no port can be connected to: the container has the network of another one, {id}, which was removed"
    );
    SandboxError::unsupported(message)
        .with_advice("That may have been its machine's network. Create the container again.")
}

/// Removes a container on a runtime of its own, and waits for it.
fn remove_blocking(container: &Container) {
    let Container { engine, id, .. } = container.clone();
    let work = move || -> Option<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .ok()?;
        let removed = runtime.block_on(async {
            let removal = async { remove(&engine.reconnected()?, &id).await };
            tokio::time::timeout(DROP_TIMEOUT, removal).await
        });
        removed.ok()?.ok()
    };
    let done = std::thread::Builder::new()
        .spawn(work)
        .ok()
        .and_then(|thread| thread.join().ok());
    if done.flatten().is_none() {
        container.remember_unremoved();
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

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::net::TcpListener;
    use std::path::Path;

    use super::*;
    use crate::engine::Engine;
    use crate::engine::address::{Address, TlsFiles};

    /// The first byte of a TLS handshake.
    const HANDSHAKE: u8 = 22;

    #[test]
    fn container_of_an_engine_behind_tls_is_removed_through_tls() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tls/tests/fixtures");
        let address = Address::Tcp {
            host: listener.local_addr().unwrap().to_string(),
            tls: Some(TlsFiles {
                ca: fixtures.join("cert.pem"),
                certificate: fixtures.join("missing"),
                key: fixtures.join("missing"),
            }),
        };
        let container = Container {
            engine: Engine::unconnected(address).unwrap(),
            id: "id".to_owned(),
            sandbox: "sandbox".to_owned(),
        };
        let first = std::thread::spawn(move || {
            let (mut connection, _) = listener.accept().unwrap();
            let mut first = [0];
            connection.read_exact(&mut first).unwrap();
            first
        });
        remove_blocking(&container);
        assert_eq!(first.join().unwrap(), [HANDSHAKE]);
    }
}
