//! What refusals teach of a limit that nobody told.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use super::bucket::Bucket;

/// Over how long it is counted what a provider takes.
const WINDOW: Duration = Duration::from_secs(1);

/// What of the rate that was taken, or tried, is gone on at.
const BACK: f64 = 0.9;

/// By how much the rate grows in a second, until it is refused for the second time: what the first
/// refusal taught was how much can be taken at once.
const SEARCH: f64 = 4.0;

/// By how much it grows then.
const GROWTH: f64 = 1.04;

/// How far ahead of what is taken it grows: while answers take long, refusals do too.
const AHEAD: f64 = 2.0;

/// What is gone on at after the first refusal, where nothing was taken before, in requests per second.
const FIRST: f64 = 2.0;

/// The slowest that is ever gone on at.
const LEAST: f64 = 0.05;

#[derive(Debug, Default)]
pub(super) struct Learned {
    /// `None` until the first refusal.
    bucket: Option<Bucket>,
    /// When requests were taken, within the last window.
    taken: VecDeque<Instant>,
    paused_until: Option<Instant>,
    /// When the rate was set last. What was sent before may still be refused, and teaches nothing.
    set: Option<Instant>,
    grown: Option<Instant>,
    refusals: u32,
}

impl Learned {
    /// How long until the next request may be sent.
    pub(super) fn wait(&mut self, now: Instant) -> Duration {
        if let Some(until) = self.paused_until {
            if until > now {
                return until - now;
            }
            self.paused_until = None;
        }
        self.grow(now);
        match &mut self.bucket {
            Some(bucket) => bucket.wait(now, 1.0),
            None => Duration::ZERO,
        }
    }

    pub(super) fn take(&mut self) {
        if let Some(bucket) = &mut self.bucket {
            bucket.take(1.0);
        }
    }

    /// The provider took a request.
    pub(super) fn taken(&mut self, now: Instant) {
        self.taken.push_back(now);
        self.forget(now);
    }

    /// The provider refused a request that was sent at `sent`, and everybody waits.
    pub(super) fn refused(&mut self, now: Instant, sent: Instant, wait: Duration) {
        let until = now.checked_add(wait).unwrap_or(now);
        self.paused_until = self.paused_until.max(Some(until));
        if self.set.is_some_and(|set| sent <= set) {
            return;
        }
        self.forget(now);
        let measured = self.measured();
        let before = self.bucket.as_ref().map(Bucket::rate);
        // What was tried was too much, whatever was taken of it: that may have been saved up.
        let rate = before.map_or(measured.max(FIRST), |before| {
            measured.clamp(before / 2.0, before)
        });
        let rate = (rate * BACK).max(LEAST);
        let mut bucket = self.bucket.take().unwrap_or_else(|| Bucket::new(rate));
        bucket.set_rate(now, rate);
        bucket.empty_until(until);
        self.bucket = Some(bucket);
        (self.set, self.grown) = (Some(now), Some(until));
        self.refusals = self.refusals.saturating_add(1);
    }

    fn grow(&mut self, now: Instant) {
        self.forget(now);
        let (measured, most) = (self.measured(), (self.taken.len() as f64 + 1.0) * AHEAD);
        let (Some(bucket), Some(grown)) = (&mut self.bucket, self.grown) else {
            return;
        };
        let passed = now.saturating_duration_since(grown).as_secs_f64();
        // Seldom enough that it costs nothing.
        if passed >= 0.05 {
            let (growth, least): (f64, f64) = if self.refusals < 2 {
                // Answers come later than refusals: not all that was taken was counted then.
                (SEARCH, measured * BACK)
            } else {
                (GROWTH, 0.0)
            };
            let most = most.max(bucket.rate());
            let grown = (bucket.rate() * growth.powf(passed)).min(most).max(least);
            bucket.set_rate(now, grown);
            self.grown = Some(now);
        }
    }

    /// Requests taken in a second. Both ends of the window may be in the count, which is small.
    fn measured(&self) -> f64 {
        self.taken.len().saturating_sub(1) as f64 / WINDOW.as_secs_f64()
    }

    fn forget(&mut self, now: Instant) {
        while let Some(first) = self.taken.front()
            && now.saturating_duration_since(*first) > WINDOW
        {
            self.taken.pop_front();
        }
    }
}
