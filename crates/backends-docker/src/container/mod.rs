//! One container: creation, start with attached streams, and removal.

mod connection;
pub(crate) mod facts;
pub(crate) mod spec;
mod stream;

use std::io;
use std::pin::Pin;
use std::time::Duration;

use bollard::container::{AttachContainerResults, LogOutput};
use bollard::exec::{StartExecOptions, StartExecResults};
use bollard::models::{ContainerInspectResponse, ExecConfig};
use bollard::query_parameters::{
    AttachContainerOptionsBuilder, CreateContainerOptionsBuilder, RemoveContainerOptionsBuilder,
    RenameContainerOptionsBuilder, UploadToContainerOptionsBuilder,
};
use bytes::Bytes;
use cantle_core::ids::RunId;
use cantle_core::sandbox::{SandboxError, SandboxErrorKind};
use futures_util::Stream;
use tokio::io::AsyncWrite;
use tokio::time::{Instant, sleep};

use self::spec::ContainerSpec;
pub(crate) use self::stream::ContainerStream;
use crate::engine::Engine;
use crate::engine::failure::{engine_message, request_failed, status};
use crate::owner::{self, ContainerName};
use crate::program;

const REMOVE_TIMEOUT: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Output of a program that the engine started, and its input.
pub(crate) type ExecOutput =
    Pin<Box<dyn Stream<Item = Result<LogOutput, bollard::errors::Error>> + Send>>;
pub(crate) type ExecInput = Pin<Box<dyn AsyncWrite + Send>>;

/// A container on an engine.
#[derive(Clone, Debug)]
pub(crate) struct Container {
    pub(crate) engine: Engine,
    /// The engine's permanent id for it.
    pub(crate) id: String,
    /// The id of its sandbox.
    pub(crate) sandbox: String,
}

impl Container {
    /// Has a later call remove this container, whose removal failed.
    pub(crate) fn remember_unremoved(&self) {
        self.engine.unremoved().insert(self.id.clone());
    }

    /// Creates a container without starting it.
    pub(crate) async fn create(
        engine: &Engine,
        spec: &ContainerSpec<'_>,
        image: &str,
        run: RunId,
        entry: Vec<String>,
    ) -> Result<Self, SandboxError> {
        let sandbox = cantle_core::ids::unique_id();
        if let Some(runtime) = spec.options.runtime.as_ref().filter(|_| engine.is_podman()) {
            let message = format!(
                "Podman ignores the runtime in a request: `{runtime}` would have no effect"
            );
            return Err(SandboxError::unavailable(message).with_advice(
                "Set it in Podman's configuration (`runtime` in containers.conf) instead.",
            ));
        }
        let labels = owner::labels([
            (owner::SANDBOX, sandbox.clone()),
            (owner::RUN, run.to_string()),
        ]);
        let id = sandbox.clone();
        let name = ContainerName::Owned { id }.to_string();
        let options = CreateContainerOptionsBuilder::default().name(&name).build();
        let body = spec.body(image, labels, entry, engine.supported_limits());
        let created = engine.api().create_container(Some(options), body).await;
        let created = created.map_err(|error| create_error(spec, &error))?;
        for warning in &created.warnings {
            tracing::warn!(
                container = created.id,
                warning,
                "the container engine returned a warning"
            );
        }
        let container = Self {
            engine: engine.clone(),
            id: created.id,
            sandbox,
        };
        if spec.lacks_directories() {
            let made = container.create_directories(spec).await;
            container.or_remove(made).await?;
        }
        Ok(container)
    }

    /// Creates the working directory, owned by the user, and `/tmp`, which the smallest images lack.
    async fn create_directories(&self, spec: &ContainerSpec<'_>) -> Result<(), SandboxError> {
        let (user, group) = spec.options.user;
        let workspace = &spec.options.working_directory;
        let workspace = String::from_utf8_lossy(workspace.relative_bytes());
        let mut archive = tar::Builder::new(Vec::new());
        let mut append = |path: &str, mode: u32, user: u32, group: u32| {
            let mut header = program::header(tar::EntryType::Directory, mode);
            header.set_uid(user.into());
            header.set_gid(group.into());
            archive.append_data(&mut header, format!("{path}/"), io::empty())
        };
        let appended =
            append("tmp", 0o1777, 0, 0).and_then(|()| append(&workspace, 0o755, user, group));
        let packed = appended.and_then(|()| archive.into_inner());
        let packed =
            packed.map_err(|error| SandboxError::io("failed to pack a directory", error))?;
        self.unpack("/", packed.into()).await
    }

    /// Unpacks a tar archive in a directory of the container.
    pub(crate) async fn unpack(&self, path: &str, archive: Bytes) -> Result<(), SandboxError> {
        let options = UploadToContainerOptionsBuilder::default()
            .path(path)
            .build();
        let body = bollard::body_full(archive);
        let api = self.engine.api();
        let put = api.upload_to_container(&self.id, Some(options), body).await;
        let doing = format!("failed to write to `{path}` in the container");
        put.map_err(|error| request_failed(&doing, &error))
    }

