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
//! [`retry`](crate::retry) takes a place in the limiter for each attempt. Tokens are reserved by an
//! estimate, which is corrected by the reported usage.

mod adaptive;
mod bucket;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use self::adaptive::AdaptiveRate;
use self::bucket::TokenBucket;

/// Known limits of a provider account.
#[must_use]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RateLimits {
    /// Maximum number of requests per minute.
    pub requests_per_minute: Option<u32>,
    /// Maximum number of input and output tokens per minute.
    pub tokens_per_minute: Option<u64>,
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
}

/// A shared rate limit. Clones share their state.
#[derive(Clone, Debug)]
pub struct RateLimiter(Arc<SharedLimiter>);

#[derive(Debug)]
struct SharedLimiter {
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
pub(crate) struct Permit {
    issued_at: Instant,
    reserved_tokens: u64,
}

impl RateLimiter {
    /// Creates a limiter. Without configured limits it only adapts to rate limit errors.
    pub fn new(limits: RateLimits) -> Self {
        let bucket = |per_minute: f64| TokenBucket::new(per_minute / 60.0);
        Self(Arc::new(SharedLimiter {
            queue: tokio::sync::Mutex::new(()),
            state: Mutex::new(LimiterState {
                requests: limits.requests_per_minute.map(|n| bucket(n.into())),
                // Token counts are far below 2^52, where the conversion is exact.
                tokens: limits.tokens_per_minute.map(|n| bucket(n as f64)),
                adaptive: AdaptiveRate::default(),
            }),
        }))
    }

    /// Returns whether the number of tokens is limited.
    pub(crate) fn counts_tokens(&self) -> bool {
        self.state().tokens.is_some()
    }

    /// Waits until a request with this number of tokens may be sent. Cancel safe.
    pub(crate) async fn acquire(&self, tokens: u64) -> Permit {
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
    pub(crate) fn accepted(&self) {
        self.state().adaptive.accepted(Instant::now());
    }

    /// Records a rate limit error, and pauses all calls for `wait`.
    pub(crate) fn rejected(&self, permit: Permit, wait: Duration) {
        let mut state = self.state();
        state
            .adaptive
            .rejected(Instant::now(), permit.issued_at, wait);
    }

    /// Replaces a request's reserved tokens by those that it used.
    pub(crate) fn used(&self, permit: Permit, tokens: u64) {
        if let Some(bucket) = &mut self.state().tokens {
            bucket.refund(permit.reserved_tokens as f64 - tokens as f64);
        }
    }

    fn state(&self) -> MutexGuard<'_, LimiterState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A limiter that only adapts to rate limit errors.
impl Default for RateLimiter {
    fn default() -> Self {
        Self::new(RateLimits::default())
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

#[cfg(test)]
mod tests;
