//! The Chat Completions client against a scripted server.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "the lints know a test by its attribute, and what tests share has none"
)]

mod answers;
mod conformance;
mod failures;
mod leaks;
mod options;
mod overflow;
mod proxy;
mod support;
mod tls;
