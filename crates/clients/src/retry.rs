//! Retries of failed calls.
//!
//! Only transient errors (rate limits, server failures, broken connections, timeouts) are retried, and
//! only before the first event of an answer, because consumers may have displayed it. Delays grow
//! exponentially with full jitter, so that sessions that failed together do not retry together; a delay
//! that the provider requests takes precedence.

use std::sync::Arc;
use std::time::Duration;

use cantle_core::llm::{ChatEvent, ChatRequest, ChatStream, LlmClient, LlmError, ModelInfo};
use futures_util::{TryStreamExt as _, stream};

/// Number of retries and their delays.
#[must_use]
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RetryPolicy {
    /// Maximum number of attempts after the first one. 2 by default.
    pub max_retries: u32,
    /// Maximum delay before the first retry, doubled for each further one. Half a second by default.
    /// The actual delay is random.
    pub base: Duration,
    /// Upper bound of the doubled delays. 8 seconds by default.
    pub cap: Duration,
    /// Maximum delay that a provider may request. 60 seconds by default; an error with a longer one is
    /// returned immediately.
    pub max_wait: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            max_retries: 2,
            base: Duration::from_millis(500),
            cap: Duration::from_secs(8),
            max_wait: Duration::from_secs(60),
        }
    }
}

impl RetryPolicy {
    /// Creates a policy with default delays; 0 retries means a single attempt.
    pub fn new(max_retries: u32) -> Self {
        Self {
            max_retries,
            ..Self::default()
        }
    }

    /// Sets the delays: `base` before the first retry, doubled up to `cap`.
    pub fn with_backoff(mut self, base: Duration, cap: Duration) -> Self {
        self.base = base;
        self.cap = cap;
        self
    }

    /// Sets the maximum delay that a provider may request.
    pub fn with_max_wait(mut self, max_wait: Duration) -> Self {
        self.max_wait = max_wait;
        self
    }

    /// Returns the delay after the failure of `attempt`, counted from 1.
    ///
    /// Fails with `error`, supplemented by the reason, if there is to be no retry.
    fn delay(&self, attempt: u32, error: LlmError) -> Result<(Duration, LlmError), LlmError> {
        if !error.kind().is_transient() {
            return Err(error);
        }
        if attempt > self.max_retries {
            return Err(match attempt {
                1 => error,
                attempts => error.with_detail(&format!("given up after {attempts} attempts")),
            });
        }
        match error.retry_after() {
            Some(requested) if requested > self.max_wait => {
                let (requested, max) = (requested.as_secs_f64(), self.max_wait.as_secs_f64());
                Err(error.with_detail(&format!(
                    "the provider asks to wait {requested:.0} s, more than the maximum of {max:.0} s"
                )))
            }
            Some(requested) => Ok((requested, error)),
            None => {
                let doubled = 2u32.saturating_pow(attempt - 1);
                let max = self.base.saturating_mul(doubled).min(self.cap);
                Ok((max.mul_f64(fastrand::f64()), error))
            }
        }
    }
}

/// A client that retries the failed calls of another one.
///
/// It emits [`ChatEvent::Retrying`] before each delay.
#[derive(Clone, Debug)]
pub struct Retry<C> {
    client: Arc<C>,
    policy: RetryPolicy,
}

impl<C: LlmClient> Retry<C> {
    /// Wraps `client`.
    pub fn new(client: C, policy: RetryPolicy) -> Self {
        Self {
            client: Arc::new(client),
            policy,
        }
    }
}

impl<C: LlmClient> LlmClient for Retry<C> {
    fn model(&self) -> &ModelInfo {
        self.client.model()
    }

    fn stream(&self, request: ChatRequest) -> ChatStream {
        let client = Arc::clone(&self.client);
        with_retries(self.policy.clone(), move || client.stream(request.clone()))
    }
}

/// Emits the events of the stream from `open`, which is called again if the stream fails before its
/// first event.
pub(crate) fn with_retries(
    policy: RetryPolicy,
    open: impl FnMut() -> ChatStream + Send + 'static,
) -> ChatStream {
    let call = RetriedCall {
        policy,
        open,
        attempt: 1,
        delay: None,
        stream: None,
        has_started: false,
    };
    Box::pin(stream::try_unfold(call, |mut call| async {
        let event = call.next().await?;
        Ok(event.map(|event| (event, call)))
    }))
}

struct RetriedCall<F> {
    policy: RetryPolicy,
    open: F,
    attempt: u32,
    /// Delay before the next attempt.
    delay: Option<Duration>,
    stream: Option<ChatStream>,
    /// Whether an event of an answer was emitted.
    has_started: bool,
}

impl<F: FnMut() -> ChatStream + Send> RetriedCall<F> {
    async fn next(&mut self) -> Result<Option<ChatEvent>, LlmError> {
        if let Some(delay) = self.delay.take() {
            tokio::time::sleep(delay).await;
        }
        let stream = self.stream.get_or_insert_with(&mut self.open);
        match stream.try_next().await {
            Ok(event) => {
                // The retries of a wrapped client are not part of an answer.
                self.has_started |= !matches!(event, Some(ChatEvent::Retrying { .. }));
                Ok(event)
            }
            Err(error) if self.has_started => Err(error),
            Err(error) => {
                let (delay, error) = self.policy.delay(self.attempt, error)?;
                self.stream = None;
                self.attempt += 1;
                self.delay = Some(delay);
                Ok(Some(ChatEvent::Retrying {
                    attempt: self.attempt,
                    after: delay,
                    reason: error.to_string(),
                }))
            }
        }
    }
}

#[cfg(test)]
mod tests;
