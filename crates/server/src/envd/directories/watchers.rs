//! Watchers: the watched directories of one sandbox, up to a maximum number.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cantle_core::sandbox::SandboxPath;
use tokio::time::Instant;

use super::changes::Snapshot;
use crate::envd::error::{EnvdError, Result, RpcCode};

/// A watcher that is not queried for this long is removed.
const WATCHER_EXPIRY: Duration = Duration::from_secs(60 * 60);

/// A watched directory.
pub(crate) struct WatchedDirectory {
    pub(crate) path: SandboxPath,
    pub(crate) depth: u32,
    pub(crate) include_entry: bool,
    pub(crate) snapshot: Snapshot,
    pub(crate) listing_time: Duration,
}

/// The watchers of one sandbox.
pub(crate) struct Watchers {
    max: usize,
    table: Mutex<WatcherTable>,
}

#[derive(Default)]
pub(crate) struct WatcherTable {
    pub(crate) by_id: HashMap<String, Arc<PolledWatcher>>,
    pub(crate) streams: usize,
}

/// A watcher whose events the client fetches; each fetch polls.
pub(crate) struct PolledWatcher {
    pub(crate) watched: tokio::sync::Mutex<WatchedDirectory>,
    pub(crate) last_query: Mutex<Instant>,
}

impl Watchers {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            max,
            table: Mutex::default(),
        }
    }

    pub(crate) fn table(&self) -> MutexGuard<'_, WatcherTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn check_quota(&self, table: &mut WatcherTable) -> Result<()> {
        table.by_id.retain(|_, watcher| {
            let last_query = watcher
                .last_query
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            last_query.elapsed() < WATCHER_EXPIRY
        });
        if table.by_id.len() + table.streams < self.max {
            return Ok(());
        }
        let message = format!(
            "the sandbox has reached its maximum number of watched directories ({})",
            self.max
        );
        Err(EnvdError::new(RpcCode::ResourceExhausted, message))
    }

    pub(crate) fn find(&self, id: &str) -> Result<Arc<PolledWatcher>> {
        let found = self.table().by_id.get(id).map(Arc::clone);
        found.ok_or_else(|| EnvdError::not_found(format!("watcher with id {id} not found")))
    }
}
