//! The runtime's clock, as the lifecycle of a command is told it.

use std::future::pending;
use std::time::Instant;

/// Now.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Waits for this time; for ever, where there is none.
pub(crate) async fn reached(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time.into()).await,
        None => pending().await,
    }
}
