//! What a caller's model reads of a sub-agent.

use std::fmt::Write as _;

use cantle_core::event::Finish;
use cantle_core::message::Message;
use serde_json::Value;

use super::progress::Seen;
use crate::journal::Files;
use crate::run::Outcome;

/// Characters of its last words that are shown of one that works.
const MAX_LAST_WORDS: usize = 2_000;

/// What came of a sub-agent, and whether it did what it was asked to.
#[derive(Debug)]
pub(super) struct Said {
    pub(super) text: String,
    pub(super) success: bool,
}

/// How it ended.
pub(super) fn said(outcome: &Outcome) -> Said {
    match (&outcome.finish, &outcome.error) {
        (Some(finish), None) => response(finish, &Files::from(&outcome.outputs)),
        (_, Some(error)) => {
            let mut text = error.to_string();
            let last = outcome.history.iter().rev();
            let mut last = last.filter_map(|message| match &**message {
                Message::Assistant(message) => {
                    Some(message.text()).filter(|text| !text.trim().is_empty())
                }
                _ => None,
            });
            if let Some(last) = last.next() {
                text = format!("{text}. The last it said: {last}");
            }
            failed(&text)
        }
        (None, None) => failed("it ended without a result"),
    }
}

/// It finished.
pub(super) fn response(finish: &Finish, files: &Files) -> Said {
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
    for (tag, files) in [
        ("files_available", &files.saved),
        ("files_failed", &files.refused),
    ] {
        if !files.is_empty() {
            text.push_str(&format!("<{tag}>\n{}\n</{tag}>\n", files.join("\n")));
        }
    }
    text.push_str("</sub_agent_result>");
    Said {
        text,
        success: true,
    }
}

/// It did not.
pub(super) fn failed(why: &str) -> Said {
    let text = format!(
        "<sub_agent_result>\n<error>{why}</error>\n<finished>False</finished>\n</sub_agent_result>"
    );
    Said {
        text,
        success: false,
    }
}

/// One in the background, while it works.
pub(super) fn working(id: &str, seen: &Seen) -> String {
    let mut text = format!("<sub_agent id=\"{id}\" state=\"working\">\n");
    let ledger = &seen.ledger;
    let tokens = ledger.reported_usage() + ledger.estimated_usage();
    let _ = writeln!(text, "<turns>{}</turns>", seen.turns);
    let _ = writeln!(text, "<tokens>{}</tokens>", tokens.total());
    if let Some(cost) = ledger.cost_usd() {
        let _ = writeln!(text, "<cost_usd>{cost:.4}</cost_usd>");
    }
    if let Some(tool) = &seen.tool {
        let _ = writeln!(text, "<doing>{tool}</doing>");
    }
    if !seen.last_words.is_empty() {
        let count = seen.last_words.chars().count();
        let skip = count.saturating_sub(MAX_LAST_WORDS);
        let words: String = seen.last_words.chars().skip(skip).collect();
        let more = if skip > 0 { "…" } else { "" };
        let _ = writeln!(text, "<last_words>{more}{words}</last_words>");
    }
    text.push_str("</sub_agent>");
    text
}

/// One in the background that has ended.
pub(super) fn ended(id: &str, result: &str) -> String {
    format!("<sub_agent id=\"{id}\" state=\"ended\">\n{result}\n</sub_agent>")
}
