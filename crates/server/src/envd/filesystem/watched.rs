//! Finding the changes of a watched directory.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use cantle_core::sandbox::{ChangeNotice, SandboxPath};
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::time::{Instant, sleep_until};

use super::entry::{self, EntryInfo};
use crate::accounts::MemoryCharge;
use crate::envd::RunningSandbox;
use crate::envd::directories::changes::{self, Change};
use crate::envd::directories::listing::{self, ListedEntry, Listing, StartLink};
use crate::envd::directories::watchers::WatchedDirectory;
use crate::envd::error::{EnvdError, Result};
use crate::tasks;

/// Minimum interval between two listings. It is longer if listings take long or the sandbox has many watchers: all
/// of them together list for a tenth of the time.
pub(super) const INTERVAL: Duration = Duration::from_millis(200);
/// Interval when nothing has changed for a while and the backend gives no notice of changes.
pub(super) const QUIET_INTERVAL: Duration = Duration::from_secs(1);
const QUIET_AFTER: Duration = Duration::from_secs(10);
const INTERVAL_PER_LISTING_TIME: u32 = 10;
/// Unsent changes with which no listing is made: further changes are found later, and combined.
const MAX_UNSENT: usize = 10_000;
/// Memory of a serialized event besides its text.
const EVENT_BYTES: usize = 32;
/// Prefix of the backends' temporary files. They are not reported, and a file renamed from one
/// is reported as created.
const TEMPORARY_PREFIX: &[u8] = b".cantle-";

/// `filesystem.FilesystemEvent`.
#[derive(Debug, Serialize)]
struct WatchEvent {
    name: String,
    #[serde(rename = "type")]
    change: Change,
    #[serde(skip_serializing_if = "Option::is_none")]
    entry: Option<EntryInfo>,
}

/// Returns the memory of a serialized event.
fn event_bytes(event: &RawValue) -> usize {
    EVENT_BYTES + event.get().len()
}

impl WatchedDirectory {
    pub(super) async fn new(
        live: &Arc<RunningSandbox>,
        path: SandboxPath,
        depth: u32,
        include_entry: bool,
    ) -> Result<Self> {
        let mut watched = Self {
            path,
            depth,
            include_entry,
            latest: Arc::new(Listing {
                entries: Vec::new(),
                charge: live.account.charge(),
            }),
            notice: None,
            has_notices: true,
            listed_at: Instant::now(),
            listing_time: Duration::ZERO,
            last_change: Instant::now(),
            unsent: VecDeque::new(),
            unsent_charge: live.account.charge(),
        };
        watched.latest = Arc::new(watched.list(live).await?);
        Ok(watched)
    }

    /// Lists everything below the directory except temporary files, sorted.
    async fn list(&mut self, live: &RunningSandbox) -> Result<Listing> {
        let _turn = live.watchers.listing.lock().await;
        let started = Instant::now();
        let sandbox = live.acquire()?;
        let listed = listing::list(&sandbox, &self.path, StartLink::Follow, self.depth).await;
        self.listed_at = Instant::now();
        self.listing_time = started.elapsed();
        let mut listed = listed?;
        let sorted = tasks::compute(listed.size_bytes(), move || {
            listed.entries.retain(|entry| {
                !entry.relative_path.is_empty() && !is_temporary(&entry.relative_path)
            });
            listed.sort();
            listed
        });
        Ok(sorted.await?)
    }

    /// Returns a notice of changes from now on, if the backend gives one.
    async fn watch(&mut self, live: &RunningSandbox) -> Option<ChangeNotice> {
        match self.notice.take() {
            Some(notice) if !notice.changed().is_cancelled() => return Some(notice),
            _ if !self.has_notices => return None,
            _ => {}
        }
        let (latest, start) = (Arc::clone(&self.latest), self.path.clone());
        let is_recursive = self.depth > 1;
        let directories = tasks::compute(self.latest.size_bytes(), move || {
            let below = latest.directories().filter(|_| is_recursive);
            let below = below.map(|path| start.join(path));
            std::iter::once(Ok(start.clone()))
                .chain(below)
                .collect::<std::result::Result<Vec<_>, _>>()
        });
        let directories = directories.await.ok()?.ok()?;
        let watched = live.acquire().ok()?.watch(&directories).await;
        self.has_notices = watched.is_ok();
        watched.ok()
    }

