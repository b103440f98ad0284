//! Tests of the scripted server with a plain HTTP client: every feature and fault.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "shared test code has no `#[test]` attribute"
)]

mod answers;
mod client;
mod dialects;
mod faults;
mod serving;
