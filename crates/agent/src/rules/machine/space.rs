//! Making room in the context window: summaries, and dropped turns.

use std::sync::Arc;

use cantle_core::event::EventKind;
use cantle_core::ledger::{CallPurpose, ModelCall};
use cantle_core::llm::LlmError;

use super::{Activity, Machine};
use crate::error::{RunError, RunErrorKind};
use crate::rules::action::{Action, SummaryAttempt};

impl Machine {
    /// Whether the next request would use more of the context window than allowed.
    pub(super) fn needs_summary(&self) -> bool {
        let (Some(part), Some(window)) = (self.rules.summarize_at, self.rules.context_window)
        else {
            return false;
        };
        if self.has_failed_summary {
            return false;
        }
        let is_last_turn =
            self.turns + 1 >= self.rules.max_turns || self.budget.exhausted().is_some();
        // Room for the answer, or for the summary itself.
        let headroom = self
            .rules
            .max_output_tokens
            .unwrap_or(window / 10)
            .min(window / 4);
        let tokens = self.conversation.tokens();
        // Token counts are far below 2^52, so the conversion is exact.
        let is_full = tokens as f64 >= window as f64 * part || tokens + headroom >= window;
        is_full && !is_last_turn && self.conversation.can_be_summarized()
    }

    pub(super) fn summarize(&mut self, attempt: SummaryAttempt) {
        self.activity = Activity::Summarizing(attempt);
        self.failed_attempts = 0;
        self.actions.push_back(Action::Summarize { attempt });
    }

    pub(super) fn summarized(&mut self, text: &str, files: &[String], mut call: ModelCall) {
        call.purpose = CallPurpose::Summary;
        self.ledger.model_call(call.clone());
        let Activity::Summarizing(attempt) = self.activity else {
            return;
        };
        if self.has_ended() {
            return;
        }
        if text.trim().is_empty() {
            // History is never replaced by nothing.
            return match attempt {
                SummaryAttempt::First => self.summarize(SummaryAttempt::TextOnly),
                SummaryAttempt::TextOnly => self.summarize(SummaryAttempt::WithoutTools),
                SummaryAttempt::WithoutTools => self.give_up_summary(),
            };
        }
        let finish_tools = self.finish_tools();
        self.has_failed_summary = false;
        if let Some(replaced) = self.conversation.summarize(text, files, &finish_tools) {
            self.emit(EventKind::HistorySummarized {
                replaced,
                text: text.to_owned(),
                usage: call.usage,
                usage_estimated: call.estimated,
                cost_usd: call.cost_usd,
                duration: call.duration,
            });
        }
        self.ask();
    }

    /// Goes on with the conversation as it is until the next overflow.
    pub(super) fn give_up_summary(&mut self) {
        self.has_failed_summary = true;
        self.ask();
    }

    /// Drops the latest turn and asks again, or ends the run if that is impossible or futile.
    pub(super) fn recover_from_overflow(&mut self, error: &Arc<LlmError>) {
        let failure = |reason: &str| {
            let message = format!("{error}; {reason}");
            let error =
                RunError::new(RunErrorKind::ContextOverflow, message).with_llm(Arc::clone(error));
            Err(error)
        };
        if !self.rules.recover_from_context_overflow {
            return self.end(failure("recovery from context overflow is disabled"));
        }
        if !self.overflows.count(self.turns) {
            return self.end(failure("dropping turns freed too little space"));
        }
        let Some(dropped) = self.conversation.drop_last_turn() else {
            return self.end(failure("no turn is left that could be dropped"));
        };
        self.pending_messages.splice(0..0, dropped.user_messages);
        if let Some(entry) = dropped.ledger_entry {
            self.ledger.drop_turn(entry);
        }
        self.emit(EventKind::TurnDropped { turn: self.turns });
        self.turns = self.turns.saturating_sub(1);
        // The next turn would overflow just the same, unless it is smaller than the dropped one.
        if self.rules.summarize_at.is_some() && self.conversation.can_be_summarized() {
            let attempt = match self.activity {
                Activity::Summarizing(attempt) => attempt,
                Activity::Asking | Activity::Calling(_) => SummaryAttempt::First,
            };
            return self.summarize(attempt);
        }
        self.ask();
    }
}
