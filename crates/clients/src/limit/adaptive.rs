//! Request rate that adapts to rate limit errors.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use super::bucket::TokenBucket;

/// Period over which accepted requests are counted.
const WINDOW: Duration = Duration::from_secs(1);

/// Factor by which the rate decreases after a rate limit error.
const DECREASE: f64 = 0.9;

/// Factor by which the rate increases per second until the second rate limit error. The first one only
/// shows the provider's burst size.
const INITIAL_INCREASE: f64 = 4.0;

/// Factor by which the rate increases per second afterwards.
const INCREASE: f64 = 1.04;

/// Maximum ratio of the rate to the accepted requests, because errors of slow responses come late.
const MAX_LEAD: f64 = 2.0;

/// Rate after the first error if no request was accepted, in requests per second.
const DEFAULT_RATE: f64 = 2.0;

/// Minimum rate in requests per second.
const MIN_RATE: f64 = 0.05;

#[derive(Debug, Default)]
pub(super) struct AdaptiveRate {
    /// `None` until the first rate limit error.
    bucket: Option<TokenBucket>,
    /// Times of accepted requests within the window.
    accepted: VecDeque<Instant>,
    paused_until: Option<Instant>,
    /// Time of the last decrease. Errors of requests that were sent before it are ignored.
    decreased_at: Option<Instant>,
    increased_at: Option<Instant>,
    decreases: u32,
}

impl AdaptiveRate {
    /// Returns the delay until the next request may be sent.
    pub(super) fn delay(&mut self, now: Instant) -> Duration {
        if let Some(until) = self.paused_until {
            if until > now {
                return until - now;
            }
            self.paused_until = None;
        }
        self.increase(now);
        match &mut self.bucket {
            Some(bucket) => bucket.delay(now, 1.0),
            None => Duration::ZERO,
        }
    }

    pub(super) fn take(&mut self) {
        if let Some(bucket) = &mut self.bucket {
            bucket.take(1.0);
        }
    }

    /// Records that the provider accepted a request.
    pub(super) fn accepted(&mut self, now: Instant) {
        self.accepted.push_back(now);
        self.expire(now);
    }

    /// Records a rate limit error of a request that was sent at `sent`, and pauses for `wait`.
    pub(super) fn rejected(&mut self, now: Instant, sent: Instant, wait: Duration) {
        let until = now.checked_add(wait).unwrap_or(now);
        self.paused_until = self.paused_until.max(Some(until));
        if self.decreased_at.is_some_and(|at| sent <= at) {
            return;
        }
        self.expire(now);
        let measured = self.measured();
        let previous = self.bucket.as_ref().map(TokenBucket::rate);
        // The previous rate was too high even if all requests were accepted from a saved-up burst.
        let rate = previous.map_or(measured.max(DEFAULT_RATE), |previous| {
            measured.clamp(previous / 2.0, previous)
        });
        let rate = (rate * DECREASE).max(MIN_RATE);
        let bucket = self.bucket.get_or_insert_with(|| TokenBucket::new(rate));
        bucket.set_rate(now, rate);
        bucket.empty_until(until);
        (self.decreased_at, self.increased_at) = (Some(now), Some(until));
        self.decreases = self.decreases.saturating_add(1);
    }

    fn increase(&mut self, now: Instant) {
        self.expire(now);
        let (measured, accepted) = (self.measured(), self.accepted.len() as f64);
        let (Some(bucket), Some(increased_at)) = (&mut self.bucket, self.increased_at) else {
            return;
        };
        let elapsed = now.saturating_duration_since(increased_at).as_secs_f64();
        if elapsed < 0.05 {
            return;
        }
        let (factor, min): (f64, f64) = if self.decreases < 2 {
            // Responses come later than errors, so the first measurement was too low.
            (INITIAL_INCREASE, measured * DECREASE)
        } else {
            (INCREASE, 0.0)
        };
        let max = ((accepted + 1.0) * MAX_LEAD).max(bucket.rate());
        let rate = (bucket.rate() * factor.powf(elapsed)).min(max).max(min);
        bucket.set_rate(now, rate);
        self.increased_at = Some(now);
    }

    /// Returns the accepted requests per second. The window may include both of its ends, hence the -1.
    fn measured(&self) -> f64 {
        self.accepted.len().saturating_sub(1) as f64 / WINDOW.as_secs_f64()
    }

    fn expire(&mut self, now: Instant) {
        while let Some(first) = self.accepted.front()
            && now.saturating_duration_since(*first) > WINDOW
        {
            self.accepted.pop_front();
        }
    }
}
