//! The crate as its users see it.
#![expect(
    clippy::expect_used,
    reason = "clippy knows tests by their attribute, and not the functions they call"
)]

mod commands;
mod history;
mod memory_sandbox;
mod outputs;
mod stirrup;
#[cfg(feature = "macros")]
mod tool_macro;
mod transfers;
