//! How long is waited for what.

use std::time::Duration;

/// How long a client waits. Each is a bound on silence, not on the whole call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timeouts {
    /// For a connection, TLS included. 10 seconds by default.
    pub connect: Duration,
    /// From the start of a call to the response's first byte. 10 minutes by default: what is not
    /// streamed is not sent before all of it is there.
    pub first_byte: Duration,
    /// Between two pieces of a response; a provider's comments count. 5 minutes by default.
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
