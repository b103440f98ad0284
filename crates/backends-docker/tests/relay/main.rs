//! Tests of the relay's client with a relay on this host, without a container or an engine.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "the lints know a test by its attribute, and what tests share has none"
)]

mod bare;
mod conformance;
mod directories;
mod ending;
mod flow;
mod hostile;
mod proxy;
mod support;
