//! Errors of model calls.

use std::error::Error as StdError;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::usage::TokenUsage;

/// An error of a model call.
#[derive(Debug, thiserror::Error)]
#[error("{message}{}", status.map(|status| format!(" (HTTP {status})")).unwrap_or_default())]
pub struct LlmError {
    kind: LlmErrorKind,
    message: String,
    status: Option<u16>,
    retry_after: Option<Duration>,
    advice: Option<String>,
    // Boxed, because results with this error should be small.
    usage: Option<Box<TokenUsage>>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// The kind of an [`LlmError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LlmErrorKind {
    /// The conversation exceeds the model's context window.
    ContextOverflow,
    /// The API key is missing or invalid.
    Authentication,
    /// The API key lacks permission, or the account is out of credit.
    Permission,
    /// The model or the URL doesn't exist.
    NotFound,
    /// Too many requests or tokens per unit of time.
    RateLimited,
    /// The provider failed or is overloaded.
    Server,
    /// The provider or the client rejected the request.
    InvalidRequest,
    /// The conversation contains content that the model or dialect doesn't support.
    Unsupported,
    /// No connection was established: refused, unknown host, or no reply in time.
    Unreachable,
    /// The TLS handshake failed: an untrusted certificate, or a server without TLS.
    Tls,
    /// The connection failed before the answer began.
    Connection,
    /// No answer arrived in time.
    Timeout,
    /// The connection failed during the answer.
    Interrupted,
    /// The answer violates the protocol.
    Protocol,
}

impl LlmErrorKind {
    /// Returns whether the same request may succeed later.
    pub fn is_transient(self) -> bool {
        matches!(
            self,
            Self::RateLimited
                | Self::Server
                | Self::Unreachable
                | Self::Connection
                | Self::Timeout
                | Self::Interrupted
        )
    }
}

impl LlmError {
    /// Creates an error. The message must not contain secrets.
    pub fn new(kind: LlmErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            status: None,
            retry_after: None,
            advice: None,
            usage: None,
            source: None,
        }
    }

    /// Creates an error of kind [`LlmErrorKind::Protocol`].
    pub fn protocol(message: impl Into<String>) -> Self {
        Self::new(LlmErrorKind::Protocol, message)
    }

    /// Appends detail to the message.
    pub fn with_detail(mut self, detail: &str) -> Self {
        self.message.push_str("; ");
        self.message.push_str(detail);
        self
    }

    /// Sets the HTTP status.
    pub fn with_status(mut self, status: u16) -> Self {
        self.status = Some(status);
        self
    }

    /// Sets the delay that the provider asked for.
    pub fn with_retry_after(mut self, retry_after: Option<Duration>) -> Self {
        self.retry_after = retry_after;
        self
    }

    /// Sets the advice.
    pub fn with_advice(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }

    /// Sets the usage that the provider reported before the failure.
    pub fn with_usage(mut self, usage: Option<TokenUsage>) -> Self {
        self.usage = usage.map(Box::new);
        self
    }

    /// Sets the cause.
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Returns the kind.
    pub fn kind(&self) -> LlmErrorKind {
        self.kind
    }

    /// Returns the HTTP status, if there was a response.
    pub fn status(&self) -> Option<u16> {
        self.status
    }

    /// Returns the delay that the provider asked for.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// Returns the usage that the provider reported before the failure, which may lack the output.
    pub fn usage(&self) -> Option<TokenUsage> {
        self.usage.as_deref().copied()
    }

    /// Returns advice for the user.
    pub fn advice(&self) -> Option<&str> {
        self.advice.as_deref()
    }
}
