//! Requests received by the server.

use std::time::Instant;

use bytes::Bytes;
use http::HeaderMap;
use serde_json::Value;

/// A request that reached a script.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Request {
    /// The headers.
    pub headers: HeaderMap,
    /// The body, byte for byte.
    pub raw: Bytes,
    /// Number of assistant messages in it: the index of the turn that answers it.
    pub turn: usize,
    /// Number of earlier requests for this turn of this run. Requests with the same model and the same
    /// messages before the first assistant message belong to one run.
    pub attempt: usize,
    /// The time at which it was read.
    pub at: Instant,
}

impl Request {
    /// Returns the body as JSON.
    pub fn body(&self) -> Value {
        // Only valid JSON reaches a script.
        serde_json::from_slice(&self.raw).unwrap_or_default()
    }
}
