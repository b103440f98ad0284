//! Tests of the server over HTTP with the local backend.

#![cfg(target_os = "linux")]
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "the lints know a test by its attribute, and what tests share has none"
)]

mod bounds;
mod control;
mod faults;
mod files;
mod interpreter;
mod killed;
mod life;
mod official;
mod ports;
mod processes;
mod sdk;
mod support;
mod tools;
mod watching;