    /// Attaches to its streams and starts it.
    pub(crate) async fn start(&self) -> Result<ContainerStream, SandboxError> {
        let stream = match connection::attach(&self.engine, &self.id).await {
            Some(stream) => stream,
            None => self.attach().await?,
        };
        let started = self.engine.api().start_container(&self.id, None).await;
        started.map_err(|error| refused("failed to start the container", &error))?;
        Ok(stream)
    }

    async fn attach(&self) -> Result<ContainerStream, SandboxError> {
        let options = AttachContainerOptionsBuilder::default()
            .stdin(true)
            .stdout(true)
            .stderr(true)
            .stream(true)
            .build();
        let attached = self.engine.api().attach_container(&self.id, Some(options));
        let AttachContainerResults { output, input } = attached
            .await
            .map_err(|error| request_failed("failed to attach to the container", &error))?;
        Ok(ContainerStream::new(output, input))
    }

    /// Starts a program in the container; returns its id, output and input.
    pub(crate) async fn exec(
        &self,
        config: ExecConfig,
    ) -> Result<(String, ExecOutput, ExecInput), bollard::errors::Error> {
        let api = self.engine.api();
        let config = ExecConfig {
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            ..config
        };
        let id = api.create_exec(&self.id, config).await?.id;
        let options = StartExecOptions::default();
        match api.start_exec(&id, Some(options)).await? {
            StartExecResults::Attached { output, input } => Ok((id, output, input)),
            // Only on request.
            StartExecResults::Detached => Err(io::Error::from(io::ErrorKind::NotConnected).into()),
        }
    }

    /// Removes the container if `result` is an error.
    pub(crate) async fn or_remove<T>(
        &self,
        result: Result<T, SandboxError>,
    ) -> Result<T, SandboxError> {
        if result.is_err()
            && let Err(error) = self.remove().await
        {
            self.remember_unremoved();
            tracing::warn!(container = self.id, %error, "failed to remove a container that did not open");
        }
        result
    }

    /// Kills its processes and removes it, if it still exists.
    pub(crate) async fn remove(&self) -> Result<(), SandboxError> {
        remove(&self.engine, &self.id).await
    }

    pub(crate) async fn rename(
        &self,
        from: &str,
        to: &ContainerName,
    ) -> Result<(), bollard::errors::Error> {
        let options = RenameContainerOptionsBuilder::default()
            .name(&to.to_string())
            .build();
        self.engine.api().rename_container(from, options).await
    }
}

/// Removes a container with its anonymous volumes, if it still exists, and waits until it is gone.
pub(crate) async fn remove(engine: &Engine, id: &str) -> Result<(), SandboxError> {
    let deadline = Instant::now() + REMOVE_TIMEOUT;
    let options = RemoveContainerOptionsBuilder::default()
        .force(true)
        .v(true)
        .build();
    loop {
        match engine
            .api()
            .remove_container(id, Some(options.clone()))
            .await
        {
            Ok(()) => return Ok(()),
            Err(error) if status(&error) == Some(404) => return Ok(()),
            // The engine is removing it already, because its first process has exited.
            Err(error) if status(&error) == Some(409) && Instant::now() < deadline => {
                sleep(POLL_INTERVAL).await;
            }
            Err(error) => {
                let message = format!(
                    "failed to remove the container {id}: {}",
                    engine_message(&error)
                );
                return Err(SandboxError::new(SandboxErrorKind::Io, message)
                    .with_advice("Remove it manually: `docker rm -f`."));
            }
        }
    }
}

fn create_error(spec: &ContainerSpec<'_>, error: &bollard::errors::Error) -> SandboxError {
    let cause = engine_message(error);
    if let Some(runtime) = &spec.options.runtime
        && cause.contains("untime")
    {
        let message = format!("the container engine has no runtime `{runtime}`: {cause}");
        return SandboxError::unavailable(message).with_advice(
            "Install it and name it in the engine's configuration (`docker info` lists them).",
        );
    }
    if status(error) == Some(404) {
        let message = format!("the image is no longer there: {cause}");
        return SandboxError::new(SandboxErrorKind::NotFound, message);
    }
    refused("failed to create the container", error)
}

/// Maps an error response to "unavailable": the request is valid, but this engine refuses it.
fn refused(doing: &str, error: &bollard::errors::Error) -> SandboxError {
    if status(error).is_none() {
        return request_failed(doing, error);
    }
    SandboxError::unavailable(format!("{doing}: {}", engine_message(error)))
        .with_advice("See the engine's log for details.")
}

/// Returns what the engine reports about a container.
pub(crate) async fn inspect(
    engine: &Engine,
    id: &str,
) -> Result<ContainerInspectResponse, SandboxError> {
    let looked = engine.api().inspect_container(id, None).await;
    looked.map_err(|error| request_failed("failed to inspect a container", &error))
}
