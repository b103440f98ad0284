//! The volume with the supervisor's program, which every container mounts read-only.
//!
//! The volume is named after the program's digest, so that versions don't conflict. Of several processes, the one
//! that creates the container of a fixed name fills it, and the others wait until that container is gone. Each
//! backend compares the program with its own before it uses the volume, and replaces another one.

use std::io::Read as _;
use std::time::Duration;

use bollard::models::{ContainerCreateBody, HostConfig, VolumeCreateRequest};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, DownloadFromContainerOptionsBuilder,
};
use cantle_core::sandbox::SandboxError;
use futures_util::StreamExt as _;
use tar::{Archive, EntryType};
use tokio::time::{Instant, sleep};

use crate::container::{Container, remove};
use crate::engine::Engine;
use crate::engine::failure::{request_failed, status};
use crate::owner::{self, ContainerName, Owner};
use crate::program;

/// How long to wait for another process that fills the volume, before taking over.
const FILL_TIMEOUT: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Maximum size of what an archive with one file has besides its content.
const MAX_HEADERS_BYTES: usize = 64 * 1024;

/// Creates and fills the volume unless it has the program; returns whether it was filled.
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

/// Copies the program to the volume unless it is there; returns whether it was copied.
async fn fill(container: &Container, program: &[u8]) -> Result<bool, SandboxError> {
    if has(container, program).await {
        return Ok(false);
    }
    let archive = program::archive(&[(program::NAME, program)])
        .map_err(|error| SandboxError::io("failed to pack the supervisor", error))?;
    container.unpack(program::DIRECTORY, archive).await?;
    if has(container, program).await {
        return Ok(true);
    }
    let message = "the supervisor's volume has another program; remove the volume";
    Err(SandboxError::unavailable(message))
}

/// Returns whether the volume has this program.
async fn has(container: &Container, program: &[u8]) -> bool {
    let options = DownloadFromContainerOptionsBuilder::default()
        .path(&program::path())
        .build();
    let api = container.engine.api();
    let mut download = api.download_from_container(&container.id, Some(options));
    let mut archive = Vec::new();
    // The rest of an archive is headers and padding.
    while archive.len() < program.len() + MAX_HEADERS_BYTES {
        match download.next().await {
            Some(Ok(piece)) => archive.extend_from_slice(&piece),
            Some(Err(_)) => return false,
            None => break,
        }
    }
    holds_program(&archive, program)
}

/// Returns whether the first file of a tar archive, behind extensions of its header, is the program.
///
/// For fuzzing; not part of the API.
#[doc(hidden)]
pub fn holds_program(archive: &[u8], program: &[u8]) -> bool {
    let mut archive = Archive::new(archive);
    let Ok(entries) = archive.entries() else {
        return false;
    };
    // Raw, because a sparse file that no machine could store makes the other iterator panic if overflows are checked.
    let mut entries = entries.raw(true).map_while(Result::ok);
    let file = entries.find(|entry| {
        let kind = entry.header().entry_type();
        !matches!(
            kind,
            EntryType::XHeader | EntryType::GNULongName | EntryType::GNULongLink
        )
    });
    let Some(mut entry) = file else {
        return false;
    };
    let mut found = Vec::with_capacity(program.len());
    entry.header().entry_type().is_file()
        && entry
            .header()
            .mode()
            .is_ok_and(|mode| mode & 0o777 == 0o755)
        && entry.read_to_end(&mut found).is_ok()
        && found == program
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive(name: &str, kind: EntryType, mode: u32, content: &[u8]) -> Vec<u8> {
        let mut archive = tar::Builder::new(Vec::new());
        let mut header = program::header(kind, mode);
        header.set_size(content.len() as u64);
        archive.append_data(&mut header, name, content).unwrap();
        archive.into_inner().unwrap()
    }

    #[test]
    fn only_an_executable_file_with_the_same_bytes_is_the_program() {
        const PROGRAM: &[u8] = b"program";
        let (name, file) = (program::NAME, EntryType::Regular);
        let whole = archive(name, file, 0o755, PROGRAM);
        // A long name is an extension.
        for same in [&whole, &archive(&"s".repeat(120), file, 0o755, PROGRAM)] {
            assert!(holds_program(same, PROGRAM), "{same:?}");
        }
        let directory = archive(name, EntryType::Directory, 0o755, b"");
        for other in [
            archive(name, file, 0o755, b"another"),
            archive(name, file, 0o755, b"program and more"),
            archive(name, file, 0o777, PROGRAM),
            archive(name, EntryType::Symlink, 0o755, PROGRAM),
            [&directory[..512], &whole[..]].concat(),
            // Cut within the content.
            whole[..512 + 3].to_vec(),
            Vec::new(),
        ] {
            assert!(!holds_program(&other, PROGRAM), "{other:?}");
        }
    }
}
