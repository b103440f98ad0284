//! Idle detection of a connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, sleep};
use tokio_util::io::{InspectReader, InspectWriter};

/// The time at which a byte last moved.
#[derive(Clone)]
pub(super) struct Activity {
    start: Instant,
    millis: Arc<AtomicU64>,
}

impl Activity {
    /// Watches a stream; returns it with the activity that it records.
    pub(super) fn watch<S>(stream: S) -> (impl AsyncRead + AsyncWrite + Unpin + Send, Self)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send,
    {
        let activity = Self {
            start: Instant::now(),
            millis: Arc::default(),
        };
        let (reads, writes) = (activity.clone(), activity.clone());
        let watched = InspectReader::new(stream, move |_: &[u8]| reads.record());
        let watched = InspectWriter::new(watched, move |_: &[u8]| writes.record());
        (watched, activity)
    }

    fn record(&self) {
        let millis = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.millis.store(millis, Ordering::Relaxed);
    }

    /// Returns once no byte has moved for `time`.
    pub(super) async fn idle_for(&self, time: Duration) {
        loop {
            let last = Duration::from_millis(self.millis.load(Ordering::Relaxed));
            let idle = self.start.elapsed().saturating_sub(last);
            match time.checked_sub(idle) {
                Some(left) if !left.is_zero() => sleep(left).await,
                _ => return,
            }
        }
    }
}
