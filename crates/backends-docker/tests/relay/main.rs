//! What is promised of commands and files at the other end of a stream, tried on a relay that runs
//! on this host: no container and no engine is needed for it.

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
mod support;
