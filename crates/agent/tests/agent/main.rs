//! The agent as its users see it: sessions, runs, outcomes.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a helper that can't go on fails its test"
)]

mod files;
mod runs;
mod sessions;
mod support;
