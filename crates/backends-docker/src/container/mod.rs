//! One container: made, started with our stream attached, and removed.

mod archive;
mod connection;
pub(crate) mod plan;
mod stream;

use std::time::Duration;

use bollard::container::AttachContainerResults;
use bollard::query_parameters::{
    AttachContainerOptionsBuilder, CreateContainerOptionsBuilder, RemoveContainerOptionsBuilder,
    UploadToContainerOptionsBuilder,
};
use bytes::Bytes;
use cantle_core::ids::RunId;
use cantle_core::sandbox::{SandboxError, SandboxErrorKind};
use tokio::time::{Instant, sleep};

use self::plan::Wanted;
pub(crate) use self::stream::Stream;
use crate::engine::Engine;
use crate::engine::failure::{failed, message, status};
use crate::owner::{self, Name};

/// How long the engine may take to let go of a container.
const REMOVE_DEADLINE: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A container of ours.
#[derive(Clone, Debug)]
pub(crate) struct Container {
    pub(crate) engine: Engine,
    /// The engine's name for it, which doesn't change.
    pub(crate) id: String,
    /// Ours.
    pub(crate) sandbox: String,
}

impl Container {
    /// Makes a container that is not started yet.
    pub(crate) async fn create(
        engine: &Engine,
        wanted: &Wanted<'_>,
        image: &str,
        run: RunId,
        entry: Vec<String>,
    ) -> Result<Self, SandboxError> {
        let sandbox = cantle_core::ids::fresh_id();
        if let Some(runtime) = wanted
            .options
            .runtime
            .as_ref()
            .filter(|_| engine.is_podman())
        {
            let message = format!(
                "Podman takes no runtime from those who ask for a container: `{runtime}` would be passed over"
            );
            return Err(SandboxError::new(SandboxErrorKind::Unavailable, message)
                .with_advice("Name it in Podman's own configuration (`runtime` in containers.conf), and not here."));
        }
        let labels = owner::labels([
            (owner::SANDBOX, sandbox.clone()),
            (owner::RUN, run.to_string()),
        ]);
        let id = sandbox.clone();
        let name = Name::Owned { id }.to_string();
        let options = CreateContainerOptionsBuilder::default().name(&name).build();
        let body = wanted.body(image, labels, entry, engine.limiting());
        let created = engine.api().create_container(Some(options), body).await;
        let created = created.map_err(|error| not_created(wanted, error))?;
        for warning in &created.warnings {
            tracing::warn!(
                container = created.id,
                warning,
                "the container engine warns"
            );
        }
        let container = Self {
            engine: engine.clone(),
            id: created.id,
            sandbox,
        };
        if wanted.lacks_directories() {
            let made = container.make_directories(wanted).await;
            container.or_remove(made).await?;
        }
        Ok(container)
    }

    /// Makes the working directory the user's, and sees to it that there is a place for temporary
    /// files, which the smallest images lack.
    async fn make_directories(&self, wanted: &Wanted<'_>) -> Result<(), SandboxError> {
        let (user, group) = wanted.options.user;
        let workspace = &wanted.options.working_directory;
        let workspace = String::from_utf8_lossy(workspace.relative_bytes());
        let mut archive = tar::Builder::new(Vec::new());
        let mut append = |path: &str, mode: u32, user: u32, group: u32| {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(tar::EntryType::Directory);
            header.set_mode(mode);
            header.set_uid(user.into());
            header.set_gid(group.into());
            header.set_size(0);
            archive.append_data(&mut header, format!("{path}/"), std::io::empty())
        };
        let appended =
            append("tmp", 0o1777, 0, 0).and_then(|()| append(&workspace, 0o755, user, group));
        let packed = appended.and_then(|()| archive.into_inner());
        let packed =
            packed.map_err(|error| SandboxError::io("failed to pack a directory", error))?;
        self.unpack("/", packed.into()).await
    }

