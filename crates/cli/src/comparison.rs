//! Two kept runs, compared as a unified diff of their texts.

use std::fmt::Write as _;
use std::time::Duration;

use cantle::agent::KeptRun;
use cantle::core::escape::{for_decision, for_display};
use cantle::core::event::{Event, EventKind};
use similar::TextDiff;

use crate::display::status_text;
use crate::text::{clean, clean_json, dollars, one_line};
use crate::transcript;

/// Time for comparing; a longer diff than necessary is found after it.
const DEADLINE: Duration = Duration::from_secs(5);

/// Returns the differences of two runs; empty if there are none. Sub-agents are compared by their results only.
pub(crate) fn diff(old: (&KeptRun, &[Event]), new: (&KeptRun, &[Event])) -> String {
    let (old_text, new_text) = (text(old.0, old.1), text(new.0, new.1));
    let diff = TextDiff::configure()
        .timeout(DEADLINE)
        .diff_lines(&*old_text, &*new_text);
    let (old, new) = (old.0.run.to_string(), new.0.run.to_string());
    diff.unified_diff().header(&old, &new).to_string()
}

/// Formats a run line by line, without the times and ids that differ between any two runs.
fn text(run: &KeptRun, events: &[Event]) -> String {
    let mut text = format!(
        "agent: {}\nmodel: {}\n",
        one_line(&run.agent),
        one_line(&run.model)
    );
    for event in events.iter().filter(|event| event.depth == 0) {
        // Writing to a string can't fail.
        let _ = match &event.kind {
            EventKind::RunStarted { task, tools, .. } => {
                writeln!(
                    text,
                    "tools: {}\ntask: {}",
                    tools.join(", "),
                    for_display(task)
                )
            }
            EventKind::ModelAnswered {
                turn, text: said, ..
            } => {
                writeln!(text, "\nturn {turn}\n{}", for_display(said.trim()))
            }
            EventKind::HistorySummarized { text: summary, .. } => {
                writeln!(text, "summary: {}", for_display(summary.trim()))
            }
            EventKind::UserMessage { text: message } => {
                writeln!(text, "to the model: {}", for_display(message))
            }
            EventKind::ToolStarted {
                tool, arguments, ..
            } => {
                writeln!(text, "call {}: {}", one_line(tool), clean_json(arguments))
            }
            EventKind::ToolFinished {
                success, result, ..
            } => {
                let outcome = if *success { "result" } else { "failed" };
                writeln!(text, "{outcome}: {}", clean(result.trim_end()))
            }
            EventKind::OutputSaved {
                source, size_bytes, ..
            } => {
                writeln!(text, "file: {} ({size_bytes} bytes)", for_decision(source))
            }
            EventKind::RunFinished { status, .. } => {
                let answer = transcript::final_answer(events);
                let answer = clean(answer.as_deref().unwrap_or("none").trim());
                let cost = run.cost_usd.map_or_else(|| "unknown".to_owned(), dollars);
                let status = status_text(*status);
                writeln!(
                    text,
                    "\nstatus: {status}\nturns: {}\ntokens: {}\ncost: {cost}\nanswer: {answer}",
                    run.turns, run.tokens
                )
            }
            _ => Ok(()),
        };
    }
    text
}
