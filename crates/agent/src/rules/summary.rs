//! Summaries: the part of a conversation that one replaces, and the text behind it.
//!
//! Everything before the model's first turn (instructions, task) stays unchanged, and so does the
//! task if it stands later, after an earlier conversation. Behind the summary the model is reminded
//! of the files in the sandbox and of how the task ends.

use std::fmt::Write as _;

use cantle_core::message::{Message, SharedMessage, UserKind, UserMessage};

/// Returns the index at which the part that can be summarized begins: the model's first turn, or an
/// earlier summary. `None` if there is no turn since.
pub(super) fn start(messages: &[SharedMessage]) -> Option<usize> {
    let is_turn = |message: &SharedMessage| matches!(**message, Message::Assistant(_));
    let first = messages
        .iter()
        .position(|message| is_summary(message) || is_turn(message))?;
    let latest = messages.iter().rposition(|message| is_summary(message));
    let mut since = messages.iter().skip(latest.map_or(0, |at| at + 1));
    since.any(is_turn).then_some(first)
}

/// Returns the message with a summary that replaces these messages.
pub(super) fn message(replaced: &[SharedMessage], text: &str) -> Message {
    let mut replaced_ids = Vec::new();
    for message in replaced {
        match &**message {
            Message::Assistant(message) => replaced_ids.push(message.id.clone()),
            Message::User(UserMessage {
                kind: UserKind::Summary { replaced_ids: ids },
                ..
            }) => replaced_ids.extend(ids.iter().cloned()),
            _ => {}
        }
    }
    Message::User(UserMessage::new(UserKind::Summary { replaced_ids }, text))
}

/// Returns the message that follows a summary.
pub(super) fn reminder(files: &[String], finish_tools: &[String]) -> Message {
    let mut text =
        "That was your own summary of the work so far; the messages that it replaces are \
                    no longer shown. Continue from there."
            .to_owned();
    if !files.is_empty() {
        text.push_str(" Your working directory now contains:");
        for file in files {
            let _ = write!(text, "\n- {file}");
        }
        text.push('\n');
    }
    let _ = write!(
        text,
        " When the task is done, finish it by calling `{}`.",
        finish_tools.join("` or `")
    );
    Message::user(text)
}

/// Whether a message is a summary.
pub(crate) fn is_summary(message: &Message) -> bool {
    matches!(
        message,
        Message::User(UserMessage {
            kind: UserKind::Summary { .. },
            ..
        })
    )
}
