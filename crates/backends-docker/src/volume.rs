//! The volume with the supervisor's program, which every container mounts read-only.
//!
//! The volume is named after the program's digest, so that versions don't conflict, and is filled once. Of several
//! processes, the one that creates the container of a fixed name fills it, and the others wait until that
//! container is gone. A marker file, unpacked last, shows that the program is complete.

use std::time::Duration;

use bollard::models::{ContainerCreateBody, HostConfig, VolumeCreateRequest};
use bollard::query_parameters::{
    ContainerArchiveInfoOptionsBuilder, CreateContainerOptionsBuilder,
};
use cantle_core::sandbox::SandboxError;
use tokio::time::{Instant, sleep};

use crate::container::{Container, remove};
use crate::engine::Engine;
use crate::engine::failure::{request_failed, status};
use crate::owner::{self, ContainerName, Owner};
use crate::program;

/// File that exists once the program is complete.
const MARKER: &str = "ready";

/// How long to wait for another process that fills the volume, before taking over.
const FILL_TIMEOUT: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Creates and fills the volume unless it is complete; returns whether it was filled.
///
/// `image` is any image on the engine.
pub(crate) async fn provide(engine: &Engine, image: &str) -> Result<bool, SandboxError> {
    let program = program::bytes()
        .ok_or_else(|| SandboxError::unsupported("this build has no supervisor for containers"))?;
    let name = program::volume_name();
    let volume = VolumeCreateRequest {
        name: Some(name.clone()),
        labels: Some([(owner::PURPOSE.to_owned(), "supervisor".to_owned())].into()),
        ..VolumeCreateRequest::default()
    };
    let created = engine.api().create_volume(volume).await;
    created.map_err(|error| request_failed("failed to create the supervisor's volume", &error))?;
    let deadline = Instant::now() + FILL_TIMEOUT;
    let container = ContainerName::Filling { volume: name }.to_string();
    loop {
        match create(engine, image, &container).await {
            Ok(container) => {
                let filled = fill(&container, program).await;
                let removed = container.remove().await;
                return filled.and_then(|filled| removed.map(|()| filled));
            }
            Err(error) if status(&error) == Some(409) => {
                // The process that created it may have been killed.
                if is_abandoned(engine, &container).await || Instant::now() > deadline {
                    remove(engine, &container).await?;
                }
                sleep(POLL_INTERVAL).await;
            }
            Err(error) => {
                let doing = "failed to create a container for the supervisor's volume";
                return Err(request_failed(doing, &error));
            }
        }
    }
}

/// Whether the owner of the container of this name has died.
async fn is_abandoned(engine: &Engine, name: &str) -> bool {
    let found = engine.api().inspect_container(name, None).await;
    let labels = found.ok().and_then(|it| it.config?.labels);
    let owner = labels.and_then(|labels| Owner::parse(labels.get(owner::OWNER)?));
    owner.is_some_and(|owner| owner.is_dead())
}

/// Creates a container that is never started: files are copied to the volume through it.
async fn create(
    engine: &Engine,
    image: &str,
    name: &str,
) -> Result<Container, bollard::errors::Error> {
    let body = ContainerCreateBody {
        image: Some(image.to_owned()),
        entrypoint: Some(vec![program::path()]),
        labels: Some(owner::labels([(owner::PURPOSE, "fill".to_owned())])),
        host_config: Some(HostConfig {
            network_mode: Some("none".to_owned()),
            mounts: Some(vec![program::mount(false)]),
            ..HostConfig::default()
        }),
        ..ContainerCreateBody::default()
    };
    let options = CreateContainerOptionsBuilder::default().name(name).build();
    let created = engine.api().create_container(Some(options), body).await?;
    Ok(Container {
        engine: engine.clone(),
        id: created.id,
        sandbox: name.to_owned(),
    })
}

/// Copies the program to the volume unless it is complete; returns whether it was copied.
async fn fill(container: &Container, program: &[u8]) -> Result<bool, SandboxError> {
    let options = ContainerArchiveInfoOptionsBuilder::default()
        .path(&format!("{}/{MARKER}", program::DIRECTORY))
        .build();
    let api = container.engine.api();
    let marker = api.get_container_archive_info(&container.id, Some(options));
    if marker.await.is_ok() {
        return Ok(false);
    }
    let archive = program::archive(&[(program::NAME, program), (MARKER, b"")])
        .map_err(|error| SandboxError::io("failed to pack the supervisor", error))?;
    container.unpack(program::DIRECTORY, archive).await?;
    Ok(true)
}
