//! Token bucket.

use std::time::Duration;

use tokio::time::Instant;

/// Capacity of a bucket: the amount of a tenth of a second, and at least 1.
const BURST_SECONDS: f64 = 0.1;

#[derive(Debug)]
pub(super) struct TokenBucket {
    /// Amount per second.
    rate: f64,
    level: f64,
    /// Time of the last update, or a later time until which nothing is added; `None` before the first
    /// request.
    updated_at: Option<Instant>,
}

impl TokenBucket {
    pub(super) fn new(rate: f64) -> Self {
        Self {
            rate,
            level: capacity(rate),
            updated_at: None,
        }
    }

    pub(super) fn set_rate(&mut self, now: Instant, rate: f64) {
        self.update(now);
        self.rate = rate;
        self.level = self.level.min(capacity(rate));
    }

    pub(super) fn rate(&self) -> f64 {
        self.rate
    }

    /// Empties the bucket and adds nothing before `until`.
    pub(super) fn empty_until(&mut self, until: Instant) {
        self.level = self.level.min(0.0);
        self.updated_at = Some(until);
    }

    /// Returns the delay until `amount` can be taken.
    ///
    /// More than the capacity can be taken from a full bucket; the deficit delays the next request.
    pub(super) fn delay(&mut self, now: Instant, amount: f64) -> Duration {
        self.update(now);
        let missing = amount.min(capacity(self.rate)) - self.level;
        if missing <= 0.0 {
            return Duration::ZERO;
        }
        let filling = Duration::try_from_secs_f64(missing / self.rate).unwrap_or(Duration::MAX);
        let pause = self
            .updated_at
            .map_or(Duration::ZERO, |at| at.saturating_duration_since(now));
        // The minimum prevents a busy loop because of rounding.
        pause.saturating_add(filling).max(Duration::from_millis(1))
    }

    pub(super) fn take(&mut self, amount: f64) {
        self.level -= amount;
    }

    /// Returns `amount` to the bucket, or takes more if it is negative.
    pub(super) fn refund(&mut self, amount: f64) {
        self.level = (self.level + amount).min(capacity(self.rate));
    }

    fn update(&mut self, now: Instant) {
        let at = self.updated_at.unwrap_or(now);
        let elapsed = now.saturating_duration_since(at).as_secs_f64();
        self.level = (self.level + elapsed * self.rate).min(capacity(self.rate));
        self.updated_at = Some(at.max(now));
    }
}

fn capacity(rate: f64) -> f64 {
    (rate * BURST_SECONDS).max(1.0)
}
