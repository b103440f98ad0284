//! How fast sandboxes are made: so many at once, so far apart, and not while the service asks to wait.
//!
//! One gate belongs to a backend and is shared by its clones, so that a thousand sessions that start
//! together don't run into the service's limit together.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep_until};

#[derive(Debug)]
pub(crate) struct Gate {
    places: Semaphore,
    spacing: Duration,
    pace: Mutex<Pace>,
}

#[derive(Debug, Default)]
struct Pace {
    /// Before which nobody starts.
    next: Option<Instant>,
    /// Until when the service asked to wait.
    held_until: Option<Instant>,
}

/// The service asks to wait for longer than anybody would: this much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held(pub(crate) Duration);

impl Gate {
    pub(crate) fn new(at_once: usize, spacing: Duration) -> Self {
        Self {
            places: Semaphore::new(at_once.clamp(1, Semaphore::MAX_PERMITS)),
            spacing,
            pace: Mutex::default(),
        }
    }

    /// Waits for a place and its time; the place is free again when what is returned is dropped.
    ///
    /// # Errors
    /// Where the service asks to wait for longer than `patience`.
    pub(crate) async fn enter(
        &self,
        patience: Duration,
    ) -> Result<Option<SemaphorePermit<'_>>, Held> {
        // It is never closed.
        let place = self.places.acquire().await.ok();
        self.turn(patience).await?;
        Ok(place)
    }

    /// Waits for the time of one more try, of one who has a place.
    ///
    /// # Errors
    /// As [`enter`](Self::enter).
    pub(crate) async fn turn(&self, patience: Duration) -> Result<(), Held> {
        loop {
            let wait_until = {
                let mut pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
                let now = Instant::now();
                if let Some(held_until) = pace.held_until {
                    let left = held_until.saturating_duration_since(now);
                    if left > patience {
                        return Err(Held(left));
                    }
                }
                match pace.next.max(pace.held_until) {
                    Some(at) if at > now => at,
                    _ => {
                        pace.next = now.checked_add(self.spacing);
                        return Ok(());
                    }
                }
            };
            sleep_until(wait_until).await;
        }
    }

    /// Lets nobody in for this long.
    pub(crate) fn hold(&self, wait: Duration) {
        let mut pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
        let until = Instant::now().checked_add(wait);
        pace.held_until = pace.held_until.max(until);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::{Gate, Held};

    const PATIENCE: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn starts_are_spaced() {
        let gate = Gate::new(10, Duration::from_millis(100));
        let began = Instant::now();
        for _ in 0..4 {
            drop(gate.enter(PATIENCE).await.unwrap());
        }
        assert_eq!(began.elapsed(), Duration::from_millis(300));
    }

    #[tokio::test(start_paused = true)]
    async fn a_place_is_waited_for() {
        let gate = Gate::new(1, Duration::ZERO);
        let place = gate.enter(PATIENCE).await;
        let second = tokio::time::timeout(Duration::from_secs(5), gate.enter(PATIENCE));
        assert!(second.await.is_err());
        drop(place);
        assert!(gate.enter(PATIENCE).await.unwrap().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn everyone_waits_where_the_service_asks_to() {
        let gate = Gate::new(10, Duration::ZERO);
        gate.hold(Duration::from_secs(7));
        let began = Instant::now();
        drop(gate.enter(PATIENCE).await.unwrap());
        assert_eq!(began.elapsed(), Duration::from_secs(7));
    }

    #[tokio::test(start_paused = true)]
    async fn tries_of_those_who_have_a_place_are_spaced_too() {
        let gate = Gate::new(10, Duration::from_millis(100));
        gate.hold(Duration::from_secs(7));
        let began = Instant::now();
        let turn = || async {
            gate.turn(PATIENCE).await.unwrap();
            began.elapsed()
        };
        let (one, two, three) = tokio::join!(turn(), turn(), turn());
        let mut at = [one, two, three].map(|it| it.as_millis());
        at.sort_unstable();
        assert_eq!(at, [7000, 7100, 7200]);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_what_is_longer_than_one_would() {
        let gate = Gate::new(10, Duration::ZERO);
        gate.hold(Duration::from_secs(3600));
        let began = Instant::now();
        let held = gate.enter(PATIENCE).await.map(drop).unwrap_err();
        assert_eq!(held, Held(Duration::from_secs(3600)));
        assert_eq!(began.elapsed(), Duration::ZERO);
    }
}
