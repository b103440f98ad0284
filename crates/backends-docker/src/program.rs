//! The supervisor's program, on a volume of the engine that every container mounts read-only.
//!
//! The volume is named after the program's digest, so that versions don't conflict, and is filled once. Of several
//! processes, the one that creates the container of a fixed name fills it, and the others wait until that
//! container is gone. A marker file, unpacked last, shows that the program is complete.

use std::io;
use std::time::Duration;

use bollard::models::{ContainerCreateBody, HostConfig, VolumeCreateRequest};
use bollard::query_parameters::{
    ContainerArchiveInfoOptionsBuilder, CreateContainerOptionsBuilder,
    RemoveContainerOptionsBuilder, UploadToContainerOptionsBuilder,
};
use bytes::Bytes;
use cantle_core::sandbox::{SandboxError, SandboxErrorKind};
use sha2::{Digest as _, Sha256};
use tokio::time::{Instant, sleep};

use crate::container::spec::program_mount;
use crate::engine::Engine;
use crate::engine::failure::{request_failed, status};
use crate::owner::{self, ContainerName, Owner};

/// Mount point of the volume.
pub(crate) const DIRECTORY: &str = "/.cantle";
/// File name of the program.
const NAME: &str = "supervisor";
/// File that exists once the program is complete.
const MARKER: &str = "ready";

/// How long to wait for another process that fills the volume, before taking over.
const FILL_TIMEOUT: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Returns the program, if this build has one.
pub(crate) fn bytes() -> Option<&'static [u8]> {
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    return Some(cantle_supervisor::PROGRAM);
    #[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
    None
}

/// Returns the program's path in a container that mounts the volume.
pub(crate) fn path() -> String {
    format!("{DIRECTORY}/{NAME}")
}

const VOLUME_PREFIX: &str = "cantle-supervisor-";

/// Length of the digest in the volume's name.
const DIGEST_DIGITS: usize = 24;

/// Returns the volume's name.
pub(crate) fn volume_name() -> String {
    let mut digest = format!("{:x}", Sha256::digest(bytes().unwrap_or_default()));
    digest.truncate(DIGEST_DIGITS);
    format!("{VOLUME_PREFIX}{digest}")
}

/// Whether this is the name of a supervisor's volume, of any version.
pub(crate) fn is_volume(name: &str) -> bool {
    let digest = name.strip_prefix(VOLUME_PREFIX).map(str::as_bytes);
    digest.is_some_and(|it| it.len() == DIGEST_DIGITS && it.iter().all(u8::is_ascii_hexdigit))
}

/// Creates and fills the volume unless it is complete; returns whether it was filled.
///
/// `image` is any image on the engine.
pub(crate) async fn provide(engine: &Engine, image: &str) -> Result<bool, SandboxError> {
    let program = bytes().ok_or_else(|| {
        let message = "this build has no supervisor for containers";
        SandboxError::unsupported(message)
    })?;
    let name = volume_name();
    let volume = VolumeCreateRequest {
        name: Some(name.clone()),
        labels: Some([(owner::PURPOSE.to_owned(), "supervisor".to_owned())].into()),
        ..VolumeCreateRequest::default()
    };
    let created = engine.api().create_volume(volume).await;
    created.map_err(|error| request_failed("failed to create the supervisor's volume", error))?;
    let deadline = Instant::now() + FILL_TIMEOUT;
    let container = ContainerName::Filling { volume: name }.to_string();
    loop {
        match create(engine, image, &container).await {
            Ok(id) => {
                let filled = fill(engine, &id, program).await;
                let removed = remove(engine, &id).await;
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
                return Err(request_failed(
                    "failed to create a container for the supervisor's volume",
                    error,
                ));
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
) -> Result<String, bollard::errors::Error> {
    let body = ContainerCreateBody {
        image: Some(image.to_owned()),
        entrypoint: Some(vec![path()]),
        labels: Some(owner::labels([(owner::PURPOSE, "fill".to_owned())])),
        host_config: Some(HostConfig {
            network_mode: Some("none".to_owned()),
            mounts: Some(vec![program_mount(false)]),
            ..HostConfig::default()
        }),
        ..ContainerCreateBody::default()
    };
    let options = CreateContainerOptionsBuilder::default().name(name).build();
    let created = engine.api().create_container(Some(options), body).await?;
    Ok(created.id)
}

/// Copies the program to the volume unless it is complete; returns whether it was copied.
async fn fill(engine: &Engine, container: &str, program: &[u8]) -> Result<bool, SandboxError> {
    let marker = format!("{DIRECTORY}/{MARKER}");
    let options = ContainerArchiveInfoOptionsBuilder::default()
        .path(&marker)
        .build();
    if engine
        .api()
        .get_container_archive_info(container, Some(options))
        .await
        .is_ok()
    {
        return Ok(false);
    }
    let archive = archive(&[(NAME, program), (MARKER, b"")])
        .map_err(|error| SandboxError::io("failed to pack the supervisor", error))?;
    let options = UploadToContainerOptionsBuilder::default()
        .path(DIRECTORY)
        .build();
    let put =
        engine
            .api()
            .upload_to_container(container, Some(options), bollard::body_full(archive));
    put.await
        .map_err(|error| request_failed("failed to copy the supervisor to its volume", error))?;
    Ok(true)
}

/// Packs executable files into a tar archive, in order.
pub(crate) fn archive(files: &[(&str, &[u8])]) -> io::Result<Bytes> {
    let mut archive = tar::Builder::new(Vec::new());
    for (name, bytes) in files {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o755);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(bytes.len() as u64);
        archive.append_data(&mut header, name, *bytes)?;
    }
    archive.into_inner().map(Bytes::from)
}

async fn remove(engine: &Engine, container: &str) -> Result<(), SandboxError> {
    let options = RemoveContainerOptionsBuilder::default().force(true).build();
    match engine
        .api()
        .remove_container(container, Some(options))
        .await
    {
        Ok(()) => Ok(()),
        Err(error) if matches!(status(&error), Some(404 | 409)) => Ok(()),
        Err(error) => {
            let doing = "failed to remove the container of the supervisor's volume";
            Err(SandboxError::new(
                SandboxErrorKind::Io,
                request_failed(doing, error).to_string(),
            ))
        }
    }
}
