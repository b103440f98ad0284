//! Faults of answers.

use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};

/// Fault of an answer.
///
/// An answer that isn't streamed counts as a single event.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Fault {
    /// Sends this reply instead of the turn.
    Reply(Reply),
    /// Closes the connection without a response.
    Close,
    /// Reads the request and never answers.
    Hang,
    /// Cuts the connection after this many events.
    CutAfterEvents(usize),
    /// Cuts the connection after this many bytes of the body.
    CutAfterBytes(usize),
    /// Ends the response after this many events: the HTTP message is complete, the answer isn't.
    EndAfterEvents(usize),
    /// Stalls after this many events, keeping the connection open.
    StallAfterEvents(usize),
    /// Sends `error` after `after` events, then `[DONE]` and a clean end, as vLLM does when
    /// generation fails. An answer that isn't streamed becomes a body with `error` and status 200.
    ErrorEvent {
        /// Number of events before the error.
        after: usize,
        /// The value of the `error` field.
        error: Value,
    },
    /// Sends the whole answer in pieces of `bytes` bytes with pauses between them. A piece may end
    /// within a character.
    Slow {
        /// The size of a piece; 0 counts as 1.
        bytes: usize,
        /// The pause.
        every: Duration,
    },
}

/// Complete response, sent instead of a turn.
#[derive(Debug, Clone)]
#[non_exhaustive]
#[must_use]
pub struct Reply {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Bytes,
}

impl Reply {
    /// Creates a reply with an arbitrary body, for example a proxy's HTML page or invalid JSON.
    pub fn new(status: u16, content_type: &str, body: impl Into<Bytes>) -> Self {
        Self {
            status,
            headers: vec![("content-type".to_owned(), content_type.to_owned())],
            body: body.into(),
        }
    }

    /// Creates a reply with a body in OpenAI's error format.
    pub fn error(status: u16) -> Self {
        let kind = match status {
            401 | 403 => "authentication_error",
            429 => "rate_limit_error",
            500.. => "server_error",
            _ => "invalid_request_error",
        };
        let message = format!("a scripted error with status {status}");
        Self::json(status, &error_body(&message, kind, Value::Null))
    }

    /// Adds a header, for example `retry-after`.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(super) fn json(status: u16, body: &Value) -> Self {
        Self::new(status, "application/json", body.to_string())
    }
}

/// Returns an error object in OpenAI's format.
pub(super) fn error_body(message: &str, kind: &str, code: impl Into<Value>) -> Value {
    json!({"error": {"message": message, "type": kind, "param": null, "code": code.into()}})
}
