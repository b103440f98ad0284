//! The scripted server, driven by a bare HTTP client: each feature, and each way of going wrong.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "the lints know a test by its attribute, and what tests share has none"
)]

mod answers;
mod client;
mod dialects;
mod faults;
mod serving;
