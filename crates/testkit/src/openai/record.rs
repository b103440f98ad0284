//! The requests that the server received and the usage that it reported.

use std::collections::HashMap;
use std::time::Instant;

use bytes::Bytes;
use http::HeaderMap;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::request::Request;
use super::script::Usage;

/// The server's record. Attempts and usage are always counted; requests only with `keep`.
#[derive(Debug)]
pub(super) struct Record {
    keep: bool,
    entries: Mutex<Entries>,
    received: watch::Sender<usize>,
}

#[derive(Debug, Default)]
struct Entries {
    requests: Vec<Request>,
    attempts: HashMap<(u64, usize), usize>,
    usage: Usage,
}

impl Record {
    pub(super) fn new(keep: bool) -> Self {
        let received = watch::Sender::new(0);
        Self {
            keep,
            entries: Mutex::default(),
            received,
        }
    }

    /// Records a request for `turn` of `run`.
    pub(super) fn receive(&self, headers: HeaderMap, raw: Bytes, run: u64, turn: usize) -> Request {
        let request = {
            let mut entries = self.entries.lock();
            let next = entries.attempts.entry((run, turn)).or_default();
            let attempt = *next;
            *next += 1;
            let request = Request {
                headers,
                raw,
                turn,
                attempt,
                at: Instant::now(),
            };
            if self.keep {
                entries.requests.push(request.clone());
            }
            request
        };
        self.received.send_modify(|count| *count += 1);
        request
    }

    pub(super) fn sent(&self, usage: Usage) {
        self.entries.lock().usage += usage;
    }

    pub(super) fn requests(&self) -> Vec<Request> {
        self.entries.lock().requests.clone()
    }

    pub(super) fn usage(&self) -> Usage {
        self.entries.lock().usage
    }

    pub(super) async fn received(&self, count: usize) {
        // The sender is in `self`, so the wait can't fail.
        let _ = self
            .received
            .subscribe()
            .wait_for(|&received| received >= count)
            .await;
    }
}
