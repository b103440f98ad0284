//! What can go wrong with an answer.

use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};

/// One way in which an answer goes wrong.
///
/// Where a count of events is asked for, an answer that isn't streamed is a single event.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Fault {
    /// This reply instead of the turn.
    Reply(Reply),
    /// The connection is closed without a response.
    Close,
    /// The request is read and never answered.
    Hang,
    /// The connection is cut after this many events.
    CutAfterEvents(usize),
    /// The connection is cut after this many bytes of the body.
    CutAfterBytes(usize),
    /// The response ends as if it were complete after this many events: the HTTP message is whole,
    /// the answer isn't.
    EndAfterEvents(usize),
    /// Nothing more comes after this many events, and the connection stays open.
    StallAfterEvents(usize),
    /// After `after` events comes one that holds `error`, then `[DONE]` and a clean end, which is
    /// what vLLM does when generation fails under way. An answer that isn't streamed becomes a body
    /// that holds `error`, with status 200.
    ErrorEvent {
        /// How many events of the answer come before it.
        after: usize,
        /// The value of the `error` field.
        error: Value,
    },
    /// The answer is whole, and comes in pieces of `bytes` bytes with a pause before each but the
    /// first. A piece may end within a character.
    Slow {
        /// The size of a piece; 0 counts as 1.
        bytes: usize,
        /// The pause.
        every: Duration,
    },
}

/// A complete response, sent instead of a turn.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Reply {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Bytes,
}

impl Reply {
    /// `status` with an arbitrary body: a proxy's HTML page, a recorded body of another provider,
    /// JSON without `choices`, something that isn't JSON.
    pub fn new(status: u16, content_type: &str, body: impl Into<Bytes>) -> Self {
        Self {
            status,
            headers: vec![("content-type".to_owned(), content_type.to_owned())],
            body: body.into(),
        }
    }

    /// `status` with a body in the shape of OpenAI's errors.
    #[must_use]
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
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(super) fn json(status: u16, body: &Value) -> Self {
        Self::new(status, "application/json", body.to_string())
    }
}

/// OpenAI's error object.
pub(super) fn error_body(message: &str, kind: &str, code: impl Into<Value>) -> Value {
    json!({"error": {"message": message, "type": kind, "param": null, "code": code.into()}})
}
