//! What the server saw and what it sent.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use http::HeaderMap;
use serde_json::Value;
use tokio::sync::watch;

use super::script::Usage;

/// A request that reached a script.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Request {
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body, byte for byte.
    pub raw: Bytes,
    /// The number of assistant messages in it, which is the index of the turn that answers it.
    pub turn: usize,
    /// How many requests for this turn of this run came before. Requests belong to one run when
    /// their model and all messages before the first one of the assistant are the same.
    pub attempt: usize,
    /// When it had been read.
    pub at: Instant,
}

impl Request {
    /// The body as JSON.
    #[must_use]
    pub fn body(&self) -> Value {
        // It was JSON when it was read, or it would not have reached a script.
        serde_json::from_slice(&self.raw).unwrap_or_default()
    }
}

/// The server's memory. Attempts and usage are counted always; requests are kept when asked for.
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

    /// Takes in a request for `turn` of `run`.
    pub(super) fn receive(&self, headers: HeaderMap, raw: Bytes, run: u64, turn: usize) -> Request {
        let request = {
            let mut entries = self.entries();
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
        self.entries().usage += usage;
    }

    pub(super) fn requests(&self) -> Vec<Request> {
        self.entries().requests.clone()
    }

    pub(super) fn usage(&self) -> Usage {
        self.entries().usage
    }

    pub(super) async fn received(&self, count: usize) {
        // The sender lives in `self`, so the wait can't fail.
        let _ = self
            .received
            .subscribe()
            .wait_for(|&received| received >= count)
            .await;
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
