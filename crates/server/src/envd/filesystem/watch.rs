//! Watching a directory, by listing it: after a notice of the backend that something has changed, or in intervals
//! if it gives none.
//!
//! `WatchDir` sends events as they are found. For `CreateWatcher`, a task collects them until the client
//! fetches them.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use axum::Json;
use futures_util::stream;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::check_directory;
use crate::envd::RunningSandbox;
use crate::envd::directories::listing::{self, StartLink};
use crate::envd::directories::watchers::{BufferedWatcher, WatchedDirectory};
use crate::envd::error::{EnvdError, Result};
use crate::envd::path;
use crate::envd::rpc::{
    self, CallTimes, Empty, LargeMessage, StreamItem, StreamItems, envelope, json as protobuf,
};
use crate::random;

use super::watched::{INTERVAL, QUIET_INTERVAL};

/// Depth for recursive watching, and maximum depth of a listing; `find` refuses numbers that are no `int`.
pub(super) const MAX_DEPTH: u32 = 1 << 16;
/// A watcher whose events are not fetched for this long makes no listing until the next fetch.
const ATTENDED: Duration = Duration::from_secs(60);

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct WatchRequest {
    #[serde(deserialize_with = "protobuf::or_default")]
    path: String,
    #[serde(deserialize_with = "protobuf::or_default")]
    recursive: bool,
    #[serde(alias = "includeEntry", deserialize_with = "protobuf::or_default")]
    include_entry: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct WatcherRequest {
    #[serde(alias = "watcherId", deserialize_with = "protobuf::or_default")]
    watcher_id: String,
}

#[derive(Debug, Serialize)]
pub(super) struct EventsResponse {
    #[serde(skip_serializing_if = "VecDeque::is_empty")]
    events: VecDeque<Box<RawValue>>,
}

async fn watch(live: &Arc<RunningSandbox>, request: &WatchRequest) -> Result<WatchedDirectory> {
    let path = path::resolve(&request.path, &live.home)?;
    let depth = if request.recursive { MAX_DEPTH } else { 1 };
    let sandbox = live.acquire()?;
    let first = listing::list(&sandbox, &path, StartLink::Follow, 0).await?;
    check_directory(&path, first.entries.first())?;
    drop(sandbox);
    WatchedDirectory::new(live, path, depth, request.include_entry).await
}

/// `CreateWatcher`.
pub(super) async fn create(
    live: &Arc<RunningSandbox>,
    request: WatchRequest,
) -> Result<Json<Value>> {
    let slot = live.watchers.reserve()?;
    let watched = watch(live, &request).await?;
    let watcher_id = format!("w{}", random::text(20, EnvdError::internal)?);
    let watcher = Arc::new(BufferedWatcher::new(watched));
    let collecting = collect(Arc::downgrade(live), Arc::downgrade(&watcher));
    live.watchers.add(watcher_id.clone(), watcher, slot);
    live.spawn(collecting);
    Ok(Json(json!({ "watcherId": watcher_id })))
}

/// Collects the events of a watcher until it is removed.
async fn collect(live: Weak<RunningSandbox>, watcher: Weak<BufferedWatcher>) {
    loop {
        let next = {
            let (Some(live), Some(watcher)) = (live.upgrade(), watcher.upgrade()) else {
                return;
            };
            let is_attended = watcher.unattended() < ATTENDED;
            let mut watched = watcher.watched.lock().await;
            if is_attended {
                // The next fetch reports a failure, if it persists.
                let _ = watched.poll(&live).await;
            }
            is_attended.then(|| watched.next_listing(&live))
        };
        match next {
            Some(next) => {
                // Even if there is no place for further events.
                sleep(INTERVAL).await;
                next.await;
            }
            None => sleep(QUIET_INTERVAL).await,
        }
    }
}

/// `GetWatcherEvents`.
pub(super) async fn events(
    live: &Arc<RunningSandbox>,
    request: WatcherRequest,
) -> Result<LargeMessage> {
    let watcher = live.watchers.find(&request.watcher_id)?;
    let (events, charge) = {
        let mut watched = watcher.watched.lock().await;
        // Not by a notice, which may come after this call.
        watched.refresh(live).await?;
        watched.take_unsent()
    };
    let size_bytes = events.iter().map(|event| event.get().len()).sum();
    LargeMessage::new(EventsResponse { events }, size_bytes, charge).await
}

/// `RemoveWatcher`.
pub(super) async fn remove(live: &RunningSandbox, request: WatcherRequest) -> Result<Empty> {
    live.watchers.remove(&request.watcher_id)?;
    Ok(Empty)
}

/// `WatchDir`.
pub(super) async fn stream(
    live: &Arc<RunningSandbox>,
    request: WatchRequest,
    times: CallTimes,
) -> Result<StreamItems> {
    let slot = live.watchers.reserve()?;
    let watched = watch(live, &request).await?;
    let watching = (slot, Arc::clone(live), watched);
    let events = stream::unfold(Some(watching), |watching| async move {
        let (slot, live, mut watched) = watching?;
        loop {
            if let Some(event) = watched.next_unsent() {
                let message = format!(r#"{{"filesystem":{event}}}"#);
                let message = envelope::wrap(0, message.as_bytes());
                return Some((StreamItem::Message(message), Some((slot, live, watched))));
            }
            watched.next_listing(&live).await;
            if let Err(error) = watched.poll(&live).await {
                if error.is_gone {
                    live.gone.cancel();
                }
                return Some((StreamItem::End(Err(error)), None));
            }
        }
    });
    let start = envelope::encode(&json!({ "start": {} }));
    let keepalive = envelope::encode(&json!({ "keepalive": {} }));
    Ok(rpc::timed(start, keepalive, times, events))
}
