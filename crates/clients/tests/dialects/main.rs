//! Behaviour of every dialect, and of Messages and Responses alone, against a scripted server.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "the lints know a test by its attribute, and what tests share has none"
)]

mod answers;
mod broken;
mod conformance;
mod litellm;
mod mistakes;
mod prefix;
mod requests;
mod responses;
mod support;
