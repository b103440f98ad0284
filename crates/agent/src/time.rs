//! Times in the form of histories and journals.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the current time in seconds since the Unix epoch.
pub(crate) fn unix_seconds() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs_f64()
}
