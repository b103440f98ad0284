//! Budgets: warnings, and the last turn.

use cantle_core::message::UserKind;

use super::Machine;
use crate::resource::Resource;
use crate::rules::budget::{BudgetPhase, BudgetState, budget_error};

impl Machine {
    pub(super) fn budget_exhausted(&mut self, state: BudgetState) {
        let is_time = state.resource == Resource::TimeS;
        self.budget = match self.budget {
            BudgetPhase::Available => BudgetPhase::Exhausted(state),
            // Time stops calls, so it takes precedence over other budgets.
            BudgetPhase::Exhausted(_) if is_time => BudgetPhase::Exhausted(state),
            BudgetPhase::LastTurnAnnounced(_) if is_time => BudgetPhase::LastTurnAnnounced(state),
            BudgetPhase::LastTurn(_) if is_time => BudgetPhase::LastTurn(state),
            _ => return,
        };
        if is_time {
            self.refuse_waiting("The run's time was over before this call started.");
        }
    }

    /// Makes the turn that begins now the last one.
    pub(super) fn budget_exhausted_before_turn(&mut self, state: BudgetState) {
        self.budget_exhausted(state);
        // The model may know of another budget already.
        if matches!(self.budget, BudgetPhase::Exhausted(_)) {
            self.warn_of_budgets();
        }
    }

    /// Asks for the last turn in place of a request that a budget stopped, unless that was the last turn.
    pub(super) fn give_up_request(&mut self) {
        if self.has_ended() {
            return;
        }
        match self.budget {
            BudgetPhase::LastTurnAnnounced(state) | BudgetPhase::LastTurn(state) => {
                self.stop(budget_error(state));
            }
            BudgetPhase::Available | BudgetPhase::Exhausted(_) => self.ask(),
        }
    }

    /// Informs the model of budgets that are exhausted or nearly so. Returns whether there are any.
    pub(super) fn warn_of_budgets(&mut self) -> bool {
        let near = std::mem::take(&mut self.near_budgets);
        let text = if let Some(state) = self.budget.exhausted() {
            self.budget = BudgetPhase::LastTurnAnnounced(state);
            format!(
                "The budget of this run is spent ({state}). This is the last turn: finish the task \
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
        self.push_user_message(UserKind::TurnWarning, text);
        true
    }
}
