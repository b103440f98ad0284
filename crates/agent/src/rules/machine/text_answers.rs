//! Answers in text: the reminder, and the end of a run by one.

use cantle_core::event::Finish;
use cantle_core::llm::StopReason;
use cantle_core::message::{AssistantMessage, UserKind};
use serde_json::json;

use super::Machine;
use crate::rules::settings::TextAnswers;

/// Consecutive answers in text, the first of which is followed by a reminder, after which the run ends.
const MAX_TEXT_ANSWERS: u32 = 4;

/// Counts consecutive answers in text.
#[derive(Debug, Default)]
pub(super) struct TextAnswerCounter {
    count: u32,
    /// The latest one.
    last: String,
}

impl TextAnswerCounter {
    /// Counts an answer. Returns whether the model will not do anything else.
    fn count(&mut self, text: &str) -> bool {
        self.count += 1;
        let is_repeated = self.count > 1 && self.last == text;
        text.clone_into(&mut self.last);
        is_repeated || self.count >= MAX_TEXT_ANSWERS
    }
}

impl Machine {
    /// Counts an answer, if it is in text. Returns the finish call for which it stands, if it may end the run.
    pub(super) fn count_text_answer(
        &mut self,
        message: &AssistantMessage,
        stop: &StopReason,
    ) -> Option<Finish> {
        let text = message.text();
        if message.tool_calls().next().is_some() || text.trim().is_empty() {
            self.text_answers = TextAnswerCounter::default();
            return None;
        }
        let is_last = self.text_answers.count(&text);
        let may_end = match self.rules.text_answers {
            TextAnswers::Insist => false,
            TextAnswers::EndTurn => true,
            TextAnswers::Remind => {
                is_last
                    && self.rules.block_successive_assistant_messages
                    && self.only_finish_tool_accepts_text()
            }
        };
        let tool = self.finish_tools().into_iter().next().unwrap_or_default();
        (may_end && *stop == StopReason::EndTurn)
            .then(|| Finish::new(tool, json!({ "reason": text })))
    }

    fn only_finish_tool_accepts_text(&self) -> bool {
        let mut finish_tools = self.tools.values().filter(|traits| traits.finishes);
        let first = finish_tools.next();
        first.is_some_and(|traits| traits.accepts_text) && finish_tools.next().is_none()
    }

    /// Continues after the hooks refused an answer in text.
    pub(super) fn refuse_text(&mut self, feedback: String) {
        self.text_answers = TextAnswerCounter::default();
        if !self.has_ended() {
            self.push_user_message(UserKind::User, feedback);
            self.next_turn(true);
        }
    }

    pub(super) fn remind_of_finish_tools(&mut self) {
        let text = format!(
            "You replied without a tool call. If you are done, call `{}` with your answer; otherwise call a tool.",
            self.finish_tools().join("` or `")
        );
        self.push_user_message(UserKind::User, text);
    }

    /// The names of the finish tools, sorted.
    pub(super) fn finish_tools(&self) -> Vec<String> {
        let tools = self.tools.iter().filter(|(_, traits)| traits.finishes);
        let mut names: Vec<_> = tools.map(|(name, _)| name.clone()).collect();
        names.sort_unstable();
        names
    }
}
