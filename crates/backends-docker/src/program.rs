//! Our supervisor in a container: on a volume of the engine's that every container mounts read-only.
//!
//! The volume is named after the program's digest, so versions don't meet, and is filled once. Two
//! processes may want to fill it at the same time; the one that gets to make a container of a certain
//! name does, and the other one waits for that container to go. The program is complete when the mark
//! beside it is there, which is unpacked after it.

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

use crate::container::plan::program_mount;
use crate::engine::Engine;
use crate::engine::address::hex;
use crate::engine::failure::{failed, status};
use crate::owner::{self, Name, Owner};

/// Where the volume is in a container.
pub(crate) const DIRECTORY: &str = "/.cantle";
/// The program's name there.
const NAME: &str = "supervisor";
/// Says that the program is whole.
const MARK: &str = "ready";

/// How long somebody else may take to fill the volume; then it is done without waiting.
const FILL_DEADLINE: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The program, where there is one for the engine's kind of machine.
pub(crate) fn bytes() -> Option<&'static [u8]> {
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    return Some(cantle_supervisor::PROGRAM);
    #[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
    None
}

/// Where the program is in a container that mounts the volume.
pub(crate) fn path() -> String {
    format!("{DIRECTORY}/{NAME}")
}

const VOLUME: &str = "cantle-supervisor-";

/// Digits of the program's digest in the volume's name.
const DIGITS: usize = 24;

/// The volume's name.
pub(crate) fn volume_name() -> String {
    let mut digest = hex(&Sha256::digest(bytes().unwrap_or_default()));
    digest.truncate(DIGITS);
    format!("{VOLUME}{digest}")
}

/// Whether it is the name of such a volume, of whatever version.
pub(crate) fn is_volume(name: &str) -> bool {
    let digest = name.strip_prefix(VOLUME).map(str::as_bytes);
    digest.is_some_and(|it| it.len() == DIGITS && it.iter().all(u8::is_ascii_hexdigit))
}

/// Makes the volume and fills it, unless that is done; whether there was something to do. `image` is any
/// image the engine has.
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
    let made = engine.api().create_volume(volume).await;
    made.map_err(|error| failed("failed to make the supervisor's volume", error))?;
    let deadline = Instant::now() + FILL_DEADLINE;
    let container = Name::Filling { volume: name }.to_string();
    loop {
        match create(engine, image, &container).await {
            Ok(id) => {
                let filled = fill(engine, &id, program).await;
                let removed = remove(engine, &id).await;
                return filled.and_then(|filled| removed.map(|()| filled));
            }
            Err(error) if status(&error) == Some(409) => {
                // Whoever was at it may have been killed.
                if is_left(engine, &container).await || Instant::now() > deadline {
                    remove(engine, &container).await?;
                }
                sleep(LOOK_EVERY).await;
            }
            Err(error) => {
                return Err(failed(
                    "failed to make a container for the supervisor's volume",
                    error,
                ));
            }
        }
    }
}

/// Whether the owner of a container of this name has ended.
async fn is_left(engine: &Engine, name: &str) -> bool {
    let looked = engine.api().inspect_container(name, None).await;
    let labels = looked.ok().and_then(|it| it.config?.labels);
    let owner = labels.and_then(|labels| Owner::parse(labels.get(owner::OWNER)?));
    owner.is_some_and(|owner| owner.is_dead())
}

/// A container that is never started: files reach the volume through it.
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

/// Whether there was something to do.
async fn fill(engine: &Engine, container: &str, program: &[u8]) -> Result<bool, SandboxError> {
    let mark = format!("{DIRECTORY}/{MARK}");
    let options = ContainerArchiveInfoOptionsBuilder::default()
        .path(&mark)
        .build();
    if engine
        .api()
        .get_container_archive_info(container, Some(options))
        .await
        .is_ok()
    {
        return Ok(false);
    }
    let archive = archive(&[(NAME, program), (MARK, b"")])
        .map_err(|error| SandboxError::io("failed to pack the supervisor", error))?;
    let options = UploadToContainerOptionsBuilder::default()
        .path(DIRECTORY)
        .build();
    let put =
        engine
            .api()
            .upload_to_container(container, Some(options), bollard::body_full(archive));
    put.await
        .map_err(|error| failed("failed to put the supervisor into its volume", error))?;
    Ok(true)
}

/// Programs in an archive, in order.
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
                failed(doing, error).to_string(),
            ))
        }
    }
}
