//! Summaries: what of a conversation one replaces, and what stands there afterwards.
//!
//! What comes before the model's first turn stays word for word (the instructions, the task), and so
//! does the task where it comes later, after an earlier conversation. Behind the summary stands what
//! a model must not forget: which files there are, and how the task ends.

use std::fmt::Write as _;

use cantle_core::ledger::{CallPurpose, ModelCall};
use cantle_core::message::{Message, SharedMessage, UserKind, UserMessage};

use super::{Action, Machine, SummaryAttempt};
use crate::error::{RunError, RunErrorKind};

/// A conversation after a summary.
#[derive(Debug)]
pub(super) struct Summarized {
    pub(super) messages: Vec<SharedMessage>,
    /// What the summary stands for.
    pub(super) replaced: Vec<SharedMessage>,
}

impl Machine {
    /// Whether the next request would use more of the context window than it should.
    pub(super) fn needs_summary(&self) -> bool {
        let (Some(part), Some(window)) = (self.rules.summarize_at, self.rules.context_window)
        else {
            return false;
        };
        let last_turn = self.turns + 1 >= self.rules.max_turns || self.spent.is_some();
        // Room for the answer, or for the summary itself, which is one.
        let head_room = self
            .rules
            .max_output_tokens
            .unwrap_or(window / 10)
            .min(window / 4);
        // Token counts are far below 2^52, where the conversion is exact.
        let full = self.context_tokens as f64 >= window as f64 * part
            || self.context_tokens + head_room >= window;
        full && !last_turn && start(&self.messages).is_some()
    }

    pub(super) fn summarize(&mut self, attempt: SummaryAttempt) {
        self.summarizing = Some(attempt);
        self.actions.push_back(Action::Summarize { attempt });
    }

    pub(super) fn summarized(&mut self, text: &str, files: &[String], mut call: ModelCall) {
        call.purpose = CallPurpose::Summary;
        self.ledger.model_calls.push(call);
        let Some(attempt) = self.summarizing.take() else {
            return;
        };
        if self.ended {
            return;
        }
        let Some(from) = start(&self.messages) else {
            return self.ask();
        };
        if text.trim().is_empty() {
            // History is never replaced by nothing.
            return match attempt {
                SummaryAttempt::First => self.summarize(SummaryAttempt::TextOnly),
                SummaryAttempt::TextOnly => self.summarize(SummaryAttempt::WithoutTools),
                SummaryAttempt::WithoutTools => self.end(Err(RunError::new(
                    RunErrorKind::ContextOverflow,
                    "the conversation has to be summarized, but the model gave no summary",
                ))),
            };
        }
        let mut finish_tools: Vec<_> = self
            .tools
            .iter()
            .filter(|(_, traits)| traits.finishes)
            .map(|(name, _)| name.clone())
            .collect();
        finish_tools.sort_unstable();
        let made = replace(&self.messages, from, self.task, text, files, &finish_tools);
        if self.task >= from {
            self.task = from + 1;
        }
        self.actions.push_back(Action::HistorySummarized {
            replaced: made.replaced.len(),
        });
        self.replaced.push(made.replaced);
        self.messages = made.messages;
        self.heard.clear();
        self.floor = self.messages.len();
        self.recount();
        self.ask();
    }
}

/// Where what can be summarized begins: at the first turn of the model, or at an earlier summary.
/// `None` where there is no turn since.
pub(super) fn start(messages: &[SharedMessage]) -> Option<usize> {
    let first = messages
        .iter()
        .position(|message| is_summary(message) || matches!(**message, Message::Assistant(_)))?;
    let latest = messages.iter().rposition(|message| is_summary(message));
    let since = messages.iter().skip(latest.map_or(0, |at| at + 1));
    let mut since = since.filter(|message| matches!(***message, Message::Assistant(_)));
    since.next().map(|_| first)
}

/// Puts a summary in the place of everything from `start` on. `task` is where the task stands.
pub(super) fn replace(
    messages: &[SharedMessage],
    start: usize,
    task: usize,
    text: &str,
    files: &[String],
    finish_tools: &[String],
) -> Summarized {
    let (head, replaced) = messages.split_at(start.min(messages.len()));
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
    let mut messages = head.to_vec();
    let summary = UserKind::Summary { replaced_ids };
    messages.push(SharedMessage::new(Message::User(UserMessage::new(
        summary, text,
    ))));
    if task >= start
        && let Some(task) = replaced.get(task - start)
    {
        messages.push(task.clone());
    }
    messages.push(SharedMessage::new(Message::user(reminder(
        files,
        finish_tools,
    ))));
    Summarized {
        messages,
        replaced: replaced.to_vec(),
    }
}

fn reminder(files: &[String], finish_tools: &[String]) -> String {
    let mut text = "That was your own summary of the work so far; what it stands for is no longer \
                    shown. Go on from there."
        .to_owned();
    if !files.is_empty() {
        text.push_str(" Your working directory now has:");
        for file in files {
            let _ = write!(text, "\n- {file}");
        }
        text.push('\n');
    }
    let tools: Vec<_> = finish_tools
        .iter()
        .map(|name| format!("`{name}`"))
        .collect();
    let _ = write!(
        text,
        " When the task is done, end it by calling {}.",
        tools.join(" or ")
    );
    text
}

pub(super) fn is_summary(message: &Message) -> bool {
    matches!(
        message,
        Message::User(UserMessage {
            kind: UserKind::Summary { .. },
            ..
        })
    )
}
