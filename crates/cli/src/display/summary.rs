//! The summary at the end of a run: status, problems, files, tokens and tools.

use std::fmt::Write as _;

use cantle::agent::Outcome;
use cantle::core::escape::for_decision;
use cantle::core::event::RunStatus;
use cantle::core::ledger::Ledger;
use cantle::core::sandbox::SavedFile;

use super::style::Paint;
use crate::text::{clean, dollars, duration, one_line, plural, size, tokens};
use crate::unfinished::Unfinished;

/// The summary of a run.
#[derive(Debug)]
pub(crate) struct Summary {
    pub(crate) outcome: Outcome,
    /// Why the run did not finish and what to try, a line each.
    pub(crate) problems: Vec<String>,
    /// The saved and the lost parts of an unfinished run.
    pub(crate) unfinished: Unfinished,
}

impl Summary {
    pub(crate) fn new(outcome: Outcome) -> Self {
        let error = outcome.error.as_ref();
        let message = error.map(ToString::to_string);
        let advice = error.and_then(|error| error.advice()).map(str::to_owned);
        Self {
            problems: message.into_iter().chain(advice).collect(),
            unfinished: Unfinished::default(),
            outcome,
        }
    }

    /// Formats the status, and the problems if the run did not finish.
    pub(super) fn head(&self, paint: Paint) -> String {
        let status = self.outcome.status();
        let name = status_text(status);
        let verdict = match status {
            RunStatus::Finished => paint.green(&format!("✓ {name}")),
            RunStatus::AnsweredInText => paint.yellow(&format!("! {name}")),
            _ => paint.red(&format!("✗ {name}")),
        };
        let turns = plural(u64::from(self.outcome.turns), "turn", "turns");
        let took = duration(self.outcome.duration);
        let facts = paint.dim(&format!(" · {turns} · {took}"));
        let mut text = format!("\n{verdict}{facts}\n");
        // The message of a cancelled run repeats its status.
        let skip = usize::from(status == RunStatus::Cancelled);
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
        let Outcome {
            outputs, ledger, ..
        } = &self.outcome;
        let path = |file: &SavedFile| file.path.display().to_string();
        let width = outputs.saved.iter().map(|file| path(file).chars().count());
        let width = width.max().unwrap_or_default();
        for file in &outputs.saved {
            let (path, size) = (path(file), paint.dim(&size(file.size_bytes)));
            rows.push(("files", format!("{:width$}  {size}", for_decision(&path))));
        }
        for refused in &outputs.refused {
            let (source, reason) = (one_line(&refused.source), one_line(&refused.reason));
            rows.push(("refused", paint.yellow(&format!("{source}: {reason}"))));
        }
        rows.extend(usage(ledger).map(|usage| ("tokens", usage)));
        for (model, speed) in ledger.output_tokens_per_second() {
            let model = one_line(model);
            rows.push((
                "speed",
                format!("{speed:.1} tokens/s  {}", paint.dim(&model)),
            ));
        }
        let width = ledger.tools.keys().map(|name| name.chars().count());
        let width = width.max().unwrap_or_default();
        for (name, account) in &ledger.tools {
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
        for refused in &self.outcome.outputs.refused {
            let (source, reason) = (one_line(&refused.source), one_line(&refused.reason));
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
