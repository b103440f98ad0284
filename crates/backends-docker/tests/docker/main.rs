//! Tests of the Docker backend with a real engine.
//!
//! Without an engine in the environment they report that they are skipped; `cargo xtask test` starts one.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "the lints know a test by its attribute, and what tests share has none"
)]

mod attached;
mod engine;
mod images;
mod killed;
mod large;
mod life;
mod own_engine;
mod plain;
mod support;
mod walls;
