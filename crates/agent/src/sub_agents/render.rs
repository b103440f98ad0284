//! The texts about a sub-agent that its caller's model reads.

use std::fmt::Write as _;

use cantle_core::event::Finish;
use serde_json::Value;

use crate::journal::DeliveredFiles;
use crate::progress::ProgressState;
use crate::rules::Spending;
use crate::run::Outcome;
use crate::scope::BackgroundStatus;

/// Maximum characters of the latest text that a status shows.
const MAX_LAST_TEXT: usize = 2_000;

/// Renders an outcome.
pub(super) fn outcome(outcome: &Outcome) -> String {
    match (&outcome.finish, &outcome.error) {
        (Some(call), None) => finish(call, &DeliveredFiles::from(&outcome.outputs)),
        (_, Some(error)) => {
            unfinished(error.to_string(), outcome.last_text(), &outcome.undelivered)
        }
        (None, None) => answered_in_text(outcome.last_text(), &outcome.undelivered),
    }
}

/// Renders the end of a sub-agent that answered in text.
pub(super) fn answered_in_text(last_text: Option<String>, undelivered: &[String]) -> String {
    let reason = "it answered in text and did not call its finish tool".to_owned();
    unfinished(reason, last_text, undelivered)
}

fn unfinished(mut text: String, last_text: Option<String>, undelivered: &[String]) -> String {
    if let Some(last) = last_text {
        text = format!("{text}. Its last message: {last}");
    }
    if !undelivered.is_empty() {
        let files = undelivered.join(", ");
        text = format!("{text}\nFiles that it did not deliver: {files}");
    }
    failure(&text)
}

/// Renders a finish call.
pub(super) fn finish(finish: &Finish, files: &DeliveredFiles) -> String {
    let reason = finish.params.get("reason").and_then(Value::as_str);
    let only_reason = finish
        .params
        .as_object()
        .is_some_and(|params| params.keys().all(|key| key == "reason" || key == "paths"));
    let response = match reason.filter(|_| only_reason) {
        Some(reason) => reason.to_owned(),
        None => finish.params.to_string(),
    };
    let mut text =
        format!("<sub_agent_result>\n<response>{response}</response>\n<finished>True</finished>\n");
    let saved = files.saved.iter().map(|file| file.source.clone());
    let refused = files.refused.iter();
    let refused = refused.map(|file| format!("{}: {}", file.source, file.reason));
    for (tag, files) in [
        ("files_available", saved.collect::<Vec<_>>()),
        ("files_failed", refused.collect()),
    ] {
        if !files.is_empty() {
            let _ = writeln!(text, "<{tag}>\n{}\n</{tag}>", files.join("\n"));
        }
    }
    text.push_str("</sub_agent_result>");
    text
}

/// Renders a failure.
pub(super) fn failure(reason: &str) -> String {
    format!(
        "<sub_agent_result>\n<error>{reason}</error>\n<finished>False</finished>\n</sub_agent_result>"
    )
}

/// Renders the statuses of background sub-agents.
pub(super) fn statuses(statuses: &[BackgroundStatus]) -> String {
    let texts: Vec<_> = statuses
        .iter()
        .map(|status| match status {
            BackgroundStatus::Working(id, progress) => working(id, progress),
            BackgroundStatus::Ended(id, result) => {
                format!("<sub_agent id=\"{id}\" state=\"ended\">\n{result}\n</sub_agent>")
            }
        })
        .collect();
    if texts.is_empty() {
        return "None was started.".to_owned();
    }
    texts.join("\n")
}

fn working(id: &str, progress: &ProgressState) -> String {
    let mut text = format!("<sub_agent id=\"{id}\" state=\"working\">\n");
    let spending = Spending::from(&progress.ledger);
    let _ = writeln!(text, "<turns>{}</turns>", progress.turns);
    let _ = writeln!(text, "<tokens>{}</tokens>", spending.tokens);
    if let Some(cost) = spending.cost_usd {
        let _ = writeln!(text, "<cost_usd>{cost:.4}</cost_usd>");
    }
    if let Some(tool) = &progress.running_tool {
        let _ = writeln!(text, "<doing>{tool}</doing>");
    }
    if !progress.last_text.is_empty() {
        let count = progress.last_text.chars().count();
        let skip = count.saturating_sub(MAX_LAST_TEXT);
        let words: String = progress.last_text.chars().skip(skip).collect();
        let more = if skip > 0 { "…" } else { "" };
        let _ = writeln!(text, "<last_words>{more}{words}</last_words>");
    }
    text.push_str("</sub_agent>");
    text
}