    /// Finds the changes since the latest listing, unless a notice says that there are none.
    ///
    /// # Errors
    /// As for [`refresh`](Self::refresh).
    pub(super) async fn poll(&mut self, live: &Arc<RunningSandbox>) -> Result<()> {
        match &self.notice {
            Some(notice) if !notice.changed().is_cancelled() => Ok(()),
            _ => self.refresh(live).await,
        }
    }

    /// Makes a listing and adds the changes since the latest one to the unsent ones.
    ///
    /// # Errors
    /// If the listing fails, or the memory is used up. A later call finds the changes.
    pub(super) async fn refresh(&mut self, live: &Arc<RunningSandbox>) -> Result<()> {
        if self.unsent.len() >= MAX_UNSENT {
            return Ok(());
        }
        // Before the listing, so that no change between the two is missed.
        let notice = self.watch(live).await;
        let latest_started = self.listed_at - self.listing_time;
        let listing = self.list(live).await?;
        let mut charge = live.account.charge();
        let size_bytes = listing.size_bytes() + self.latest.size_bytes();
        let (before, live, path) = (
            Arc::clone(&self.latest),
            Arc::clone(live),
            self.path.clone(),
        );
        let include_entry = self.include_entry;
        let uploads = live.uploads.since(latest_started);
        let compared = tasks::compute(size_bytes, move || {
            let is_upload = |entry: &ListedEntry| {
                let path = path.join(&entry.relative_path);
                path.is_ok_and(|path| uploads.contains(&path))
            };
            let changes = changes::diff(&before.entries, &listing.entries, is_upload);
            let mut events = Vec::with_capacity(changes.len());
            for (entry, change) in changes {
                let is_there = !matches!(change, Change::Renamed | Change::Removed);
                let described = if include_entry && is_there {
                    let path = path.join(&entry.relative_path)?;
                    Some(entry::describe_entry(&live, &path, entry))
                } else {
                    None
                };
                let event = WatchEvent {
                    name: String::from_utf8_lossy(&entry.relative_path).into_owned(),
                    change,
                    entry: described,
                };
                let failed = |error| EnvdError::internal(format!("{error}"));
                let event = serde_json::value::to_raw_value(&event).map_err(failed)?;
                charge.grow(event_bytes(&event))?;
                events.push(event);
            }
            let is_watched = before.directories().eq(listing.directories());
            Ok::<_, EnvdError>((listing, events, charge, is_watched))
        });
        let (listing, events, charge, is_watched) = compared.await??;
        self.latest = Arc::new(listing);
        // Otherwise the next listing is made without a notice, after the new directories are watched.
        self.notice = notice.filter(|_| is_watched);
        if !events.is_empty() {
            self.last_change = Instant::now();
        }
        self.unsent.extend(events);
        self.unsent_charge.merge(charge);
        Ok(())
    }

    /// Takes the oldest unsent change.
    pub(super) fn next_unsent(&mut self) -> Option<Box<RawValue>> {
        let event = self.unsent.pop_front()?;
        self.unsent_charge.shrink(event_bytes(&event));
        Some(event)
    }

    /// Takes all unsent changes and their charge.
    pub(super) fn take_unsent(&mut self) -> (VecDeque<Box<RawValue>>, MemoryCharge) {
        let charge = self.unsent_charge.split();
        (std::mem::take(&mut self.unsent), charge)
    }

    /// Waits until the next listing is due: for a time, and if there are notices, for one of a change.
    pub(super) fn next_listing(
        &self,
        live: &RunningSandbox,
    ) -> impl Future<Output = ()> + Send + use<> {
        let watchers = u32::try_from(live.watchers.count()).unwrap_or(u32::MAX);
        let listing_time = self.listing_time.saturating_mul(INTERVAL_PER_LISTING_TIME);
        let is_quiet = self.notice.is_none() && self.last_change.elapsed() >= QUIET_AFTER;
        let interval = if is_quiet { QUIET_INTERVAL } else { INTERVAL };
        let interval = interval.max(listing_time.saturating_mul(watchers.max(1)));
        let earliest = self.listed_at + interval;
        let changed = self.notice.as_ref().map(|it| it.changed().clone());
        async move {
            sleep_until(earliest).await;
            if let Some(changed) = changed {
                changed.cancelled().await;
            }
        }
    }
}

fn is_temporary(below: &[u8]) -> bool {
    let mut names = below.split(|byte| *byte == b'/');
    names.any(|name| name.starts_with(TEMPORARY_PREFIX))
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