    /// Unpacks an archive in one of its directories.
    pub(crate) async fn unpack(&self, path: &str, archive: Bytes) -> Result<(), SandboxError> {
        let options = UploadToContainerOptionsBuilder::default()
            .path(path)
            .build();
        let body = bollard::body_full(archive);
        let put = self
            .engine
            .api()
            .upload_to_container(&self.id, Some(options), body)
            .await;
        put.map_err(|error| {
            failed(
                &format!("failed to write to `{path}` in the container"),
                error,
            )
        })
    }

    /// Attaches our stream and starts it.
    pub(crate) async fn start(&self) -> Result<Stream, SandboxError> {
        let stream = match connection::attach(&self.engine, &self.id).await {
            Some(stream) => stream,
            None => self.attach().await?,
        };
        match self.engine.api().start_container(&self.id, None).await {
            Ok(()) => Ok(stream),
            Err(error) => Err(not_started(error)),
        }
    }

    async fn attach(&self) -> Result<Stream, SandboxError> {
        let options = AttachContainerOptionsBuilder::default()
            .stdin(true)
            .stdout(true)
            .stderr(true)
            .stream(true)
            .build();
        let attached = self.engine.api().attach_container(&self.id, Some(options));
        let AttachContainerResults { output, input } = attached
            .await
            .map_err(|error| failed("failed to attach to the container", error))?;
        Ok(Stream::new(output, input))
    }

    /// Removes the container where something failed.
    pub(crate) async fn or_remove<T>(
        &self,
        result: Result<T, SandboxError>,
    ) -> Result<T, SandboxError> {
        if result.is_err()
            && let Err(error) = self.remove().await
        {
            tracing::warn!(container = self.id, %error, "a container that did not open is left behind");
        }
        result
    }

    /// Kills what runs in it and removes it. One that is gone is fine.
    pub(crate) async fn remove(&self) -> Result<(), SandboxError> {
        remove(&self.engine, &self.id).await
    }

    /// Calls it something else.
    pub(crate) async fn rename(&self, from: &str, to: &Name) -> Result<(), bollard::errors::Error> {
        let options = bollard::query_parameters::RenameContainerOptionsBuilder::default()
            .name(&to.to_string())
            .build();
        self.engine.api().rename_container(from, options).await
    }
}

/// Removes a container with its nameless volumes, and waits until it is gone.
pub(crate) async fn remove(engine: &Engine, id: &str) -> Result<(), SandboxError> {
    let deadline = Instant::now() + REMOVE_DEADLINE;
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
            // The engine is at it already, because its first process has ended.
            Err(error) if status(&error) == Some(409) && Instant::now() < deadline => {
                sleep(LOOK_EVERY).await;
            }
            Err(error) => {
                let message = format!("failed to remove the container {id}: {}", message(&error));
                return Err(SandboxError::new(SandboxErrorKind::Io, message)
                    .with_source(error)
                    .with_advice("Remove it by hand: `docker rm -f`."));
            }
        }
    }
}

fn not_created(wanted: &Wanted<'_>, error: bollard::errors::Error) -> SandboxError {
    let said = message(&error);
    if let Some(runtime) = &wanted.options.runtime
        && said.contains("untime")
    {
        let message = format!("the container engine has no runtime `{runtime}`: {said}");
        return SandboxError::new(SandboxErrorKind::Unavailable, message)
            .with_source(error)
            .with_advice(
                "Install it and name it in the engine's configuration (`docker info` lists them).",
            );
    }
    match status(&error) {
        Some(404) => {
            let message = format!("the image is no longer there: {said}");
            SandboxError::new(SandboxErrorKind::NotFound, message).with_source(error)
        }
        _ => refused("failed to create the container", error),
    }
}

fn not_started(error: bollard::errors::Error) -> SandboxError {
    refused("failed to start the container", error)
}

/// A container that the engine will not have as it is.
fn refused(doing: &str, error: bollard::errors::Error) -> SandboxError {
    let text = format!("{doing}: {}", message(&error));
    match status(&error) {
        Some(_) => SandboxError::new(SandboxErrorKind::Unavailable, text)
            .with_source(error)
            .with_advice("The engine refuses it; its log says more."),
        None => failed(doing, error),
    }
}
