//! What the model is told before it is asked: what the user said, and what is running out.

use cantle_core::message::{Message, UserKind, UserMessage};

use super::{Action, Machine};
use crate::budget::{BudgetState, Resource};

impl Machine {
    pub(super) fn warns_next(&self) -> bool {
        self.turns > 0
            && self.rules.max_turns.saturating_sub(self.turns) <= self.rules.turn_warning_threshold
    }

    /// Asks the model for the next turn, after what it should know before.
    pub(super) fn ask(&mut self) {
        self.tell_said();
        if !self.warn_of_budgets() && self.warns_next() {
            let left = self.rules.max_turns.saturating_sub(self.turns);
            let warning = if left == 1 {
                "This is the last turn. Finish the task now by calling a finish tool.".to_owned()
            } else {
                format!(
                    "You have {left} turns left to complete the task. Keep one of them for calling a finish tool."
                )
            };
            self.say(UserKind::TurnWarning, warning);
        }
        self.evict_images();
        self.actions.push_back(Action::AskModel {
            turn: self.turns + 1,
        });
    }

    /// Puts what the user said meanwhile into the conversation.
    pub(super) fn tell_said(&mut self) {
        for content in std::mem::take(&mut self.said) {
            self.actions.push_back(Action::Say {
                text: content.text(),
            });
            self.heard.push(self.messages.len());
            self.push(Message::User(UserMessage::new(UserKind::User, content)));
        }
    }

    /// Tells the model of budgets that are spent, or nearly; whether there was anything to tell.
    pub(super) fn warn_of_budgets(&mut self) -> bool {
        let near = std::mem::take(&mut self.near);
        let text = if let Some(spent) = self.spent {
            self.told_last = true;
            format!(
                "The budget of this run is spent ({spent}). This is the last turn: finish the task \
                 now by calling a finish tool. Nothing else will run."
            )
        } else if near.is_empty() {
            return false;
        } else {
            let states: Vec<_> = near.iter().map(ToString::to_string).collect();
            format!(
                "Most of this run's budget is spent ({}). Bring the task to an end, and keep enough \
                 for calling a finish tool.",
                states.join(", ")
            )
        };
        self.say(UserKind::TurnWarning, text);
        true
    }

    pub(super) fn budget_spent(&mut self, state: BudgetState) {
        // Time is what stops calls, so it must be known, whatever else is spent.
        if self.spent.is_some() && state.resource != Resource::TimeS {
            return;
        }
        self.spent = Some(state);
        // Where the time is over, calls that have not begun would only be stopped again.
        if state.resource == Resource::TimeS
            && let Some(mut turn) = self.turn.take()
        {
            turn.refuse_waiting("The run's time was over before this call started.");
            self.tell_refused(&mut turn);
            self.turn = Some(turn);
            self.end_turn_if_done();
        }
    }
}
