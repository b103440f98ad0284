//! A rate limit that clients share.
//!
//! All clients of an account share one [`RateLimiter`]. Calls are admitted in order of arrival, subject
//! to
//!
//! - the configured [requests](RateLimits::requests_per_minute) and
//!   [tokens](RateLimits::tokens_per_minute) per minute, spread evenly; and
//! - a rate that adapts to the provider: after a rate limit error, all calls wait for the delay that the
//!   provider requests, and continue slightly below the rate that it accepted. The rate then increases
//!   until the next error, so that an unknown limit is found and respected.
//!
//! A rejected request is queued again, up to [`RateLimits::max_rejections`] times, and emits
//! [`ChatEvent::Retrying`]. The wrapped client should therefore have no retries of its own
//! (`max_retries(0)`); wrap the whole in a [`Retry`](crate::retry::Retry) for other transient errors.
//!
//! Tokens are reserved by an estimate, which is corrected by the reported usage.

mod adaptive;
mod bucket;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cantle_core::estimate::context_tokens;
use cantle_core::llm::{
    ChatEvent, ChatRequest, ChatStream, LlmClient, LlmError, LlmErrorKind, ModelInfo,
};
use futures_util::{TryStreamExt as _, stream};
use tokio::time::Instant;

use self::adaptive::AdaptiveRate;
use self::bucket::TokenBucket;

/// Delay after a rate limit error without a requested delay.
const DEFAULT_WAIT: Duration = Duration::from_secs(1);

/// Known limits of a provider account.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RateLimits {
    /// Maximum number of requests per minute.
    pub requests_per_minute: Option<u32>,
    /// Maximum number of input and output tokens per minute.
    pub tokens_per_minute: Option<u64>,
    /// Maximum number of rate limit errors of one call before it fails. 10 by default.
    pub max_rejections: u32,
    /// Maximum delay that a provider may request. 60 seconds by default; a call with a longer one fails
    /// immediately.
    pub max_wait: Duration,
}

impl Default for RateLimits {
    fn default() -> Self {
        Self {
            requests_per_minute: None,
            tokens_per_minute: None,
            max_rejections: 10,
            max_wait: Duration::from_secs(60),
        }
    }
}

impl RateLimits {
    /// Sets the number of requests per minute. 0 counts as 1.
    pub fn with_requests_per_minute(mut self, requests: u32) -> Self {
        self.requests_per_minute = Some(requests.max(1));
        self
    }

    /// Sets the number of tokens per minute. 0 counts as 1.
    pub fn with_tokens_per_minute(mut self, tokens: u64) -> Self {
        self.tokens_per_minute = Some(tokens.max(1));
        self
    }

    /// Sets the number of rate limit errors before a call fails.
    pub fn with_max_rejections(mut self, rejections: u32) -> Self {
        self.max_rejections = rejections;
        self
    }

    /// Sets the maximum delay that a provider may request.
    pub fn with_max_wait(mut self, max_wait: Duration) -> Self {
        self.max_wait = max_wait;
        self
    }
}

/// A shared rate limit. Clones share their state.
#[derive(Clone, Debug)]
pub struct RateLimiter(Arc<SharedLimiter>);

#[derive(Debug)]
struct SharedLimiter {
    limits: RateLimits,
    /// Held by the first waiting call. Tokio's mutex is fair.
    queue: tokio::sync::Mutex<()>,
    state: Mutex<LimiterState>,
}

#[derive(Debug)]
struct LimiterState {
    requests: Option<TokenBucket>,
    tokens: Option<TokenBucket>,
    adaptive: AdaptiveRate,
}

/// Permission to send one request.
#[derive(Clone, Copy, Debug)]
struct Permit {
    issued_at: Instant,
    reserved_tokens: u64,
}

impl RateLimiter {
    /// Creates a limiter. Without configured limits it only adapts to rate limit errors.
    pub fn new(limits: RateLimits) -> Self {
        let bucket = |per_minute: f64| TokenBucket::new(per_minute / 60.0);
        Self(Arc::new(SharedLimiter {
            limits,
            queue: tokio::sync::Mutex::new(()),
            state: Mutex::new(LimiterState {
                requests: limits.requests_per_minute.map(|n| bucket(n.into())),
                // Token counts are far below 2^52, where the conversion is exact.
                tokens: limits.tokens_per_minute.map(|n| bucket(n as f64)),
                adaptive: AdaptiveRate::default(),
            }),
        }))
    }

    /// Waits until a request with this number of tokens may be sent. Cancel safe.
    async fn acquire(&self, tokens: u64) -> Permit {
        let _first = self.0.queue.lock().await;
        loop {
            let now = Instant::now();
            let delay = self.state().try_take(now, tokens as f64);
            if delay.is_zero() {
                return Permit {
                    issued_at: now,
                    reserved_tokens: tokens,
                };
            }
            tokio::time::sleep(delay).await;
        }
    }

    /// Records that the provider accepted a request.
    fn accepted(&self) {
        self.state().adaptive.accepted(Instant::now());
    }

    /// Records a rate limit error, and pauses all calls for `wait`.
    fn rejected(&self, permit: Permit, wait: Duration) {
        let mut state = self.state();
        state
            .adaptive
            .rejected(Instant::now(), permit.issued_at, wait);
    }

