//! Rendering of command results for the model, in Stirrup's format.

use std::fmt::{self, Write as _};

use super::exit::format_limit;
use super::{Captured, ChannelReport, CommandOutput, Exit, ExitStatus, SpillFile};
use crate::policy::PolicyField;

/// Limits for [`Exit::notes`] in a rendered result.
const MAX_NOTES: usize = 8;
const MAX_NOTE_CHARS: usize = 400;

/// Limits for a rendered result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RenderLimits {
    /// Maximum characters of each output channel.
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
/// A command that exited has `exit_code`, `stdout` and `stderr`. One that was stopped has
/// `error_kind`, `details`, the output so far and `advice`. The middle of a long channel is replaced
/// by a line with the total size and the spill file. [`Exit::notes`] are added to `advice`.
pub fn render_command(output: &CommandOutput, limits: RenderLimits) -> String {
    let exit = &output.exit;
    let stopped =
        |kind: &str, details: String| vec![("error_kind", kind.to_owned()), ("details", details)];
    let mut elements = match exit.status {
        ExitStatus::TimedOut { limit } => stopped(
            "timeout",
            format!(
                "The command did not finish within {} s. It was stopped with everything it started; its output so far is kept.",
                limit.as_secs_f64()
            ),
        ),
        ExitStatus::Cancelled => stopped(
            "cancelled",
            "The command was stopped with everything it started.".to_owned(),
        ),
        ExitStatus::LimitReached { field, limit } => stopped(
            "limit_reached",
            format!(
                "The command reached the limit of {field}, which is {}. It was stopped with everything it started; its output so far is kept.",
                format_limit(field, limit)
            ),
        ),
        status @ (ExitStatus::Code(_) | ExitStatus::Signal(_)) => {
            vec![("exit_code", status.shell_code().to_string())]
        }
    };
    let channel = |captured, report: &ChannelReport| {
        render_channel(captured, report.spilled.as_ref(), limits)
    };
    elements.push(("stdout", channel(&output.stdout, &exit.stdout)));
    elements.push(("stderr", channel(&output.stderr, &exit.stderr)));
    if let ExitStatus::Signal(signal) = exit.status {
        let details = format!("The command was killed by signal {signal}.");
        elements.push(("details", details));
    }
    if !exit.background.is_empty() {
        let mut list = String::from("still running:");
        for process in &exit.background {
            let _ = write!(list, "\n{} {}", process.pid, process.command);
        }
        elements.push(("background", list));
    }
    let advice = advice(exit);
    if !advice.is_empty() {
        elements.push(("advice", advice));
    }
    shell_results(elements)
}

/// Renders the refusal to run a command: `kind` is an identifier such as `command_not_allowed`.
pub fn render_refusal(kind: &str, details: &str, advice: &str) -> String {
    shell_results([
        ("error_kind", kind),
        ("details", details),
        ("advice", advice),
    ])
}

fn shell_results<T: fmt::Display>(elements: impl IntoIterator<Item = (&'static str, T)>) -> String {
    let mut text = String::from("<shell_results>");
    for (name, content) in elements {
        let _ = write!(text, "\n<{name}>{content}</{name}>");
    }
    text.push_str("\n</shell_results>");
    text
}

/// Collects the lines of advice, without duplicates.
fn advice(exit: &Exit) -> String {
    let own = match exit.status {
        ExitStatus::TimedOut { .. } => Some(
            "Run long work in the background (`command > log 2>&1 &`) and look at its log later, or split it into smaller steps.",
        ),
        ExitStatus::LimitReached { field, .. } => Some(limit_advice(field)),
        _ => None,
    };
    let mut lines: Vec<String> = own.into_iter().map(str::to_owned).collect();
    for note in &exit.notes {
        let words: Vec<&str> = note.split_whitespace().collect();
        let line: String = words.join(" ").chars().take(MAX_NOTE_CHARS).collect();
        if !line.is_empty() && !lines.contains(&line) {
            lines.push(line);
        }
    }
    let shown = MAX_NOTES + usize::from(own.is_some());
    if lines.len() > shown {
        let more = lines.len() - shown;
        lines.truncate(shown);
        lines.push(format!("… and {more} more such notes."));
    }
    lines.join("\n")
}

/// Returns advice on staying below a limit.
pub(super) fn limit_advice(field: PolicyField) -> &'static str {
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

/// Renders an output channel for the model: the middle of a long one is replaced by a line with its size and the file
/// that has all of it.
pub fn render_channel(
    captured: &Captured,
    spilled: Option<&SpillFile>,
    limits: RenderLimits,
) -> String {
    let (head, tail) = if captured.omitted_bytes == 0 {
        let whole = captured.text();
        if whole.chars().count() <= limits.channel_chars {
            return whole;
        }
        (whole.clone().into(), whole.into())
    } else {
        let text = String::from_utf8_lossy;
        (text(&captured.head), text(&captured.tail))
    };
    let (head, tail) = (first_chars(&head, limits), last_chars(&tail, limits));
    truncated(head, tail, captured, spilled)
}

fn truncated(head: &str, tail: &str, captured: &Captured, spilled: Option<&SpillFile>) -> String {
    let total = captured.total_bytes();
    let mut note = format!("… [the output has {total} bytes; its middle is left out here");
    if let Some(spill) = spilled {
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
