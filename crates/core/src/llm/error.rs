//! Why a model call failed.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A model call that failed: what kind of failure, in whose words, and what to try.
#[derive(Debug)]
pub struct LlmError {
    kind: LlmErrorKind,
    message: String,
    status: Option<u16>,
    retry_after: Option<Duration>,
    advice: Option<String>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// The kinds of failure that callers tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LlmErrorKind {
    /// The conversation does not fit the model's context window.
    ContextOverflow,
    /// The key is missing or wrong.
    Authentication,
    /// The key may not do this, or the account is out of credit.
    Permission,
    /// There is no such model or no such address.
    NotFound,
    /// Too many requests or tokens per time.
    RateLimited,
    /// The provider failed or is overloaded.
    Server,
    /// The provider, or the client itself, says that the request makes no sense.
    InvalidRequest,
    /// The conversation holds something this model or dialect can't take.
    Unsupported,
    /// No connection, or it broke before the answer began.
    Connection,
    /// No answer within the time allowed.
    Timeout,
    /// The answer broke off after it had begun.
    Interrupted,
    /// The answer is not what the protocol says.
    Protocol,
}

impl LlmErrorKind {
    /// Whether the same request may succeed a little later.
    #[must_use]
    pub fn is_transient(self) -> bool {
        matches!(
            self,
            Self::RateLimited | Self::Server | Self::Connection | Self::Timeout | Self::Interrupted
        )
    }
}

impl LlmError {
    /// A failure of `kind`; `message` says what happened, without secrets.
    pub fn new(kind: LlmErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            status: None,
            retry_after: None,
            advice: None,
            source: None,
        }
    }

    /// An answer that is not what the protocol says.
    pub fn protocol(message: impl Into<String>) -> Self {
        Self::new(LlmErrorKind::Protocol, message)
    }

    /// The same with more on what happened, behind what it says already.
    #[must_use]
    pub fn with_more(mut self, more: &str) -> Self {
        self.message.push_str("; ");
        self.message.push_str(more);
        self
    }

    /// The same with the HTTP status.
    #[must_use]
    pub fn with_status(mut self, status: u16) -> Self {
        self.status = Some(status);
        self
    }

    /// The same with the time the provider asked to wait.
    #[must_use]
    pub fn with_retry_after(mut self, retry_after: Option<Duration>) -> Self {
        self.retry_after = retry_after;
        self
    }

    /// The same with a sentence on what to try.
    #[must_use]
    pub fn with_advice(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }

    /// The same with the error that caused it.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// What kind of failure it is.
    #[must_use]
    pub fn kind(&self) -> LlmErrorKind {
        self.kind
    }

    /// The HTTP status, where there was one.
    #[must_use]
    pub fn status(&self) -> Option<u16> {
        self.status
    }

    /// How long the provider asked to wait.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// What to try, for people.
    #[must_use]
    pub fn advice(&self) -> Option<&str> {
        self.advice.as_deref()
    }
}

impl fmt::Display for LlmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if let Some(status) = self.status {
            write!(f, " (HTTP {status})")?;
        }
        Ok(())
    }
}

impl StdError for LlmError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}
