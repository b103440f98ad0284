//! The remote backend against `cantle-server` over the local backend: two halves of one protocol, and
//! real processes and files at the end of it.

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
