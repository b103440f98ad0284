//! The tools as a session uses them, on a real sandbox of this machine.
#![cfg(target_os = "linux")]
#![expect(
    clippy::expect_used,
    reason = "clippy knows tests by their attribute, and not the functions they call"
)]

mod code_exec;
mod finish;
mod gated;
mod session;
mod user_input;
mod view_image;