    /// Replaces a request's reserved tokens by those that it used.
    fn used(&self, permit: Permit, tokens: u64) {
        if let Some(bucket) = &mut self.state().tokens {
            bucket.refund(permit.reserved_tokens as f64 - tokens as f64);
        }
    }

    fn state(&self) -> MutexGuard<'_, LimiterState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LimiterState {
    /// Takes one request with `tokens` and returns zero, or returns the delay until the next try.
    fn try_take(&mut self, now: Instant, tokens: f64) -> Duration {
        let mut delay = self.adaptive.delay(now);
        let mut buckets = [(&mut self.requests, 1.0), (&mut self.tokens, tokens)];
        for (bucket, amount) in &mut buckets {
            if let Some(bucket) = bucket {
                delay = delay.max(bucket.delay(now, *amount));
            }
        }
        if delay.is_zero() {
            self.adaptive.take();
            for (bucket, amount) in buckets {
                if let Some(bucket) = bucket {
                    bucket.take(amount);
                }
            }
        }
        delay
    }
}

/// A client that is subject to a shared rate limit.
///
/// ```
/// use cantle_clients::limit::{Limited, RateLimiter, RateLimits};
/// use cantle_clients::replay::ReplayClient;
///
/// let account = RateLimiter::new(RateLimits::default().with_requests_per_minute(500));
/// let one = Limited::new(ReplayClient::new("one", vec![]), account.clone());
/// let other = Limited::new(ReplayClient::new("other", vec![]), account);
/// # let _ = (one, other);
/// ```
#[derive(Clone, Debug)]
pub struct Limited<C> {
    client: Arc<C>,
    limiter: RateLimiter,
}

impl<C: LlmClient> Limited<C> {
    /// Wraps `client`.
    pub fn new(client: C, limiter: RateLimiter) -> Self {
        Self {
            client: Arc::new(client),
            limiter,
        }
    }
}

impl<C: LlmClient> LlmClient for Limited<C> {
    fn model(&self) -> &ModelInfo {
        self.client.model()
    }

    fn stream(&self, request: ChatRequest) -> ChatStream {
        let call = LimitedCall {
            estimated_tokens: context_tokens(&request.messages),
            client: Arc::clone(&self.client),
            request,
            limiter: self.limiter.clone(),
            rejections: 0,
            attempt: None,
        };
        Box::pin(stream::try_unfold(call, |mut call| async {
            let event = call.next().await?;
            Ok(event.map(|event| (event, call)))
        }))
    }
}

struct LimitedCall<C> {
    client: Arc<C>,
    request: ChatRequest,
    estimated_tokens: u64,
    limiter: RateLimiter,
    rejections: u32,
    /// `None` while waiting for a permit.
    attempt: Option<AdmittedAttempt>,
}

struct AdmittedAttempt {
    stream: ChatStream,
    permit: Permit,
    /// Whether an event of an answer was received.
    has_started: bool,
}

impl<C: LlmClient> LimitedCall<C> {
    async fn next(&mut self) -> Result<Option<ChatEvent>, LlmError> {
        let attempt = match &mut self.attempt {
            Some(attempt) => attempt,
            None => {
                let permit = self.limiter.acquire(self.estimated_tokens).await;
                self.attempt.insert(AdmittedAttempt {
                    stream: self.client.stream(self.request.clone()),
                    permit,
                    has_started: false,
                })
            }
        };
        let event = match attempt.stream.try_next().await {
            Ok(Some(event)) => event,
            Ok(None) => return Ok(None),
            Err(error) if error.kind() == LlmErrorKind::RateLimited && !attempt.has_started => {
                let permit = attempt.permit;
                return self.rejected(permit, error).map(Some);
            }
            Err(error) => return Err(error),
        };
        if !attempt.has_started && !matches!(event, ChatEvent::Retrying { .. }) {
            attempt.has_started = true;
            self.limiter.accepted();
        }
        if let ChatEvent::Finished(end) = &event
            && let Some(usage) = end.usage
        {
            self.limiter.used(attempt.permit, usage.total());
        }
        Ok(Some(event))
    }

    fn rejected(&mut self, permit: Permit, error: LlmError) -> Result<ChatEvent, LlmError> {
        let limits = &self.limiter.0.limits;
        let after = error.retry_after().unwrap_or(DEFAULT_WAIT);
        if after > limits.max_wait {
            let (requested, max) = (after.as_secs_f64(), limits.max_wait.as_secs_f64());
            return Err(error.with_detail(&format!(
                "the provider asks to wait {requested:.0} s, more than the maximum of {max:.0} s"
            )));
        }
        self.limiter.rejected(permit, after);
        if self.rejections >= limits.max_rejections {
            let attempts = self.rejections + 1;
            return Err(error.with_detail(&format!("given up after {attempts} attempts")));
        }
        self.rejections += 1;
        self.attempt = None;
        Ok(ChatEvent::Retrying {
            attempt: self.rejections + 1,
            after,
            reason: error.to_string(),
        })
    }
}

#[cfg(test)]
mod tests;
