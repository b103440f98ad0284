//! Watches a directory by polling.
//!
//! A slow client delays only its own next poll; changes in the meantime are combined.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::stream;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

use super::{check_directory, entry};
use crate::envd::RunningSandbox;
use crate::envd::directories::changes::{self, Change, Snapshot};
use crate::envd::directories::listing::{self, StartLink};
use crate::envd::directories::watchers::{PolledWatcher, WatchedDirectory};
use crate::envd::error::{EnvdError, Result, RpcCode};
use crate::envd::path;
use crate::envd::rpc::{self, CallTimes, Empty, StreamItem, StreamItems, envelope};
use crate::random;

/// Polling interval; extended if listing takes long.
const INTERVAL: Duration = Duration::from_millis(200);
const INTERVAL_PER_LISTING_TIME: u32 = 4;
/// Prefix of the backends' temporary files. They are not reported, and a file renamed from one
/// is reported as created.
const TEMPORARY_PREFIX: &[u8] = b".cantle-";
/// Depth for recursive watching.
const MAX_DEPTH: u32 = 1 << 16;
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct WatchRequest {
    path: String,
    recursive: bool,
    #[serde(alias = "includeEntry")]
    include_entry: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct WatcherRequest {
    #[serde(alias = "watcherId")]
    watcher_id: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CreateWatcherResponse {
    watcher_id: String,
}

#[derive(Debug, Serialize)]
pub(super) struct EventsResponse {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    events: Vec<Value>,
}

impl WatchedDirectory {
    async fn new(live: &RunningSandbox, request: &WatchRequest) -> Result<Self> {
        let mut watched = Self {
            path: path::resolve(&request.path, &live.home)?,
            depth: if request.recursive { MAX_DEPTH } else { 1 },
            include_entry: request.include_entry,
            snapshot: Snapshot::new(),
            listing_time: Duration::ZERO,
        };
        let sandbox = live.acquire()?;
        let first = listing::list(&*sandbox, &watched.path, StartLink::Follow, 0).await?;
        check_directory(&watched.path, first.first())?;
        drop(sandbox);
        watched.snapshot = watched.list(live).await?;
        Ok(watched)
    }

    /// Lists everything below the directory except temporary files.
    async fn list(&mut self, live: &RunningSandbox) -> Result<Snapshot> {
        let started = Instant::now();
        let sandbox = live.acquire()?;
        let entries = listing::list(&*sandbox, &self.path, StartLink::Follow, self.depth).await?;
        self.listing_time = started.elapsed();
        let entries = entries
            .into_iter()
            .map(|entry| (entry.relative_path.clone(), entry));
        Ok(entries
            .filter(|(path, _)| !path.is_empty() && !is_temporary(path))
            .collect())
    }

    /// Polls and returns the events since the previous poll.
    async fn poll(&mut self, live: &RunningSandbox) -> Result<Vec<Value>> {
        let now = self.list(live).await?;
        let changes = changes::diff(&self.snapshot, &now);
        let mut events = Vec::with_capacity(changes.len());
        for (entry, change) in changes {
            let name = String::from_utf8_lossy(&entry.relative_path);
            let mut event = json!({ "name": name, "type": change.as_str() });
            let is_there = !matches!(change, Change::Renamed | Change::Removed);
            if let (true, true, Some(event)) = (self.include_entry, is_there, event.as_object_mut())
            {
                let path = self.path.join(&entry.relative_path)?;
                let entry = entry::describe_entry(live, &path, entry);
                event.insert("entry".to_owned(), json!(entry));
            }
            events.push(event);
        }
        self.snapshot = now;
        Ok(events)
    }

    fn poll_interval(&self) -> Duration {
        INTERVAL.max(self.listing_time * INTERVAL_PER_LISTING_TIME)
    }
}

fn is_temporary(below: &[u8]) -> bool {
    let mut names = below.split(|byte| *byte == b'/');
    names.any(|name| name.starts_with(TEMPORARY_PREFIX))
}

/// A reserved slot for a streaming watcher.
struct StreamSlot(Arc<RunningSandbox>);

impl Drop for StreamSlot {
    fn drop(&mut self) {
        let mut table = self.0.watchers.table();
        table.streams = table.streams.saturating_sub(1);
    }
}

/// `CreateWatcher`.
pub(super) async fn create(
    live: &RunningSandbox,
    request: WatchRequest,
) -> Result<CreateWatcherResponse> {
    live.watchers.check_quota(&mut live.watchers.table())?;
    let watched = WatchedDirectory::new(live, &request).await?;
    let randomness_failed =
        |_| EnvdError::new(RpcCode::Internal, "the system has no source of randomness");
    let watcher_id = format!("w{}", random::text(20).map_err(randomness_failed)?);
    let watcher = PolledWatcher {
        watched: tokio::sync::Mutex::new(watched),
        last_query: Mutex::new(Instant::now()),
    };
    let mut table = live.watchers.table();
    live.watchers.check_quota(&mut table)?;
    table.by_id.insert(watcher_id.clone(), Arc::new(watcher));
    Ok(CreateWatcherResponse { watcher_id })
}

/// `GetWatcherEvents`.
pub(super) async fn events(
    live: &RunningSandbox,
    request: WatcherRequest,
) -> Result<EventsResponse> {
    let watcher = live.watchers.find(&request.watcher_id)?;
    *watcher
        .last_query
        .lock()
        .unwrap_or_else(PoisonError::into_inner) = Instant::now();
    let events = watcher.watched.lock().await.poll(live).await?;
    Ok(EventsResponse { events })
}

/// `RemoveWatcher`.
pub(super) async fn remove(live: &RunningSandbox, request: WatcherRequest) -> Result<Empty> {
    live.watchers.find(&request.watcher_id)?;
    live.watchers.table().by_id.remove(&request.watcher_id);
    Ok(Empty {})
}

/// `WatchDir`.
pub(super) async fn stream(
    live: &Arc<RunningSandbox>,
    request: WatchRequest,
    times: CallTimes,
) -> Result<StreamItems> {
    let slot = {
        let mut table = live.watchers.table();
        live.watchers.check_quota(&mut table)?;
        table.streams += 1;
        StreamSlot(Arc::clone(live))
    };
    let watched = WatchedDirectory::new(live, &request).await?;
    let stream = WatchStream {
        slot,
        watched,
        deadline: times.limit.map(|limit| Instant::now() + limit),
        keepalive: times.keepalive,
        last_message: Instant::now(),
        events: VecDeque::new(),
        stage: WatchStage::Starting,
    };
    Ok(Box::pin(stream::unfold(stream, WatchStream::next)))
}

/// The response stream of `WatchDir`.
struct WatchStream {
    slot: StreamSlot,
    watched: WatchedDirectory,
    deadline: Option<Instant>,
    keepalive: Duration,
    /// Time of the last message.
    last_message: Instant,
    events: VecDeque<Value>,
    stage: WatchStage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum WatchStage {
    Starting,
    Watching,
    Ended,
}

impl WatchStream {
    async fn next(mut self) -> Option<(StreamItem, Self)> {
        let message = match self.stage {
            WatchStage::Ended => return None,
            WatchStage::Starting => {
                self.stage = WatchStage::Watching;
                json!({ "start": {} })
            }
            WatchStage::Watching => match self.watch().await {
                Ok(message) => message,
                Err(error) => {
                    self.stage = WatchStage::Ended;
                    return Some((StreamItem::End(Err(error)), self));
                }
            },
        };
        self.last_message = Instant::now();
        Some((StreamItem::Message(envelope::encode(&message)), self))
    }

    async fn watch(&mut self) -> Result<Value> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(json!({ "filesystem": event }));
            }
            let now = Instant::now();
            if self.deadline.is_some_and(|deadline| now >= deadline) {
                return Err(rpc::deadline_exceeded());
            }
            if self.last_message.elapsed() >= self.keepalive {
                return Ok(json!({ "keepalive": {} }));
            }
            let next = now + self.watched.poll_interval();
            sleep_until(self.deadline.map_or(next, |deadline| deadline.min(next))).await;
            let live = &self.slot.0;
            let polled = self.watched.poll(live).await;
            self.events.extend(polled.inspect_err(|error| {
                if error.is_gone {
                    live.gone.cancel();
                }
            })?);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::is_temporary;

    #[test]
    fn temporary_files_are_recognized_by_name() {
        for name in [".cantle-0123", "below/.cantle-0123", ".cantle-removed-1/x"] {
            assert!(is_temporary(name.as_bytes()), "{name}");
        }
        for name in ["new", "below/new", ".cantle", "x.cantle-1", "cantle-1"] {
            assert!(!is_temporary(name.as_bytes()), "{name}");
        }
    }
}
