//! Tests of the local backend with real processes and files.

#![cfg(confined)]
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the lints know a test by its attribute, and what tests share has none"
)]

mod background;
mod closing;
mod commands;
mod confinement;
mod conformance;
mod defaults;
mod durable;
mod ending;
mod files;
mod groups;
mod images;
mod killed;
mod measured;
mod notices;
mod opening;
mod orders;
mod output;
mod paths;
mod programs;
mod starved;
mod support;
mod terminal;
mod walks;
