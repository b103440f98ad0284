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
//! Other models of the account may have [a limiter](RateLimiter::for_other_model) that shares the
//! configured limits only, because most providers limit the rate of each model separately.
//!
//! [`retry`](crate::retry) takes a place in the limiter for each attempt. Tokens are reserved by an
//! estimate, which is corrected by the reported usage, and released if the server could not be reached.

mod adaptive;
mod bucket;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
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
pub struct RateLimiter {
    /// Held by the first waiting call. Tokio's mutex is fair.
    queue: Arc<tokio::sync::Mutex<()>>,
    adaptive: Arc<Mutex<AdaptiveRate>>,
    configured: Arc<Mutex<ConfiguredRate>>,
}

#[derive(Debug)]
struct ConfiguredRate {
    requests: Option<TokenBucket>,
    tokens: Option<TokenBucket>,
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
        Self {
            queue: Arc::default(),
            adaptive: Arc::default(),
            configured: Arc::new(Mutex::new(ConfiguredRate {
                requests: limits.requests_per_minute.map(|n| bucket(n.into())),
                // Token counts are far below 2^52, where the conversion is exact.
                tokens: limits.tokens_per_minute.map(|n| bucket(n as f64)),
            })),
        }
    }

    /// Returns a limiter for another model of the account. The configured limits apply to both models
    /// together, but rate limit errors of one model do not delay calls of the other.
    #[must_use]
    pub fn for_other_model(&self) -> Self {
        Self {
            queue: Arc::default(),
            adaptive: Arc::default(),
            configured: Arc::clone(&self.configured),
        }
    }

    /// Returns whether the number of tokens is limited.
    pub(crate) fn counts_tokens(&self) -> bool {
        self.configured.lock().tokens.is_some()
    }

    /// Waits until a request with this number of tokens may be sent. Cancel safe.
    pub(crate) async fn acquire(&self, tokens: u64) -> Permit {
        let _first = self.queue.lock().await;
        loop {
            let now = Instant::now();
            let delay = self.try_take(now, tokens as f64);
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
        self.adaptive.lock().accepted(Instant::now());
    }

    /// Records a rate limit error, and pauses all calls for `wait`.
    pub(crate) fn rejected(&self, permit: Permit, wait: Duration) {
        self.adaptive
            .lock()
            .rejected(Instant::now(), permit.issued_at, wait);
    }

    /// Replaces a request's reserved tokens by those that it used.
    pub(crate) fn used(&self, permit: Permit, tokens: u64) {
        if let Some(bucket) = &mut self.configured.lock().tokens {
            bucket.refund(permit.reserved_tokens as f64 - tokens as f64);
        }
    }

    /// Takes one request with `tokens` and returns zero, or returns the delay until the next try.
    fn try_take(&self, now: Instant, tokens: f64) -> Duration {
        let mut adaptive = self.adaptive.lock();
        let mut configured = self.configured.lock();
        let configured = &mut *configured;
        let mut delay = adaptive.delay(now);
        let mut buckets = [
            (&mut configured.requests, 1.0),
            (&mut configured.tokens, tokens),
        ];
        for (bucket, amount) in &mut buckets {
            if let Some(bucket) = bucket {
                delay = delay.max(bucket.delay(now, *amount));
            }
        }
        if delay.is_zero() {
            adaptive.take();
            for (bucket, amount) in buckets {
                if let Some(bucket) = bucket {
                    bucket.take(amount);
                }
            }
        }
        delay
    }
}

/// A limiter that only adapts to rate limit errors.
impl Default for RateLimiter {
    fn default() -> Self {
        Self::new(RateLimits::default())
    }
}

#[cfg(test)]
mod tests;
