//! What owners left who were killed, and what could not be removed when it was closed.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bollard::errors::Error;
use bollard::query_parameters::ListContainersOptionsBuilder;
use cantle_core::sandbox::SandboxError;
use tokio::time::{Instant, sleep};

use crate::container;
use crate::engine::Engine;
use crate::engine::failure::failed;
use crate::owner::{self, Name, Owner};

/// How long an engine may take to clear up after a container.
const SETTLED: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(30);

/// What [`DockerBackend::reclaim`](crate::DockerBackend::reclaim) has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reclaimed {
    /// The names or ids of the containers that were removed.
    pub removed: Vec<String>,
    /// Those of the ones that could not be, and why.
    pub failed: Vec<(String, String)>,
}

pub(crate) async fn reclaim(engine: &Engine) -> Result<Reclaimed, SandboxError> {
    let mut reclaimed = remove_let_go(engine).await;
    let ours = format!("{}={}", owner::HOST, owner::host_id());
    for found in list(engine, ours).await? {
        if !is_left(&found) {
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

/// Containers that nobody wants any more and that could not be removed: the addresses of their engines,
/// and their ids. Their owner lives, and nothing else tells.
static LET_GO: Mutex<BTreeSet<(String, String)>> = Mutex::new(BTreeSet::new());

fn all_let_go() -> MutexGuard<'static, BTreeSet<(String, String)>> {
    LET_GO.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Remembers a container of ours that could not be removed.
pub(crate) fn let_go(engine: &Engine, id: &str) {
    all_let_go().insert((engine.address().to_string(), id.to_owned()));
}

/// Removes those of an engine, as far as that goes now.
pub(crate) async fn remove_let_go(engine: &Engine) -> Reclaimed {
    let mut reclaimed = Reclaimed::default();
    let address = engine.address().to_string();
    let mut of_engine = all_let_go().clone();
    of_engine.retain(|(of, _)| *of == address);
    for known in of_engine {
        match container::remove(engine, &known.1).await {
            Ok(()) => {
                all_let_go().remove(&known);
                reclaimed.removed.push(known.1);
            }
            Err(error) => reclaimed.failed.push((known.1, error.to_string())),
        }
    }
    reclaimed
}

/// Whether nobody will ever want it again.
fn is_left(found: &Found) -> bool {
    !found.name.is_kept() && found.owner.as_ref().is_some_and(Owner::is_dead)
}

/// A container of ours on the engine.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) id: String,
    pub(crate) name: Name,
    owner: Option<Owner>,
}

/// The containers that have this label.
pub(crate) async fn list(engine: &Engine, label: String) -> Result<Vec<Found>, SandboxError> {
    let filters = HashMap::from([("label".to_owned(), vec![label])]);
    let options = ListContainersOptionsBuilder::default()
        .all(true)
        .filters(&filters)
        .build();
    let began = Instant::now();
    let listed = loop {
        match engine.api().list_containers(Some(options.clone())).await {
            // Of a container that it still clears up Podman says a state that the client doesn't know.
            Err(Error::JsonDataError { .. }) if began.elapsed() < SETTLED => {
                sleep(LOOK_EVERY).await;
            }
            listed => break listed,
        }
    };
    let listed = listed.map_err(|error| failed("failed to list the engine's containers", error))?;
    let found = listed.into_iter().filter_map(|summary| {
        let labels = summary.labels.unwrap_or_default();
        Some(Found {
            id: summary.id?,
            name: Name::parse(summary.names?.first()?)?,
            owner: labels.get(owner::OWNER).and_then(|text| Owner::parse(text)),
        })
    });
    Ok(found.collect())
}
