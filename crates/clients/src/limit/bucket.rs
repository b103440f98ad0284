//! A bucket that fills at a steady rate.

use std::time::Duration;

use tokio::time::Instant;

/// How much of a rate may be taken at once: what a tenth of a second brings, and one at least.
const BURST_SECONDS: f64 = 0.1;

#[derive(Debug)]
pub(super) struct Bucket {
    /// What it gets in a second.
    rate: f64,
    level: f64,
    /// When the level was what it is; `None` before the first request.
    at: Option<Instant>,
}

impl Bucket {
    pub(super) fn new(rate: f64) -> Self {
        Self {
            rate,
            level: burst(rate),
            at: None,
        }
    }

    /// Fills at another rate from now on.
    pub(super) fn set_rate(&mut self, now: Instant, rate: f64) {
        self.fill(now);
        self.rate = rate;
        self.level = self.level.min(burst(rate));
    }

    pub(super) fn rate(&self) -> f64 {
        self.rate
    }

    /// Holds nothing until then.
    pub(super) fn empty_until(&mut self, until: Instant) {
        self.level = self.level.min(0.0);
        self.at = Some(until);
    }

    /// How long until `amount` can be taken. What is more than the bucket ever holds can be taken
    /// when it is full, and is paid back by a longer wait of the next.
    pub(super) fn wait(&mut self, now: Instant, amount: f64) -> Duration {
        self.fill(now);
        let missing = amount.min(burst(self.rate)) - self.level;
        if missing <= 0.0 {
            return Duration::ZERO;
        }
        let filling = Duration::try_from_secs_f64(missing / self.rate).unwrap_or(Duration::MAX);
        // Not before it fills at all; and never none, so that a rounding can't turn waiting into a
        // busy loop.
        let pause = self
            .at
            .map_or(Duration::ZERO, |at| at.saturating_duration_since(now));
        pause.saturating_add(filling).max(Duration::from_millis(1))
    }

    pub(super) fn take(&mut self, amount: f64) {
        self.level -= amount;
    }

    /// Gives back, or takes after the fact where it is negative.
    pub(super) fn correct(&mut self, amount: f64) {
        self.level = (self.level + amount).min(burst(self.rate));
    }

    fn fill(&mut self, now: Instant) {
        let at = self.at.unwrap_or(now);
        let passed = now.saturating_duration_since(at).as_secs_f64();
        self.level = (self.level + passed * self.rate).min(burst(self.rate));
        self.at = Some(at.max(now));
    }
}

fn burst(rate: f64) -> f64 {
    (rate * BURST_SECONDS).max(1.0)
}
