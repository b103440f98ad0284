//! Watching a directory: by looking at it again and again.
//!
//! Who doesn't fetch what was seen holds up their own next look and nobody else: what happens meanwhile
//! is told in one, later.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Body;
use cantle_core::sandbox::SandboxPath;
use futures_util::stream;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::census::{self, Start};
use super::changes::{self, Look, What};
use super::{Empty, check_directory, entry};
use crate::envd::fault::{Code, Fault};
use crate::envd::path;
use crate::envd::rpc::{self, Answer, Answers, envelope};
use crate::fleet::Live;
use crate::random;

/// Between two looks; longer where looking takes long.
const INTERVAL: Duration = Duration::from_millis(200);
const INTERVAL_PER_LOOK: u32 = 4;
/// How the names begin under which backends write files until they are whole. Such a name, seen by
/// chance, is no news; and what is called otherwise afterwards is new, not renamed.
const DRAFT: &[u8] = b".cantle-";
/// A depth that nothing has.
const BOTTOMLESS: u32 = 1 << 16;
/// A watcher that nobody asks for so long is forgotten.
const FORGOTTEN: Duration = Duration::from_secs(60 * 60);

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WatchRequest {
    path: String,
    recursive: bool,
    #[serde(alias = "includeEntry")]
    include_entry: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WatcherRequest {
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

/// A directory that is watched.
struct Watched {
    path: SandboxPath,
    depth: u32,
    include_entry: bool,
    look: Look,
    took: Duration,
}

impl Watched {
    async fn new(live: &Live, request: &WatchRequest) -> Result<Self, Fault> {
        let mut watched = Self {
            path: path::resolve(&request.path, &live.home)?,
            depth: if request.recursive { BOTTOMLESS } else { 1 },
            include_entry: request.include_entry,
            look: Look::new(),
            took: Duration::ZERO,
        };
        let sandbox = live.visit()?;
        let first = census::take(&*sandbox, &watched.path, Start::Followed, 0).await?;
        check_directory(&watched.path, first.first())?;
        drop(sandbox);
        watched.look = watched.take(live).await?;
        Ok(watched)
    }

    /// All but the directory itself, and what is being written.
    async fn take(&mut self, live: &Live) -> Result<Look, Fault> {
        let started = Instant::now();
        let sandbox = live.visit()?;
        let seen = census::take(&*sandbox, &self.path, Start::Followed, self.depth).await?;
        self.took = started.elapsed();
        let below = seen
            .into_iter()
            .filter(|seen| !seen.below.is_empty() && !is_draft(&seen.below));
        Ok(below.map(|seen| (seen.below.clone(), seen)).collect())
    }

    /// Looks again, and says what happened since.
    async fn look(&mut self, live: &Live) -> Result<Vec<Value>, Fault> {
        let now = self.take(live).await?;
        let changes = changes::between(&self.look, &now);
        let mut events = Vec::with_capacity(changes.len());
        for (seen, what) in changes {
            let name = String::from_utf8_lossy(&seen.below);
            let mut event = json!({ "name": name, "type": what.as_str() });
            let is_there = !matches!(what, What::Renamed | What::Removed);
            if let (true, true, Some(event)) = (self.include_entry, is_there, event.as_object_mut())
            {
                let path = self.path.join(&seen.below)?;
                let entry = entry::entry(live, &path, seen);
                event.insert("entry".to_owned(), json!(entry));
            }
            events.push(event);
        }
        self.look = now;
        Ok(events)
    }

    fn pause(&self) -> Duration {
        INTERVAL.max(self.took * INTERVAL_PER_LOOK)
    }
}

fn is_draft(below: &[u8]) -> bool {
    let mut names = below.split(|byte| *byte == b'/');
    names.any(|name| name.starts_with(DRAFT))
}

/// The watchers of one sandbox.
pub(crate) struct Watchers {
    most: usize,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    by_id: HashMap<String, Arc<Watcher>>,
    streams: usize,
}

/// A watcher whose events are fetched. It looks when it is asked.
struct Watcher {
    watched: tokio::sync::Mutex<Watched>,
    asked: Mutex<Instant>,
}

/// A place for a watcher that is a stream.
struct Slot(Arc<Live>);

impl Drop for Slot {
    fn drop(&mut self) {
        let mut table = self.0.watchers.table();
        table.streams = table.streams.saturating_sub(1);
    }
}

impl Watchers {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            table: Mutex::default(),
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self, table: &mut Table) -> Result<(), Fault> {
        table.by_id.retain(|_, watcher| {
            let asked = watcher.asked.lock().unwrap_or_else(PoisonError::into_inner);
            asked.elapsed() < FORGOTTEN
        });
        if table.by_id.len() + table.streams < self.most {
            return Ok(());
        }
        let message = format!("as many directories are watched as may be ({})", self.most);
        Err(Fault::new(Code::ResourceExhausted, message))
    }

    fn find(&self, id: &str) -> Result<Arc<Watcher>, Fault> {
        let found = self.table().by_id.get(id).map(Arc::clone);
        found.ok_or_else(|| Fault::not_found(format!("watcher with id {id} not found")))
    }
}

/// `CreateWatcher`.
pub(super) async fn create(
    live: &Live,
    body: Body,
    idle: Duration,
) -> Result<CreateWatcherResponse, Fault> {
    let request: WatchRequest = rpc::message(body, idle).await?;
    live.watchers.check(&mut live.watchers.table())?;
    let watched = Watched::new(live, &request).await?;
    let no_randomness = |_| Fault::new(Code::Internal, "no randomness");
    let watcher_id = format!("w{}", random::text(20).map_err(no_randomness)?);
    let watcher = Watcher {
        watched: tokio::sync::Mutex::new(watched),
        asked: Mutex::new(Instant::now()),
    };
    let mut table = live.watchers.table();
    live.watchers.check(&mut table)?;
    table.by_id.insert(watcher_id.clone(), Arc::new(watcher));
    Ok(CreateWatcherResponse { watcher_id })
}

/// `GetWatcherEvents`.
pub(super) async fn events(
    live: &Live,
    body: Body,
    idle: Duration,
) -> Result<EventsResponse, Fault> {
    let request: WatcherRequest = rpc::message(body, idle).await?;
    let watcher = live.watchers.find(&request.watcher_id)?;
    *watcher.asked.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    let events = watcher.watched.lock().await.look(live).await?;
    Ok(EventsResponse { events })
}

/// `RemoveWatcher`.
pub(super) async fn remove(live: &Live, body: Body, idle: Duration) -> Result<Empty, Fault> {
    let request: WatcherRequest = rpc::message(body, idle).await?;
    live.watchers.find(&request.watcher_id)?;
    live.watchers.table().by_id.remove(&request.watcher_id);
    Ok(Empty {})
}

/// `WatchDir`.
pub(super) async fn stream(
    live: &Arc<Live>,
    body: Body,
    limit: Option<Duration>,
    keepalive: Duration,
) -> Result<Answers, Fault> {
    let deadline = limit.map(|limit| Instant::now() + limit);
    let request: WatchRequest = rpc::only_message(body, live.commands.patience).await?;
    let slot = {
        let mut table = live.watchers.table();
        live.watchers.check(&mut table)?;
        table.streams += 1;
        Slot(Arc::clone(live))
    };
    let watched = Watched::new(live, &request).await?;
    let watching = Watching {
        slot,
        watched,
        deadline,
        keepalive,
        said: Instant::now(),
        events: VecDeque::new(),
        stage: Stage::Starting,
    };
    Ok(Box::pin(stream::unfold(watching, Watching::next)))
}

/// Somebody who listens to what happens in a directory.
struct Watching {
    slot: Slot,
    watched: Watched,
    deadline: Option<Instant>,
    keepalive: Duration,
    /// When something was said last.
    said: Instant,
    events: VecDeque<Value>,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Starting,
    Watching,
    Over,
}

impl Watching {
    async fn next(mut self) -> Option<(Answer, Self)> {
        let message = match self.stage {
            Stage::Over => return None,
            Stage::Starting => {
                self.stage = Stage::Watching;
                json!({ "start": {} })
            }
            Stage::Watching => match self.watch().await {
                Ok(message) => message,
                Err(fault) => {
                    self.stage = Stage::Over;
                    return Some((Answer::End(Err(fault)), self));
                }
            },
        };
        self.said = Instant::now();
        Some((Answer::Message(envelope::of(&message)), self))
    }

    async fn watch(&mut self) -> Result<Value, Fault> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(json!({ "filesystem": event }));
            }
            if self
                .deadline
                .is_some_and(|deadline| Instant::now() >= deadline)
            {
                return Err(rpc::too_late());
            }
            if self.said.elapsed() >= self.keepalive {
                return Ok(json!({ "keepalive": {} }));
            }
            let left = self.deadline.map(|deadline| deadline - Instant::now());
            let pause = self.watched.pause();
            sleep(left.map_or(pause, |left| left.min(pause))).await;
            let live = &self.slot.0;
            match self.watched.look(live).await {
                Ok(events) => self.events.extend(events),
                Err(fault) if fault.is_gone => {
                    live.gone.cancel();
                    return Err(fault);
                }
                Err(fault) => return Err(fault),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::is_draft;

    #[test]
    fn what_is_being_written_is_told_by_its_name() {
        for name in [".cantle-0123", "below/.cantle-0123", ".cantle-removed-1/x"] {
            assert!(is_draft(name.as_bytes()), "{name}");
        }
        for name in ["new", "below/new", ".cantle", "x.cantle-1", "cantle-1"] {
            assert!(!is_draft(name.as_bytes()), "{name}");
        }
    }
}
