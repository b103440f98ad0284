//! Tests of the remote backend with `cantle-server` over the local backend: real processes and files.

#![cfg(target_os = "linux")]
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "the lints know a test by its attribute, and what tests share has none"
)]

mod conformance;
mod errors;
mod life;
mod support;
