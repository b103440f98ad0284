//! The state of a budget, and how it ends a run.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::{RunError, RunErrorKind};
use crate::resource::Resource;

/// The use of one budget, in the resource's unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct BudgetState {
    pub(crate) resource: Resource,
    pub(crate) spent: f64,
    pub(crate) limit: f64,
}

impl BudgetState {
    pub(crate) fn is_exhausted(&self) -> bool {
        self.spent >= self.limit
    }
}

impl fmt::Display for BudgetState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { spent, limit, .. } = self;
        match self.resource {
            Resource::Tokens => write!(f, "{spent:.0} of {limit:.0} tokens"),
            Resource::CostUsd => write!(f, "${spent:.4} of ${limit}"),
            Resource::TimeS => write!(f, "{spent:.0} of {limit:.0} s"),
            Resource::ToolCalls => write!(f, "{spent:.0} of {limit:.0} tool calls"),
        }
    }
}

/// The progress of a run towards its end because of a budget.
#[derive(Clone, Copy, Debug)]
pub(super) enum BudgetPhase {
    Available,
    /// The model will be informed before its next turn.
    Exhausted(BudgetState),
    /// The model was informed that its next turn is the last.
    LastTurnAnnounced(BudgetState),
    /// The last turn was made.
    LastTurn(BudgetState),
}

impl BudgetPhase {
    pub(super) fn exhausted(self) -> Option<BudgetState> {
        match self {
            Self::Available => None,
            Self::Exhausted(state) | Self::LastTurnAnnounced(state) | Self::LastTurn(state) => {
                Some(state)
            }
        }
    }

    pub(super) fn is_out_of_time(self) -> bool {
        let state = self.exhausted();
        state.is_some_and(|state| state.resource == Resource::TimeS)
    }
}

/// The error of a run that ends because of a budget.
pub(super) fn budget_error(state: BudgetState) -> RunError {
    let message = format!("the run's budget is spent: {state}");
    RunError::new(RunErrorKind::Budget, message).with_resource(state.resource)
}

/// The error of a run that ends because its budget of money can't be enforced any more.
pub(super) fn unknown_cost_error(model: &str) -> RunError {
    let message = format!(
        "the cost of a call of {model} is unknown, so the run's budget of money can't be enforced"
    );
    RunError::new(RunErrorKind::Budget, message)
        .with_advice("Set the model's prices, or limit tokens instead.")
}
