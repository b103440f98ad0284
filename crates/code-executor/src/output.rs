//! Limits that the tools for code and commands share.

use cantle_core::sandbox::Captured;

/// Characters of each channel.
const MAX_OUTPUT: usize = 8000;
const TRUNCATED: &str = "\n... [truncated]";
const DEFAULT_TIMEOUT_S: f64 = 30.0;
const MAX_TIMEOUT_S: f64 = 60.0;

/// Returns the time limit of a call in seconds. Models write whole numbers as `30.0`, too.
pub(crate) fn time_limit(given: Option<f64>) -> u64 {
    let limit = given.unwrap_or(DEFAULT_TIMEOUT_S);
    limit.clamp(1.0, MAX_TIMEOUT_S) as u64
}

/// The first characters of a channel.
pub(crate) fn truncated(channel: &Captured) -> String {
    let text = channel.text();
    match text.char_indices().nth(MAX_OUTPUT) {
        Some((end, _)) => format!("{}{TRUNCATED}", text.get(..end).unwrap_or_default()),
        None => text,
    }
}
