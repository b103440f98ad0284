//! Answers of the model, and failures to get one.

use cantle_core::ledger::ModelCall;
use cantle_core::llm::{LlmErrorKind, StopReason};
use cantle_core::message::{AssistantMessage, ToolCall, ToolMessage, UserKind};

use super::{Activity, Machine};
use crate::error::{RunError, RunErrorKind};
use crate::rules::action::{Action, SummaryAttempt};
use crate::rules::budget::BudgetPhase;
use crate::rules::fact::ModelFailure;
use crate::rules::turn::Turn;

/// The message after an answer that was cut off.
pub(in crate::rules) const CUT_OFF: &str = "Your answer was cut off at the output limit. Continue where it ended. Calls of that \
                       answer did not run: repeat them, in smaller steps.";

/// Consecutive empty answers after which the run ends.
const MAX_EMPTY_ANSWERS: u32 = 3;

impl Machine {
    pub(super) fn model_answered(
        &mut self,
        mut message: AssistantMessage,
        stop: &StopReason,
        call: ModelCall,
    ) {
        let tokens = call.usage.total();
        let ledger_entry = self.ledger.model_call(call);
        if self.has_ended() {
            return;
        }
        self.turns += 1;
        if let BudgetPhase::LastTurnAnnounced(state) = self.budget {
            self.budget = BudgetPhase::LastTurn(state);
        }
        self.conversation.make_call_ids_unique(&mut message);
        let is_empty = message.tool_calls().next().is_none() && message.text().trim().is_empty();
        let reason = match stop {
            StopReason::Length => Some("the answer was cut off at the model's output limit"),
            StopReason::ContentFilter => Some("the provider's content filter stopped the answer"),
            _ => None,
        };
        if let Some(reason) = reason {
            let refused: Vec<ToolCall> = message.tool_calls().cloned().collect();
            self.conversation.push_turn(message, tokens, ledger_entry);
            self.refuse_all(refused, reason);
            return self.cut_off(stop, reason, is_empty);
        }
        self.empty_answers = if is_empty { self.empty_answers + 1 } else { 0 };
        if self.empty_answers >= MAX_EMPTY_ANSWERS {
            self.conversation.push_turn(message, tokens, ledger_entry);
            return self.fail(
                RunErrorKind::Model,
                format!("the model gave {MAX_EMPTY_ANSWERS} empty answers in a row"),
            );
        }
        // If time ran out, other calls would only be started to be stopped.
        let only_finish = match self.budget {
            BudgetPhase::LastTurn(state) => Some(state),
            other => other.exhausted().filter(|_| other.is_out_of_time()),
        };
        let only_finish = only_finish.map(|state| format!("the run's budget is spent ({state})"));
        let mut turn = Turn::new(message.tool_calls(), &self.tools, only_finish.as_deref());
        let accepted = self
            .count_text_answer(&message, stop)
            .filter(|_| only_finish.is_none());
        self.conversation.push_turn(message, tokens, ledger_entry);
        if let Some(finish) = accepted {
            self.activity = Activity::Asking;
            self.actions.push_back(Action::AcceptText { finish });
            return;
        }
        for (call, text) in turn.refused() {
            self.refused(call, text);
        }
        turn.start_calls(&mut self.actions);
        self.activity = Activity::Calling(turn);
        self.end_turn_if_done();
    }

    /// Continues or ends after an answer that is not complete.
    fn cut_off(&mut self, stop: &StopReason, reason: &str, is_empty: bool) {
        if *stop == StopReason::ContentFilter {
            return self.fail(RunErrorKind::Model, reason);
        }
        // From an empty answer there is nothing to continue.
        if self.rules.continue_cut_answers && !is_empty {
            self.push_user_message(UserKind::User, CUT_OFF.to_owned());
            return self.next_turn(true);
        }
        let advice = "Raise the client's output limit, or ask for smaller steps.";
        let error = RunError::new(RunErrorKind::OutputLimit, reason).with_advice(advice);
        self.end(Err(error));
    }

    pub(super) fn model_failed(&mut self, failure: ModelFailure) {
        self.ledger.model_call(failure.call);
        if self.has_ended() {
            return;
        }
        let error = failure.error;
        if error.kind() == LlmErrorKind::ContextOverflow {
            return self.recover_from_overflow(&error);
        }
        // Bedrock refuses a conversation with calls if the request has no tools.
        if let Activity::Summarizing(SummaryAttempt::WithoutTools) = self.activity
            && error.kind() == LlmErrorKind::InvalidRequest
        {
            return self.give_up_summary();
        }
        let end = RunError::new(RunErrorKind::Model, error.to_string()).with_llm(error);
        self.end(Err(end));
    }

    /// Answers calls that will not run, so that every call has its result.
    fn refuse_all(&mut self, calls: Vec<ToolCall>, reason: &str) {
        let text = format!("Not run: {reason}.");
        for call in calls {
            let message = ToolMessage::new(&call, text.clone());
            self.conversation.push(message.into());
            self.refused(&call, &text);
        }
    }
}
