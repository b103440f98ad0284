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

mod chat;
mod crash_recovery;
mod demo;
mod demo_report;
mod docs;
mod doctor;
mod exec;
mod exports;
mod failures;
mod files;
mod going_on;
mod in_place;
mod interrupts;
#[cfg(any(feature = "azure", feature = "s3"))]
mod killed_deliveries;
mod limits;
mod mcp;
mod mcp_clients;
mod mcp_stdio;
mod model_settings;
mod outside;
mod policy;
mod python;
mod recordings;
mod reports;
mod resume;
mod run;
mod serve;
mod serve_interpreter;
mod serve_mcp;
mod serve_tools;
mod settings;
mod stores;
mod sub_agents;
#[path = "../support/mod.rs"]
mod support;
mod terminal;
mod transcripts;
mod trust;
mod web;
mod workdir;

use cantle_testkit::openai::{Script, ToolCall, Turn};
use serde_json::{Value, json};

/// A GIF of one pixel.
const DOT: &[u8] =
    b"GIF89a\x01\0\x01\0\x80\0\0\xff\xff\xff\0\0\0,\0\0\0\0\x01\0\x01\0\0\x02\x02D\x01\0;";

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
