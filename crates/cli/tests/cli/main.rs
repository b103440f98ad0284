//! Tests of the `cantle` binary with scripted models, files, signals and settings.
#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "clippy exempts test functions only, not their helpers"
)]

mod crash_recovery;
mod demo;
mod demo_report;
mod docs;
mod doctor;
mod exec;
mod failures;
mod interrupts;
mod limits;
mod model_settings;
mod policy;
mod recordings;
mod resume;
mod run;
mod serve;
mod settings;
#[path = "../support/mod.rs"]
mod support;
mod terminal;
mod trust;

use cantle_testkit::openai::{Script, ToolCall, Turn};
use serde_json::{Value, json};

/// Returns a turn that runs a command.
fn command(command: &str) -> Turn {
    Turn::tool(ToolCall::new("code_exec", json!({ "cmd": command })))
}

/// Returns a turn that finishes.
fn finish(reason: &str, paths: &[&str]) -> Turn {
    finish_with(json!({"reason": reason, "paths": paths}))
}

fn finish_with(params: Value) -> Turn {
    Turn::tool(ToolCall::new("finish", params))
}

/// Returns a model that finishes immediately.
fn nothing_to_do() -> Script {
    Script::new().turn(finish("Nothing to do.", &[]))
}
