//! How a command's result reads to the model: one shape for every backend, Stirrup's.

use std::fmt::Write as _;

use super::{Captured, ChannelReport, CommandOutput, ExitStatus};

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
/// first and last half, with a line between that says how much there was and where it is.
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
    if let ExitStatus::TimedOut { .. } = exit.status {
        let advice = "Run long work in the background (`command > log 2>&1 &`) and look at its log later, or split it into smaller steps.";
        element(&mut text, "advice", advice);
    }
    text.push_str("\n</shell_results>");
    text
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
