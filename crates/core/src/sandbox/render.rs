//! How a command's result reads to the model: one shape for every backend, Stirrup's.

use std::fmt::Write as _;

use super::exit::amount;
use super::{Captured, ChannelReport, CommandOutput, Exit, ExitStatus};
use crate::policy::PolicyField;

/// How much of [`Exit::notes`] is shown.
const NOTES: usize = 8;
const NOTE_CHARS: usize = 400;

/// How much of a result the model sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RenderLimits {
    /// Characters of each channel.
    pub channel_chars: usize,
}

impl Default for RenderLimits {
    fn default() -> Self {
        Self {
            channel_chars: 20_000,
        }
    }
}

/// Renders a command's result for the model.
///
/// A command that ended by itself has `exit_code`, `stdout` and `stderr`. One that was stopped has
/// `error_kind`, `details`, the output so far and `advice`. A channel that is too long keeps its
/// first and last half, with a line between that says how much there was and where it is. What the
/// backend notes about the boundary is a line of `advice` each, however it ended.
#[must_use]
pub fn render_command(output: &CommandOutput, limits: RenderLimits) -> String {
    let exit = &output.exit;
    let mut text = String::from("<shell_results>");
    match exit.status {
        ExitStatus::TimedOut { limit } => {
            element(&mut text, "error_kind", "timeout");
            let seconds = limit.as_secs_f64();
            let details = format!(
                "The command did not finish within {seconds} s. It was stopped with everything it started; its output so far is kept."
            );
            element(&mut text, "details", &details);
        }
        ExitStatus::Cancelled => {
            element(&mut text, "error_kind", "cancelled");
            element(
                &mut text,
                "details",
                "The command was stopped with everything it started.",
            );
        }
        ExitStatus::LimitReached { field, limit } => {
            element(&mut text, "error_kind", "limit_reached");
            let amount = amount(field, limit);
            let details = format!(
                "The command reached the limit of {field}, which is {amount}. It was stopped with everything it started; its output so far is kept."
            );
            element(&mut text, "details", &details);
        }
        ExitStatus::Code(_) | ExitStatus::Signal(_) => {
            element(
                &mut text,
                "exit_code",
                &exit.status.shell_code().to_string(),
            );
        }
    }
    element(
        &mut text,
        "stdout",
        &channel(&output.stdout, &exit.stdout, limits),
    );
    element(
        &mut text,
        "stderr",
        &channel(&output.stderr, &exit.stderr, limits),
    );
    if let ExitStatus::Signal(signal) = exit.status {
        element(
            &mut text,
            "details",
            &format!("The command was killed by signal {signal}."),
        );
    }
    if !exit.background.is_empty() {
        let mut list = String::from("still running:");
        for process in &exit.background {
            let _ = write!(list, "\n{} {}", process.pid, process.command);
        }
        element(&mut text, "background", &list);
    }
    let advice = advice(exit);
    if !advice.is_empty() {
        element(&mut text, "advice", &advice);
    }
    text.push_str("\n</shell_results>");
    text
}

/// Renders for the model why a command was not run at all: `kind` is one word
/// (`command_not_allowed`), `advice` says what to do instead.
#[must_use]
pub fn render_refusal(kind: &str, details: &str, advice: &str) -> String {
    let mut text = String::from("<shell_results>");
    element(&mut text, "error_kind", kind);
    element(&mut text, "details", details);
    element(&mut text, "advice", advice);
    text.push_str("\n</shell_results>");
    text
}

/// What to do instead, a line each and none twice.
fn advice(exit: &Exit) -> String {
    let own = match exit.status {
        ExitStatus::TimedOut { .. } => Some(
            "Run long work in the background (`command > log 2>&1 &`) and look at its log later, or split it into smaller steps.",
        ),
        ExitStatus::LimitReached { field, .. } => Some(instead(field)),
        _ => None,
    };
    let mut lines: Vec<String> = own.into_iter().map(str::to_owned).collect();
    for note in &exit.notes {
        let words: Vec<&str> = note.split_whitespace().collect();
        let line: String = words.join(" ").chars().take(NOTE_CHARS).collect();
        if !line.is_empty() && !lines.contains(&line) {
            lines.push(line);
        }
    }
    let shown = NOTES + usize::from(own.is_some());
    if lines.len() > shown {
        let more = lines.len() - shown;
        lines.truncate(shown);
        lines.push(format!("… and {more} more such notes."));
    }
    lines.join("\n")
}

/// What a command can do that stays below a limit.
pub(super) fn instead(field: PolicyField) -> &'static str {
    match field {
        PolicyField::CpuTime => {
            "The policy limits cpu_time for each command: split the work into several commands, or use a faster way."
        }
        PolicyField::Memory => {
            "The policy limits memory for everything that runs: work on the data in pieces, or run fewer processes at once."
        }
        PolicyField::Processes => {
            "The policy limits processes: run fewer at once (`make -j2`, smaller pools), and end those in the background."
        }
        PolicyField::FileSize => {
            "The policy limits file_size: write several smaller files, or compress what is written."
        }
        PolicyField::Disk => {
            "The policy limits disk for all files together: remove what is no longer needed before you write more."
        }
        PolicyField::Inodes => {
            "The policy limits inodes, the number of files: remove what is no longer needed, or keep many small files in one archive."
        }
        PolicyField::OpenFiles => {
            "The policy limits open_files for each process: close files as soon as they are read."
        }
        PolicyField::Output => {
            "The policy limits output: send what is long to a file, and look at parts of it (`head`, `grep`)."
        }
        _ => "The policy does not allow more: do the work in smaller steps.",
    }
}

fn element(text: &mut String, name: &str, content: &str) {
    let _ = write!(text, "\n<{name}>{content}</{name}>");
}

fn channel(captured: &Captured, report: &ChannelReport, limits: RenderLimits) -> String {
    if captured.omitted_bytes == 0 {
        let whole = captured.text();
        if whole.chars().count() <= limits.channel_chars {
            return whole;
        }
        return cut(
            first_chars(&whole, limits),
            last_chars(&whole, limits),
            captured,
            report,
        );
    }
    let head = String::from_utf8_lossy(&captured.head);
    let tail = String::from_utf8_lossy(&captured.tail);
    cut(
        first_chars(&head, limits),
        last_chars(&tail, limits),
        captured,
        report,
    )
}

fn cut(head: &str, tail: &str, captured: &Captured, report: &ChannelReport) -> String {
    let total = captured.total_bytes();
    let mut note = format!("… [the output has {total} bytes; its middle is left out here");
    if let Some(spill) = &report.spilled {
        let _ = match spill.size_bytes {
            size if size >= total => write!(note, "; all of it is in {}", spill.path),
            size => write!(note, "; its first {size} bytes are in {}", spill.path),
        };
    }
    format!("{head}\n{note}] …\n{tail}")
}

fn first_chars(text: &str, limits: RenderLimits) -> &str {
    let end = text
        .char_indices()
        .nth(limits.channel_chars / 2)
        .map_or(text.len(), |(at, _)| at);
    text.get(..end).unwrap_or(text)
}

fn last_chars(text: &str, limits: RenderLimits) -> &str {
    let keep = limits.channel_chars / 2;
    let Some(last) = keep.checked_sub(1) else {
        return "";
    };
    let start = text.char_indices().rev().nth(last).map_or(0, |(at, _)| at);
    text.get(start..).unwrap_or(text)
}

#[cfg(test)]
mod tests;
