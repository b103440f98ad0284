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
    /// Before which nobody starts.
    next: Mutex<Option<Instant>>,
}

impl Gate {
    pub(crate) fn new(at_once: usize, spacing: Duration) -> Self {
        Self {
            places: Semaphore::new(at_once.clamp(1, Semaphore::MAX_PERMITS)),
            spacing,
            next: Mutex::new(None),
        }
    }

    /// Waits for a place and its time; the place is free again when what is returned is dropped.
    pub(crate) async fn enter(&self) -> Option<SemaphorePermit<'_>> {
        // It is never closed.
        let place = self.places.acquire().await.ok();
        loop {
            let wait_until = {
                let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
                let now = Instant::now();
                match *next {
                    Some(at) if at > now => at,
                    _ => {
                        *next = now.checked_add(self.spacing);
                        return place;
                    }
                }
            };
            sleep_until(wait_until).await;
        }
    }

    /// Lets nobody in for this long.
    pub(crate) fn hold(&self, wait: Duration) {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let until = Instant::now().checked_add(wait);
        *next = (*next).max(until);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::Gate;

    #[tokio::test(start_paused = true)]
    async fn starts_are_spaced() {
        let gate = Gate::new(10, Duration::from_millis(100));
        let began = Instant::now();
        for _ in 0..4 {
            drop(gate.enter().await);
        }
        assert_eq!(began.elapsed(), Duration::from_millis(300));
    }

    #[tokio::test(start_paused = true)]
    async fn a_place_is_waited_for() {
        let gate = Gate::new(1, Duration::ZERO);
        let place = gate.enter().await;
        let second = tokio::time::timeout(Duration::from_secs(5), gate.enter());
        assert!(second.await.is_err());
        drop(place);
        assert!(gate.enter().await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn everyone_waits_where_the_service_asks_to() {
        let gate = Gate::new(10, Duration::ZERO);
        gate.hold(Duration::from_secs(7));
        let began = Instant::now();
        drop(gate.enter().await);
        assert_eq!(began.elapsed(), Duration::from_secs(7));
    }
}
