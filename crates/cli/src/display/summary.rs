//! The summary at the end of a run: status, problems, files, tokens and tools.

use std::fmt::Write as _;
use std::time::Duration;

use cantle::agent::Outcome;
use cantle::core::escape::for_decision;
use cantle::core::event::RunStatus;
use cantle::core::ledger::Ledger;

use super::style::Paint;
use crate::text::{clean, dollars, duration, one_line, plural, size, tokens};
use crate::unfinished::Unfinished;

/// The summary of a run.
#[derive(Debug)]
pub(crate) struct Summary {
    status: RunStatus,
    turns: u32,
    duration: Duration,
    /// Why the run did not finish and what to try, a line each.
    pub(crate) problems: Vec<String>,
    /// Saved output files with their sizes.
    files: Vec<(String, u64)>,
    /// Refused output files with the reasons.
    refused: Vec<(String, String)>,
    ledger: Ledger,
    /// The saved and the lost parts of an unfinished run.
    pub(crate) unfinished: Unfinished,
}

impl Summary {
    pub(crate) fn of(outcome: &Outcome) -> Self {
        let error = outcome.error.as_ref();
        let message = error.map(ToString::to_string);
        let advice = error.and_then(|error| error.advice()).map(str::to_owned);
        let saved = outcome.outputs.saved.iter();
        let refused = outcome.outputs.refused.iter();
        Self {
            status: outcome.status(),
            turns: outcome.turns,
            duration: outcome.duration,
            problems: message.into_iter().chain(advice).collect(),
            files: saved
                .map(|file| (file.path.display().to_string(), file.size_bytes))
                .collect(),
            refused: refused
                .map(|refusal| (refusal.source.clone(), refusal.reason.clone()))
                .collect(),
            ledger: outcome.ledger.clone(),
            unfinished: Unfinished::default(),
        }
    }

    /// Formats the status, and the problems if the run did not finish.
    pub(super) fn head(&self, paint: Paint) -> String {
        let name = status_text(self.status);
        let verdict = match self.status {
            RunStatus::Finished => paint.green(&format!("✓ {name}")),
            RunStatus::AnsweredInText => paint.yellow(&format!("! {name}")),
            _ => paint.red(&format!("✗ {name}")),
        };
        let turns = plural(u64::from(self.turns), "turn", "turns");
        let facts = paint.dim(&format!(" · {turns} · {}", duration(self.duration)));
        let mut text = format!("\n{verdict}{facts}\n");
        // The message of a cancelled run repeats its status.
        let skip = usize::from(self.status == RunStatus::Cancelled);
        let problems = self.problems.get(skip..).unwrap_or_default();
        if !problems.is_empty() {
            text.push('\n');
        }
        for line in problems.iter().flat_map(|part| part.split('\n')) {
            let _ = writeln!(text, "  {}", clean(line));
        }
        text
    }

    /// Formats the table of files, tokens and tools.
    pub(super) fn details(&self, paint: Paint) -> String {
        let mut rows: Vec<(&str, String)> = Vec::new();
        let width = self.files.iter().map(|(path, _)| path.chars().count());
        let width = width.max().unwrap_or_default();
        for (path, size_bytes) in &self.files {
            let size = paint.dim(&size(*size_bytes));
            rows.push(("files", format!("{:width$}  {size}", for_decision(path))));
        }
        for (source, reason) in &self.refused {
            let line = format!("{}: {}", one_line(source), one_line(reason));
            rows.push(("refused", paint.yellow(&line)));
        }
        rows.extend(usage(&self.ledger).map(|usage| ("tokens", usage)));
        for (model, speed) in self.ledger.output_tokens_per_second() {
            let model = one_line(model);
            rows.push((
                "speed",
                format!("{speed:.1} tokens/s  {}", paint.dim(&model)),
            ));
        }
        let width = self.ledger.tools.keys().map(|name| name.chars().count());
        let width = width.max().unwrap_or_default();
        for (name, account) in &self.ledger.tools {
            let calls = plural(account.calls, "call", "calls");
            let failures = format!("{} failed", account.failures);
            let failures = match account.failures {
                0 => paint.dim(&failures),
                _ => paint.yellow(&failures),
            };
            let cancelled = match account.cancelled {
                0 => String::new(),
                count => paint.yellow(&format!(" · {count} cancelled")),
            };
            let took = duration(account.duration);
            let line = format!(
                "{:width$}  {calls} · {failures}{cancelled} · {took}",
                one_line(name)
            );
            rows.push(("tools", line));
        }
        let Unfinished { kept, lost } = &self.unfinished;
        rows.extend(kept.iter().map(|line| ("kept", clean(line))));
        rows.extend(lost.iter().map(|line| ("lost", paint.yellow(&clean(line)))));

        if rows.is_empty() {
            return String::new();
        }
        let mut text = String::from("\n");
        let mut last = "";
        for (name, row) in rows {
            let label = if name == last { "" } else { name };
            last = name;
            let _ = writeln!(text, "  {}  {row}", paint.dim(&format!("{label:7}")));
        }
        text
    }

    /// Formats problems and refused files as plain lines, for `--quiet` and `--json`.
    pub(super) fn problem_lines(&self) -> String {
        let mut text = String::new();
        for (index, line) in self.problems.iter().enumerate() {
            let lead = if index == 0 { "cantle: " } else { "  " };
            let _ = writeln!(text, "{lead}{}", clean(line));
        }
        for (source, reason) in &self.refused {
            let (source, reason) = (one_line(source), one_line(reason));
            let _ = writeln!(
                text,
                "cantle: the output file {source} was refused: {reason}"
            );
        }
        for line in &self.unfinished.kept {
            let _ = writeln!(text, "  kept: {}", clean(line));
        }
        for line in &self.unfinished.lost {
            let _ = writeln!(text, "  lost: {}", clean(line));
        }
        text
    }
}

/// Formats a status.
pub(crate) fn status_text(status: RunStatus) -> &'static str {
    match status {
        RunStatus::Finished => "finished",
        RunStatus::AnsweredInText => "answered in text, without finishing",
        RunStatus::LimitReached => "a limit was reached",
        RunStatus::Cancelled => "cancelled",
        RunStatus::ModelFailed => "the model failed",
        RunStatus::SandboxFailed => "the sandbox failed",
        _ => "an internal error",
    }
}

/// Formats reported tokens, costs and, apart from them, estimated tokens; `None` if there are none.
fn usage(ledger: &Ledger) -> Option<String> {
    let (reported, estimated) = (ledger.reported_usage(), ledger.estimated_usage());
    if (reported + estimated).total() == 0 {
        return None;
    }
    let mut parts = Vec::new();
    if reported.total() > 0 {
        parts.push(tokens(&reported, false));
    }
    let costs = ledger.costs();
    parts.extend(costs.reported_usd.map(dollars));
    if let (Some(cost), Some(date)) = (costs.list_price_usd, costs.list_price_date) {
        parts.push(format!("{} (list price of {date})", dollars(cost)));
    }
    // Mentioned only if some costs are known.
    if let unknown @ 1.. = ledger.calls_of_unknown_cost()
        && ledger.cost_usd().is_some()
    {
        let calls = plural(unknown, "call", "calls");
        parts.push(format!("and {calls} of unknown cost"));
    }
    if estimated.total() > 0 {
        let cost = costs.estimated_usd.map(dollars);
        let cost = cost.map_or_else(String::new, |cost| format!(" · ~{cost}"));
        parts.push(format!("{}{cost} (estimated)", tokens(&estimated, true)));
    }
    Some(parts.join(" · "))
}
