//! Watchers: the watched directories of one sandbox, up to a maximum number.

use parking_lot::{Mutex, MutexGuard};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use cantle_core::sandbox::{ChangeNotice, SandboxPath};
use serde_json::value::RawValue;
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
    table: Mutex<WatcherTable>,
    /// One listing at a time.
    pub(crate) listing: tokio::sync::Mutex<()>,
}

#[derive(Default)]
pub(crate) struct WatcherTable {
    pub(crate) by_id: HashMap<String, Arc<BufferedWatcher>>,
    pub(crate) streams: usize,
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

    /// Records that the client fetches events.
    pub(crate) fn touch(&self) {
        *self.last_query.lock() = Instant::now();
    }

    /// Returns the time since the client fetched events.
    pub(crate) fn unattended(&self) -> Duration {
        self.last_query.lock().elapsed()
    }
}

impl WatcherTable {
    pub(crate) fn len(&self) -> usize {
        self.by_id.len() + self.streams
    }
}

impl Watchers {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            max,
            table: Mutex::default(),
            listing: tokio::sync::Mutex::default(),
        }
    }

    pub(crate) fn table(&self) -> MutexGuard<'_, WatcherTable> {
        self.table.lock()
    }

    pub(crate) fn check_quota(&self, table: &mut WatcherTable) -> Result<()> {
        table
            .by_id
            .retain(|_, watcher| watcher.unattended() < WATCHER_EXPIRY);
        if table.len() < self.max {
            return Ok(());
        }
        let message = format!(
            "the sandbox has reached its maximum number of watched directories ({})",
            self.max
        );
        Err(EnvdError::exhausted(message))
    }

    pub(crate) fn find(&self, id: &str) -> Result<Arc<BufferedWatcher>> {
        let found = self.table().by_id.get(id).map(Arc::clone);
        found.ok_or_else(|| EnvdError::not_found(format!("watcher with id {id} not found")))
    }
}
