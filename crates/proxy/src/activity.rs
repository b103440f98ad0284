//! Idle detection of a connection.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, sleep};

/// A stream that records when a byte last moved.
pub(super) struct Watched<S> {
    stream: S,
    activity: Activity,
}

/// The time at which a byte last moved.
#[derive(Clone)]
pub(super) struct Activity {
    start: Instant,
    millis: Arc<AtomicU64>,
}

impl<S> Watched<S> {
    pub(super) fn new(stream: S) -> (Self, Activity) {
        let activity = Activity {
            start: Instant::now(),
            millis: Arc::default(),
        };
        let watched = Self {
            stream,
            activity: activity.clone(),
        };
        (watched, activity)
    }
}

impl Activity {
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

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = ready!(Pin::new(&mut self.stream).poll_read(cx, buffer));
        self.activity.record();
        Poll::Ready(read)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes));
        self.activity.record();
        Poll::Ready(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
