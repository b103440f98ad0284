//! The `cantle` binary from outside: what it does with a model from a script, with files, signals,
//! settings and everything that can be wrong with them.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "the lints know a test by its attribute, and what tests share has none"
)]

mod demo;
mod doctor;
mod exec;
mod failures;
mod interrupts;
mod lasting;
mod policy;
mod recordings;
mod report;
mod resume;
mod rules;
mod run;
mod serve;
mod serving;
mod settings;
#[path = "../support/mod.rs"]
mod support;
mod terminal;

use cantle_testkit::openai::{Script, ToolCall, Turn};
use serde_json::{Value, json};

/// A turn that runs a command.
fn command(command: &str) -> Turn {
    Turn::tool(ToolCall::new("code_exec", json!({ "cmd": command })))
}

/// A turn that finishes.
fn finish(reason: &str, paths: &[&str]) -> Turn {
    finish_with(json!({"reason": reason, "paths": paths}))
}

fn finish_with(params: Value) -> Turn {
    Turn::tool(ToolCall::new("finish", params))
}

/// A model that does nothing and finishes.
fn nothing_to_do() -> Script {
    Script::new().turn(finish("Nothing to do.", &[]))
}
