//! Watchers: the watched directories of one sandbox, up to a maximum number.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use cantle_core::sandbox::{ChangeNotice, SandboxPath};
use parking_lot::Mutex;
use serde_json::value::RawValue;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::listing::Listing;
use crate::accounts::MemoryCharge;
use crate::envd::error::{EnvdError, Result};

/// A watcher that is not queried for this long is removed.
const WATCHER_EXPIRY: Duration = Duration::from_secs(60 * 60);

/// A watched directory: its latest listing, and the changes that were not sent yet.
pub(crate) struct WatchedDirectory {
    pub(crate) path: SandboxPath,
    pub(crate) depth: u32,
    pub(crate) include_entry: bool,
    pub(crate) latest: Arc<Listing>,
    /// Given by the backend if something changes after the latest listing.
    pub(crate) notice: Option<ChangeNotice>,
    /// Whether the backend can give notices of changes in this directory.
    pub(crate) has_notices: bool,
    pub(crate) listed_at: Instant,
    pub(crate) listing_time: Duration,
    pub(crate) last_change: Instant,
    /// Serialized events.
    pub(crate) unsent: VecDeque<Box<RawValue>>,
    pub(crate) unsent_charge: MemoryCharge,
}

/// The watchers of one sandbox.
pub(crate) struct Watchers {
    max: usize,
    /// Of watchers and streams.
    slots: Arc<Semaphore>,
    by_id: Mutex<HashMap<String, (Arc<BufferedWatcher>, OwnedSemaphorePermit)>>,
    /// One listing at a time.
    pub(crate) listing: tokio::sync::Mutex<()>,
}

/// A watcher whose events the client fetches.
pub(crate) struct BufferedWatcher {
    pub(crate) watched: tokio::sync::Mutex<WatchedDirectory>,
    last_query: Mutex<Instant>,
}

impl BufferedWatcher {
    pub(crate) fn new(watched: WatchedDirectory) -> Self {
        Self {
            watched: tokio::sync::Mutex::new(watched),
            last_query: Mutex::new(Instant::now()),
        }
    }

    /// Returns the time since the client fetched events.
    pub(crate) fn unattended(&self) -> Duration {
        self.last_query.lock().elapsed()
    }
}

impl Watchers {
    pub(crate) fn new(max: usize) -> Self {
        let max = max.min(Semaphore::MAX_PERMITS);
        Self {
            max,
            slots: Arc::new(Semaphore::new(max)),
            by_id: Mutex::default(),
            listing: tokio::sync::Mutex::default(),
        }
    }

    /// Takes the slot of a watcher or stream, after the removal of expired watchers.
    pub(crate) fn reserve(&self) -> Result<OwnedSemaphorePermit> {
        self.by_id
            .lock()
            .retain(|_, (watcher, _)| watcher.unattended() < WATCHER_EXPIRY);
        let slot = Arc::clone(&self.slots).try_acquire_owned();
        slot.map_err(|_| {
            EnvdError::exhausted(format!(
                "the sandbox has reached its maximum number of watched directories ({})",
                self.max
            ))
        })
    }

    /// Returns the number of watchers and streams.
    pub(crate) fn count(&self) -> usize {
        self.max - self.slots.available_permits()
    }

    pub(crate) fn add(
        &self,
        id: String,
        watcher: Arc<BufferedWatcher>,
        slot: OwnedSemaphorePermit,
    ) {
        self.by_id.lock().insert(id, (watcher, slot));
    }

    /// Finds a watcher whose events the client fetches.
    pub(crate) fn find(&self, id: &str) -> Result<Arc<BufferedWatcher>> {
        let by_id = self.by_id.lock();
        let (watcher, _) = by_id.get(id).ok_or_else(|| not_found(id))?;
        *watcher.last_query.lock() = Instant::now();
        Ok(Arc::clone(watcher))
    }

    pub(crate) fn remove(&self, id: &str) -> Result<()> {
        let removed = self.by_id.lock().remove(id);
        removed.map(drop).ok_or_else(|| not_found(id))
    }
}

fn not_found(id: &str) -> EnvdError {
    EnvdError::not_found(format!("watcher with id {id} not found"))
}
