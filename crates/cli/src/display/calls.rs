//! Tool calls: what is run, its latest line while it runs, and what came of it.

use std::time::Duration;

use cantle::core::event::EventKind;
use serde_json::Value;

use super::look::Look;
use super::result::CommandResult;
use super::text::{Cleaner, clean, clock, duration, fit, one_line};
use crate::agent::FINISH;

/// Lines of a command, and of either end of its output, that are shown.
const COMMAND_LINES: usize = 3;
const OUTPUT_LINES: usize = 3;
/// Characters of a command's last line that are kept to be shown.
const LIVE_CHARS: usize = 500;
/// Columns that stand before a line of a command or its output.
const INDENT: usize = 4;

/// The calls that run.
#[derive(Debug, Default)]
pub(super) struct Calls {
    running: Vec<Running>,
    since: Duration,
    /// The call whose command stands last on the screen, so that its result needs no title.
    last: Option<String>,
}

#[derive(Debug)]
struct Running {
    call_id: String,
    title: String,
    cleaner: Cleaner,
    /// The line it wrote last; a newline at its end says that it is complete.
    last_line: String,
}

impl Calls {
    /// A call began; returns the lines that show it.
    pub(super) fn started(&mut self, event: &EventKind, now: Duration, look: Look) -> Vec<String> {
        let EventKind::ToolStarted {
            call_id,
            tool,
            arguments,
        } = event
        else {
            return Vec::new();
        };
        // That is the end of the run, and shown as that.
        if tool == FINISH {
            return Vec::new();
        }
        let call = call(tool, arguments);
        let mut lines = vec![String::new()];
        for (index, line) in look.fold(&call, COMMAND_LINES, 0).iter().enumerate() {
            let lead = if index == 0 {
                look.paint.cyan("$")
            } else {
                " ".to_owned()
            };
            let line = look.paint.bold(&look.cut(line, INDENT));
            lines.push(format!("  {lead} {line}"));
        }
        if self.running.is_empty() {
            self.since = now;
        }
        self.last = Some(call_id.clone());
        self.running.push(Running {
            call_id: call_id.clone(),
            title: one_line(&call),
            cleaner: Cleaner::default(),
            last_line: String::new(),
        });
        lines
    }

    /// A call wrote something.
    pub(super) fn output(&mut self, call_id: &str, text: &str) {
        let mut running = self.running.iter_mut();
        let Some(running) = running.find(|running| running.call_id == call_id) else {
            return;
        };
        let mut cleaned = std::mem::take(&mut running.last_line);
        running.cleaner.push(text, &mut cleaned);
        // While a new line is still empty, the one before it stays.
        let complete = cleaned.ends_with('\n');
        let line = cleaned.trim_end_matches('\n').rsplit('\n').next();
        running.last_line = line.unwrap_or_default().chars().take(LIVE_CHARS).collect();
        if complete {
            running.last_line.push('\n');
        }
    }

    /// A call ended; returns the lines that show what came of it.
    pub(super) fn finished(&mut self, event: &EventKind, look: Look) -> Vec<String> {
        let EventKind::ToolFinished {
            call_id,
            tool,
            result,
            success,
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
        let paint = look.paint;
        let mut lines = Vec::new();
        if self.last.as_ref() != Some(call_id) {
            let title = title.unwrap_or_else(|| one_line(tool));
            let title = look.cut(&title, INDENT);
            lines.extend([String::new(), paint.dim(&format!("  $ {title}"))]);
        }
        let (shown, end) = match CommandResult::read(result) {
            Some(result) => command_result(&result, look),
            None if *success => (output(result, look), paint.dim("done")),
            None => (output(result, look), paint.red("failed")),
        };
        lines.extend(shown.iter().map(|line| paint.dim(&format!("  │ {line}"))));
        let took = paint.dim(&format!(" · {}", duration(*took)));
        lines.push(format!("  {} {end}{took}", paint.dim("└")));
        self.last = None;
        lines
    }

    /// Something else was shown since.
    pub(super) fn interrupted(&mut self) {
        self.last = None;
    }

    /// The last line of each call that runs and has written one.
    pub(super) fn live_lines(&self, look: Look) -> impl Iterator<Item = String> {
        let lines = self
            .running
            .iter()
            .map(|running| running.last_line.trim_end());
        lines
            .filter(|line| !line.is_empty())
            .map(move |line| look.paint.dim(&format!("  │ {line}")))
    }

    /// What runs, and how long it has; `None` where nothing does.
    pub(super) fn activity(&self, now: Duration) -> Option<String> {
        let since = clock(now.saturating_sub(self.since));
        match &*self.running {
            [] => None,
            [one] => Some(format!("running {} {since}", fit(&one.title, 24))),
            several => Some(format!("running {} commands {since}", several.len())),
        }
    }
}

/// A call as a person would type it.
fn call(tool: &str, arguments: &Value) -> String {
    match (arguments.get("cmd"), arguments) {
        (Some(Value::String(command)), _) => clean(command.trim()),
        (_, Value::String(text)) => format!("{} {}", one_line(tool), one_line(text)),
        (_, json) => format!("{} {}", one_line(tool), one_line(&json.to_string())),
    }
}

/// The output of a command, and how it ended.
fn command_result(result: &CommandResult<'_>, look: Look) -> (Vec<String>, String) {
    let parts = [Some(result.stdout), Some(result.stderr), result.background];
    let lines = parts
        .into_iter()
        .flatten()
        .flat_map(|part| output(part, look));
    let end = match (result.exit_code, result.error_kind) {
        (Some("0"), _) => look.paint.green("exit 0"),
        (Some(code), _) => look.paint.yellow(&format!("exit {}", one_line(code))),
        (None, Some("timeout")) => look.paint.yellow("timed out"),
        (None, kind) => look.paint.yellow(&one_line(kind.unwrap_or("failed"))),
    };
    (lines.collect(), end)
}

fn output(text: &str, look: Look) -> Vec<String> {
    let text = clean(text);
    if text.trim().is_empty() {
        return Vec::new();
    }
    let lines = look.fold(&text, OUTPUT_LINES, OUTPUT_LINES);
    lines.iter().map(|line| look.cut(line, INDENT)).collect()
}
