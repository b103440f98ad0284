//! Access to the state for tests.

use cantle_core::message::SharedMessage;

use super::{Activity, Machine, Status};
use crate::rules::action::Action;

impl Machine {
    pub(in crate::rules) fn replaced(&self) -> &[Vec<SharedMessage>] {
        self.conversation.replaced()
    }

    pub(in crate::rules) fn is_summarizing(&self) -> bool {
        matches!(self.activity, Activity::Summarizing(_))
    }

    pub(in crate::rules) fn has_finished(&self) -> bool {
        matches!(self.status, Status::Ended(Some(_)))
    }

    pub(in crate::rules) fn push_action(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    /// The state without the actions that are waiting.
    pub(in crate::rules) fn state(&self) -> String {
        let Self {
            rules,
            tools: _,
            conversation,
            ledger,
            turns,
            activity,
            status,
            budget,
            near_budgets,
            pending_messages,
            actions: _,
            overflows,
            repeats,
            failed_attempts,
            empty_answers,
            text_answers,
            has_failed_summary,
            has_background_processes,
        } = self;
        let conversation = conversation.state();
        let progress = (rules, conversation, ledger, turns, activity, status);
        let counters = (
            overflows,
            repeats,
            failed_attempts,
            empty_answers,
            text_answers,
        );
        let flags = (has_failed_summary, has_background_processes);
        format!(
            "{progress:?} {budget:?} {near_budgets:?} {pending_messages:?} {counters:?} {flags:?}"
        )
    }
}
