//! Rate limit for creating sandboxes: concurrency, spacing, and pauses that the service asks for.
//!
//! Clones of a backend share one gate, so that sessions starting together stay below the service's limit.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep_until};

/// Limits how many sandboxes are created at once and how fast.
#[derive(Debug)]
pub(crate) struct Gate {
    permits: Semaphore,
    spacing: Duration,
    schedule: Mutex<Schedule>,
}

#[derive(Debug, Default)]
struct Schedule {
    /// Earliest time of the next start.
    next: Option<Instant>,
    /// End of the pause that the service asked for.
    held_until: Option<Instant>,
}

/// The service asks for a longer pause than the caller accepts; contains its remaining time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HoldTooLong(pub(crate) Duration);

impl Gate {
    pub(crate) fn new(concurrency: usize, spacing: Duration) -> Self {
        Self {
            permits: Semaphore::new(concurrency.clamp(1, Semaphore::MAX_PERMITS)),
            spacing,
            schedule: Mutex::default(),
        }
    }

    /// Waits for a permit, which is released on drop, and for the next start time.
    ///
    /// # Errors
    /// The service asks for a pause longer than `max_wait`.
    pub(crate) async fn acquire(
        &self,
        max_wait: Duration,
    ) -> Result<Option<SemaphorePermit<'_>>, HoldTooLong> {
        // The semaphore is never closed.
        let permit = self.permits.acquire().await.ok();
        self.wait_turn(max_wait).await?;
        Ok(permit)
    }

    /// Waits for the start time of a retry by the holder of a permit.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire).
    pub(crate) async fn wait_turn(&self, max_wait: Duration) -> Result<(), HoldTooLong> {
        loop {
            let wait_until = {
                let mut schedule = self.schedule.lock();
                let now = Instant::now();
                if let Some(held_until) = schedule.held_until {
                    let left = held_until.saturating_duration_since(now);
                    if left > max_wait {
                        return Err(HoldTooLong(left));
                    }
                }
                match schedule.next.max(schedule.held_until) {
                    Some(at) if at > now => at,
                    _ => {
                        schedule.next = now.checked_add(self.spacing);
                        return Ok(());
                    }
                }
            };
            sleep_until(wait_until).await;
        }
    }

    /// Delays all starts for this time.
    pub(crate) fn hold(&self, wait: Duration) {
        let mut schedule = self.schedule.lock();
        let until = Instant::now().checked_add(wait);
        schedule.held_until = schedule.held_until.max(until);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::{Gate, HoldTooLong};

    const MAX_WAIT: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn starts_are_spaced() {
        let gate = Gate::new(10, Duration::from_millis(100));
        let started = Instant::now();
        for _ in 0..4 {
            drop(gate.acquire(MAX_WAIT).await.unwrap());
        }
        assert_eq!(started.elapsed(), Duration::from_millis(300));
    }

    #[tokio::test(start_paused = true)]
    async fn permits_limit_concurrency() {
        let gate = Gate::new(1, Duration::ZERO);
        let permit = gate.acquire(MAX_WAIT).await;
        let second = tokio::time::timeout(Duration::from_secs(5), gate.acquire(MAX_WAIT));
        assert!(second.await.is_err());
        drop(permit);
        assert!(gate.acquire(MAX_WAIT).await.unwrap().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn hold_delays_all_starts() {
        let gate = Gate::new(10, Duration::ZERO);
        gate.hold(Duration::from_secs(7));
        let started = Instant::now();
        drop(gate.acquire(MAX_WAIT).await.unwrap());
        assert_eq!(started.elapsed(), Duration::from_secs(7));
    }

    #[tokio::test(start_paused = true)]
    async fn retries_are_spaced_too() {
        let gate = Gate::new(10, Duration::from_millis(100));
        gate.hold(Duration::from_secs(7));
        let started = Instant::now();
        let turn = || async {
            gate.wait_turn(MAX_WAIT).await.unwrap();
            started.elapsed()
        };
        let (one, two, three) = tokio::join!(turn(), turn(), turn());
        let mut at = [one, two, three].map(|it| it.as_millis());
        at.sort_unstable();
        assert_eq!(at, [7000, 7100, 7200]);
    }

    #[tokio::test(start_paused = true)]
    async fn too_long_hold_is_an_error() {
        let gate = Gate::new(10, Duration::ZERO);
        gate.hold(Duration::from_secs(3600));
        let started = Instant::now();
        let held = gate.acquire(MAX_WAIT).await.map(drop).unwrap_err();
        assert_eq!(held, HoldTooLong(Duration::from_secs(3600)));
        assert_eq!(started.elapsed(), Duration::ZERO);
    }
}
