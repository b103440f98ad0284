//! Timeouts of HTTP clients.

use std::time::Duration;

/// Timeouts of an HTTP client. Each limits a period of silence, not the whole call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timeouts {
    /// Establishing a connection, TLS included. 10 seconds by default.
    pub connect: Duration,
    /// From the start of a call to the response's headers. 10 minutes by default, because a response
    /// that is not streamed is sent only once it is complete.
    pub first_byte: Duration,
    /// Between two chunks of a response, comments included. 5 minutes by default.
    pub idle: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            first_byte: Duration::from_secs(600),
            idle: Duration::from_secs(300),
        }
    }
}

/// Formats a timeout for an error message.
pub(super) fn seconds(duration: Duration) -> String {
    format!("{} s", duration.as_secs_f64())
}
