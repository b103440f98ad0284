//! Display of tool calls: the command, its latest line of output while it runs, and its result.

use std::time::Duration;

use cantle::core::escape::{for_decision, for_display};
use cantle::core::event::EventKind;
use serde_json::Value;

use super::command_result::CommandResult;
use super::style::Style;
use crate::agent::FINISH;
use crate::text::{Cleaner, clean, clock, duration, fit, one_line};

/// Lines of a command, and of the head and the tail of its output, that are displayed.
const COMMAND_LINES: usize = 3;
const OUTPUT_LINES: usize = 3;
/// Maximum number of characters kept of a running command's last line.
const LIVE_CHARS: usize = 500;
/// Columns before a line of a command or its output.
const INDENT: usize = 4;

/// The running calls of a run.
#[derive(Debug, Default)]
pub(super) struct CallsView {
    running: Vec<RunningCall>,
    since: Duration,
    /// The call whose command is the last text on the screen, so that its result needs no title.
    last: Option<String>,
}

#[derive(Debug)]
struct RunningCall {
    call_id: String,
    title: String,
    cleaner: Cleaner,
    /// Its latest line of output, with a newline if it is complete.
    last_line: String,
}

impl CallsView {
    /// Records the start of a call, and returns the lines that display it.
    pub(super) fn started(
        &mut self,
        event: &EventKind,
        now: Duration,
        style: Style,
    ) -> Vec<String> {
        let EventKind::ToolStarted {
            call_id,
            tool,
            arguments,
        } = event
        else {
            return Vec::new();
        };
        // Displayed as the end of the run.
        if tool == FINISH {
            return Vec::new();
        }
        let call = call_text(tool, arguments);
        let mut lines = vec![String::new()];
        lines.extend(command_lines(&call, style));
        if self.running.is_empty() {
            self.since = now;
        }
        self.last = Some(call_id.clone());
        self.running.push(RunningCall {
            call_id: call_id.clone(),
            title: one_line(&call),
            cleaner: Cleaner::default(),
            last_line: String::new(),
        });
        lines
    }

    /// Records output of a call.
    pub(super) fn output(&mut self, call_id: &str, text: &str) {
        let mut running = self.running.iter_mut();
        let Some(running) = running.find(|running| running.call_id == call_id) else {
            return;
        };
        let mut cleaned = std::mem::take(&mut running.last_line);
        running.cleaner.push(text, &mut cleaned);
        // A complete line is displayed until the next one has text.
        let complete = cleaned.ends_with('\n');
        let line = cleaned.trim_end_matches('\n').rsplit('\n').next();
        running.last_line = line.unwrap_or_default().chars().take(LIVE_CHARS).collect();
        if complete {
            running.last_line.push('\n');
        }
    }

    /// Records the end of a call, and returns the lines that display its result.
    pub(super) fn finished(&mut self, event: &EventKind, style: Style) -> Vec<String> {
        let EventKind::ToolFinished {
            call_id,
            tool,
            result,
            success,
            arguments,
            duration: took,
            ..
        } = event
        else {
            return Vec::new();
        };
        let mut running = self.running.iter();
        let known = running.position(|running| running.call_id == *call_id);
        let title = known.map(|index| self.running.remove(index).title);
        if tool == FINISH && *success {
            return Vec::new();
        }
        let paint = style.paint;
        let mut lines = Vec::new();
        if let Some(arguments) = arguments {
            lines.push(String::new());
            lines.extend(command_lines(&call_text(tool, arguments), style));
        } else if self.last.as_ref() != Some(call_id) {
            let title = title.unwrap_or_else(|| one_line(tool));
            let title = style.truncate(&title, INDENT);
            lines.extend([String::new(), paint.dim(&format!("  $ {title}"))]);
        }
        let (output, end) = match CommandResult::parse(result) {
            Some(result) => command_result(&result, style),
            None if *success => (output_lines(result, style), paint.dim("done")),
            None if arguments.is_some() => (output_lines(result, style), paint.red("not run")),
            None => (output_lines(result, style), paint.red("failed")),
        };
        lines.extend(output.iter().map(|line| paint.dim(&format!("  │ {line}"))));
        let took = paint.dim(&format!(" · {}", duration(*took)));
        lines.push(format!("  {} {end}{took}", paint.dim("└")));
        self.last = None;
        lines
    }

    /// Records that other text was displayed.
    pub(super) fn interrupted(&mut self) {
        self.last = None;
    }

    /// Returns the latest line of each running call with output.
    pub(super) fn live_lines(&self, style: Style) -> impl Iterator<Item = String> {
        let lines = self
            .running
            .iter()
            .map(|running| running.last_line.trim_end());
        lines
            .filter(|line| !line.is_empty())
            .map(move |line| style.paint.dim(&format!("  │ {line}")))
    }

    /// Formats what runs and for how long; returns `None` if nothing does.
    pub(super) fn activity(&self, now: Duration) -> Option<String> {
        let since = clock(now.saturating_sub(self.since));
        match &*self.running {
            [] => None,
            [one] => Some(format!("running {} {since}", fit(&one.title, 24))),
            several => Some(format!("running {} commands {since}", several.len())),
        }
    }
}

/// Formats a call as one would type it.
fn call_text(tool: &str, arguments: &Value) -> String {
    match (arguments.get("cmd"), arguments) {
        (Some(Value::String(command)), _) => for_display(command.trim()),
        (_, Value::String(text)) => format!("{} {}", for_decision(tool), for_display(text)),
        (_, json) => format!("{} {}", for_decision(tool), for_decision(&json.to_string())),
    }
}

/// Formats a command, folded.
fn command_lines(call: &str, style: Style) -> Vec<String> {
    let folded = style.fold(call, COMMAND_LINES, 0);
    let lines = folded.iter().enumerate().map(|(index, line)| {
        let lead = if index == 0 {
            style.paint.cyan("$")
        } else {
            " ".to_owned()
        };
        let line = style.paint.bold(&style.truncate(line, INDENT));
        format!("  {lead} {line}")
    });
    lines.collect()
}

/// Formats the output of a command and how it ended.
fn command_result(result: &CommandResult<'_>, style: Style) -> (Vec<String>, String) {
    let parts = [Some(result.stdout), Some(result.stderr), result.background];
    let lines = parts
        .into_iter()
        .flatten()
        .flat_map(|part| output_lines(part, style));
    let end = match (result.exit_code, result.error_kind) {
        (Some("0"), _) => style.paint.green("exit 0"),
        (Some(code), _) => style.paint.yellow(&format!("exit {}", one_line(code))),
        (None, Some("timeout")) => style.paint.yellow("timed out"),
        (None, kind) => {
            let limit = result
                .limit
                .map(|it| format!("stopped at the limit of {it}"));
            let end = limit.as_deref().or(kind).unwrap_or("failed");
            style.paint.yellow(&one_line(end))
        }
    };
    (lines.collect(), end)
}

fn output_lines(text: &str, style: Style) -> Vec<String> {
    let text = clean(text);
    if text.trim().is_empty() {
        return Vec::new();
    }
    let lines = style.fold(&text, OUTPUT_LINES, OUTPUT_LINES);
    lines
        .iter()
        .map(|line| style.truncate(line, INDENT))
        .collect()
}
