//! Limits that the tools for code and commands share.

use cantle_core::sandbox::Captured;

/// Characters of each channel.
const MAX_OUTPUT: usize = 8000;
const TRUNCATED: &str = "\n... [truncated]";
const DEFAULT_TIMEOUT_S: i64 = 30;
const MAX_TIMEOUT_S: i64 = 60;

/// Returns the time limit of a call in seconds.
pub(crate) fn time_limit(given: Option<i64>) -> u64 {
    let limit = given.unwrap_or(DEFAULT_TIMEOUT_S).clamp(1, MAX_TIMEOUT_S);
    limit.unsigned_abs()
}

/// The first characters of a channel.
pub(crate) fn truncated(channel: &Captured) -> String {
    let text = channel.text();
    match text.char_indices().nth(MAX_OUTPUT) {
        Some((end, _)) => format!("{}{TRUNCATED}", text.get(..end).unwrap_or_default()),
        None => text,
    }
}
