//! Removal of containers whose owner was killed or could not remove them, and of old images.

use std::collections::HashMap;
use std::time::{Duration, UNIX_EPOCH};

use bollard::errors::Error;
use bollard::query_parameters::{
    ListContainersOptionsBuilder, ListImagesOptionsBuilder, RemoveImageOptionsBuilder,
};
use cantle_core::sandbox::SandboxError;
use tokio::time::{Instant, sleep};

use crate::container;
use crate::engine::Engine;
use crate::engine::failure::{engine_message, request_failed, status};
use crate::image;
use crate::owner::{self, ContainerName, Owner};

/// How long to retry while the engine cleans up a container.
const LIST_TIMEOUT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(30);

/// Result of [`DockerBackend::reclaim`](crate::DockerBackend::reclaim) and
/// [`remove_images`](crate::DockerBackend::remove_images).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reclaimed {
    /// Names or ids of the removed containers, or names of images.
    pub removed: Vec<String>,
    /// Names or ids of those that could not be removed, with the reason.
    pub failed: Vec<(String, String)>,
}

pub(crate) async fn reclaim(engine: &Engine) -> Result<Reclaimed, SandboxError> {
    let mut reclaimed = remove_remembered(engine).await;
    let ours = format!("{}={}", owner::HOST, owner::host_id());
    for found in list(engine, ours).await? {
        if !is_abandoned(&found) {
            continue;
        }
        let name = found.name.to_string();
        match container::remove(engine, &found.id).await {
            Ok(()) => reclaimed.removed.push(name),
            Err(error) => reclaimed.failed.push((name, error.to_string())),
        }
    }
    Ok(reclaimed)
}

/// Retries to remove the closed containers that could not be removed.
pub(crate) async fn remove_remembered(engine: &Engine) -> Reclaimed {
    let mut reclaimed = Reclaimed::default();
    let unremoved = engine.unremoved().clone();
    for id in unremoved {
        match container::remove(engine, &id).await {
            Ok(()) => {
                engine.unremoved().remove(&id);
                reclaimed.removed.push(id);
            }
            Err(error) => reclaimed.failed.push((id, error.to_string())),
        }
    }
    reclaimed
}

/// Removes built images with a purpose that are older than `age` and in no container.
pub(crate) async fn remove_images(
    engine: &Engine,
    purpose: &str,
    age: Duration,
) -> Result<Reclaimed, SandboxError> {
    let label = format!("{}={purpose}", owner::PURPOSE);
    let filters = HashMap::from([("label".to_owned(), vec![label])]);
    let options = ListImagesOptionsBuilder::default()
        .filters(&filters)
        .build();
    let listed = engine.api().list_images(Some(options)).await;
    let listed =
        listed.map_err(|error| request_failed("failed to list the engine's images", &error))?;
    let mut removed = Reclaimed::default();
    for image in listed {
        let created = UNIX_EPOCH + Duration::from_secs(image.created.try_into().unwrap_or(0));
        // An engine that ignores the filter loses no image.
        let has_purpose = image.labels.get(owner::PURPOSE).map(String::as_str) == Some(purpose);
        if !has_purpose || created.elapsed().unwrap_or_default() < age {
            continue;
        }
        let names = image.repo_tags.into_iter();
        for name in names.filter(|name| image::is_built(name)) {
            let options = RemoveImageOptionsBuilder::default().build();
            match engine.api().remove_image(&name, Some(options), None).await {
                Ok(_) => removed.removed.push(name),
                // A container is of it, or another process has removed it.
                Err(error) if matches!(status(&error), Some(404 | 409)) => {}
                Err(error) => removed.failed.push((name, engine_message(&error))),
            }
        }
    }
    Ok(removed)
}

/// Whether the owner has died and no handle exists.
fn is_abandoned(found: &ListedContainer) -> bool {
    !found.name.is_kept() && found.owner.as_ref().is_some_and(Owner::is_dead)
}

/// A container in a listing.
#[derive(Debug)]
pub(crate) struct ListedContainer {
    pub(crate) id: String,
    pub(crate) name: ContainerName,
    owner: Option<Owner>,
}

/// Lists the containers with this label.
pub(crate) async fn list(
    engine: &Engine,
    label: String,
) -> Result<Vec<ListedContainer>, SandboxError> {
    let filters = HashMap::from([("label".to_owned(), vec![label])]);
    let options = ListContainersOptionsBuilder::default()
        .all(true)
        .filters(&filters)
        .build();
    let began = Instant::now();
    let listed = loop {
        match engine.api().list_containers(Some(options.clone())).await {
            // While Podman cleans up a container, its state is one that bollard can't parse.
            Err(Error::JsonDataError { .. }) if began.elapsed() < LIST_TIMEOUT => {
                sleep(POLL_INTERVAL).await;
            }
            listed => break listed,
        }
    };
    let listed =
        listed.map_err(|error| request_failed("failed to list the engine's containers", &error))?;
    let found = listed.into_iter().filter_map(|summary| {
        let labels = summary.labels.unwrap_or_default();
        Some(ListedContainer {
            id: summary.id?,
            name: ContainerName::parse(summary.names?.first()?)?,
            owner: labels.get(owner::OWNER).and_then(|text| Owner::parse(text)),
        })
    });
    Ok(found.collect())
}
