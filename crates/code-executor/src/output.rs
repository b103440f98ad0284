//! Limits and results that the tools for code and commands share.

use std::ops::Not;

use cantle_core::sandbox::{Captured, CommandOutput, ExitStatus};
use cantle_core::tool::ToolOutput;
use serde_json::{Value, json};

/// Characters of each channel.
const MAX_OUTPUT: usize = 8000;
const TRUNCATED: &str = "\n... [truncated]";
const DEFAULT_TIMEOUT_S: f64 = 30.0;
const MAX_TIMEOUT_S: f64 = 60.0;

/// Returns the time limit of a call in seconds. Models write whole numbers as `30.0`, too.
pub(crate) fn time_limit(given: Option<f64>) -> u64 {
    let limit = given.unwrap_or(DEFAULT_TIMEOUT_S);
    limit.clamp(1.0, MAX_TIMEOUT_S) as u64
}

/// The result of a call.
#[derive(Default, serde::Serialize)]
pub(crate) struct CallResult {
    pub(crate) success: bool,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) exit_code: i32,
    /// The files that code made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) files: Option<Vec<Value>>,
    #[serde(skip_serializing_if = "Not::not")]
    pub(crate) timed_out: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) warnings: Vec<String>,
}

impl CallResult {
    /// The result of a command, which had a time limit in seconds.
    pub(crate) fn of(output: &CommandOutput, time_limit: u64) -> Self {
        let exit_code = match output.exit.status {
            ExitStatus::Code(code) => code,
            // As in Python's `returncode`.
            ExitStatus::Signal(signal) => -signal,
            _ => -1,
        };
        let mut result = Self {
            success: exit_code == 0,
            stdout: truncated(&output.stdout),
            stderr: truncated(&output.stderr),
            exit_code,
            timed_out: matches!(output.exit.status, ExitStatus::TimedOut { .. }),
            ..Self::default()
        };
        match output.exit.status {
            ExitStatus::TimedOut { .. } => {
                result.add_to_stderr(&format!("Execution timed out after {time_limit}s"));
            }
            status @ ExitStatus::LimitReached { .. } => {
                result.add_to_stderr(&format!("Execution {status}"));
            }
            _ => {}
        }
        result
    }

    /// Adds a line.
    pub(crate) fn add_to_stderr(&mut self, line: &str) {
        if !self.stderr.is_empty() && !self.stderr.ends_with('\n') {
            self.stderr.push('\n');
        }
        self.stderr.push_str(line);
    }

    pub(crate) fn into_output(self) -> ToolOutput {
        let mut output = crate::json(&json!(self));
        output.success = self.success;
        output
    }
}

/// The first characters of a channel.
fn truncated(channel: &Captured) -> String {
    let text = channel.text();
    match text.char_indices().nth(MAX_OUTPUT) {
        Some((end, _)) => format!("{}{TRUNCATED}", text.get(..end).unwrap_or_default()),
        None => text,
    }
}
