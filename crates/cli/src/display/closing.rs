//! What stands at the end of a run: how it ended, what came of it, what it took.

use std::fmt::Write as _;
use std::time::Duration;

use cantle::agent::Outcome;
use cantle::core::event::RunStatus;
use cantle::core::ledger::Ledger;

use super::look::Paint;
use super::text::{clean, duration, one_line, plural, size, tokens};
use crate::kept::Remains;

/// The end of a run, as it is told to a person.
#[derive(Debug)]
pub(crate) struct Closing {
    status: RunStatus,
    turns: u32,
    duration: Duration,
    /// Why it did not finish, and what to try; a line each.
    pub(crate) problem: Vec<String>,
    /// The files that were saved, each with its size.
    files: Vec<(String, u64)>,
    /// The files that were not, each with its reason.
    refused: Vec<(String, String)>,
    ledger: Ledger,
    /// What is left of a run that did not finish.
    pub(crate) remains: Remains,
}

impl Closing {
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
            problem: message.into_iter().chain(advice).collect(),
            files: saved
                .map(|file| (file.path.display().to_string(), file.size_bytes))
                .collect(),
            refused: refused
                .map(|refusal| (refusal.source.clone(), refusal.reason.clone()))
                .collect(),
            ledger: outcome.ledger.clone(),
            remains: Remains::default(),
        }
    }

    /// One line on how it ended, and below it why, where it did not finish.
    pub(super) fn head(&self, paint: Paint) -> String {
        let finished = self.status == RunStatus::Finished;
        let verdict = format!(
            "{} {}",
            if finished { "✓" } else { "✗" },
            status(self.status)
        );
        let verdict = if finished {
            paint.green(&verdict)
        } else {
            paint.red(&verdict)
        };
        let turns = plural(u64::from(self.turns), "turn", "turns");
        let facts = paint.dim(&format!(" · {turns} · {}", duration(self.duration)));
        let mut text = format!("\n{verdict}{facts}\n");
        // That it was cancelled has been said.
        let said = usize::from(self.status == RunStatus::Cancelled);
        let problem = self.problem.get(said..).unwrap_or_default();
        if !problem.is_empty() {
            text.push('\n');
        }
        for line in problem.iter().flat_map(|part| part.split('\n')) {
            let _ = writeln!(text, "  {}", clean(line));
        }
        text
    }

    /// What came of it and what it took, as a table.
    pub(super) fn details(&self, paint: Paint) -> String {
        let mut rows: Vec<(&str, String)> = Vec::new();
        let width = self.files.iter().map(|(path, _)| path.chars().count());
        let width = width.max().unwrap_or_default();
        for (path, size_bytes) in &self.files {
            let size = paint.dim(&size(*size_bytes));
            rows.push(("files", format!("{:width$}  {size}", one_line(path))));
        }
        for (source, reason) in &self.refused {
            let line = format!("{}: {}", one_line(source), one_line(reason));
            rows.push(("refused", paint.yellow(&line)));
        }
        rows.extend(spent(&self.ledger).map(|spent| ("tokens", spent)));
        let width = self.ledger.tools.keys().map(|name| name.chars().count());
        let width = width.max().unwrap_or_default();
        for (name, account) in &self.ledger.tools {
            let calls = plural(account.calls, "call", "calls");
            let failures = format!("{} failed", account.failures);
            let failures = match account.failures {
                0 => paint.dim(&failures),
                _ => paint.yellow(&failures),
            };
            let took = duration(account.duration);
            let line = format!("{:width$}  {calls} · {failures} · {took}", one_line(name));
            rows.push(("tools", line));
        }
        let Remains { kept, lost } = &self.remains;
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

    /// Why it did not finish and which files were refused, in plain lines: for those who only want
    /// to know what went wrong.
    pub(super) fn problems(&self) -> String {
        let mut text = String::new();
        for (index, line) in self.problem.iter().enumerate() {
            let lead = if index == 0 { "cantle: " } else { "  " };
            let _ = writeln!(text, "{lead}{}", clean(line));
        }
        for (source, reason) in &self.refused {
            let (source, reason) = (one_line(source), one_line(reason));
            let _ = writeln!(text, "cantle: the output {source} was refused: {reason}");
        }
        for line in &self.remains.kept {
            let _ = writeln!(text, "  kept: {}", clean(line));
        }
        for line in &self.remains.lost {
            let _ = writeln!(text, "  lost: {}", clean(line));
        }
        text
    }
}

fn status(status: RunStatus) -> &'static str {
    match status {
        RunStatus::Finished => "finished",
        RunStatus::LimitReached => "a limit was reached",
        RunStatus::Cancelled => "cancelled",
        RunStatus::ModelFailed => "the model failed",
        RunStatus::SandboxFailed => "the sandbox failed",
        _ => "an internal error",
    }
}

/// What providers reported, what they said it cost, and apart from that what was estimated; `None`
/// where it is nothing.
fn spent(ledger: &Ledger) -> Option<String> {
    let (reported, estimated) = (ledger.reported_usage(), ledger.estimated_usage());
    let mut parts = Vec::new();
    if reported.total() > 0 {
        parts.push(tokens(&reported, false));
    }
    if let Some(cost) = ledger.cost_usd() {
        parts.push(format!("${cost:.4}"));
        // Where nothing is known of costs, nobody misses them.
        if let unknown @ 1.. = ledger.calls_of_unknown_cost() {
            let calls = plural(unknown, "call", "calls");
            parts.push(format!("and {calls} of unknown cost"));
        }
    }
    if estimated.total() > 0 {
        parts.push(format!("{} (estimated)", tokens(&estimated, true)));
    }
    (!parts.is_empty()).then(|| parts.join(" · "))
}
