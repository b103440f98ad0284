//! Errors of requests to the web.

use std::error::Error as StdError;
use std::time::Duration;

/// A request to the web without a usable answer. The model reads message and advice.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct WebError {
    kind: WebErrorKind,
    message: String,
    advice: String,
    retry_after: Option<Duration>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// The kind of a [`WebError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WebErrorKind {
    /// The text is no URL that can be fetched.
    InvalidUrl,
    /// The host is not allowed, or its address is not public.
    Refused,
    /// The host has no address, or no connection could be made or kept.
    Unreachable,
    /// The TLS handshake failed.
    Tls,
    /// The request took longer than its time limit.
    Timeout,
    /// Too many redirects, or one without a target.
    Redirect,
    /// The response is larger than the limit.
    TooLarge,
    /// The response can't be understood.
    Protocol,
    /// The server answered with an error status.
    Status,
    /// The server refuses further requests for now.
    RateLimited,
    /// The server asks for proof that the visitor is a person (a captcha).
    Challenge,
}

impl WebError {
    /// Creates an error; `advice` is a sentence for the model, or empty.
    pub fn new(kind: WebErrorKind, message: impl Into<String>, advice: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            advice: advice.into(),
            retry_after: None,
            source: None,
        }
    }

    /// Sets the cause.
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Sets the time after which the server accepts requests again.
    pub fn with_retry_after(mut self, delay: Option<Duration>) -> Self {
        self.retry_after = delay;
        self
    }

    /// Replaces the advice.
    pub(crate) fn with_advice(mut self, advice: &str) -> Self {
        advice.clone_into(&mut self.advice);
        self
    }

    /// Returns the kind.
    pub fn kind(&self) -> WebErrorKind {
        self.kind
    }

    /// Returns what the model can do; may be empty.
    pub fn advice(&self) -> &str {
        &self.advice
    }

    /// Returns the time after which the server accepts requests again, if it said so.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// Returns message and advice.
    pub(crate) fn text(&self) -> String {
        format!("{self}. {}", self.advice).trim_end().to_owned()
    }
}
