//! The rules of the loop, as a pure state machine.
//!
//! The rules do no I/O and read no clock. [`Machine::next`] returns the next [`Action`];
//! [`Machine::apply`] takes a [`Fact`]: the model answered, a call started, a call finished, the run
//! was cancelled. A journal of facts therefore is a run: cancelling, resuming and testing are one
//! mechanism, even while the calls of one turn run side by side.
//!
//! Start at `fact` (the input), `action` (the output) and `Machine::apply`. Of the machine's state,
//! `turn` owns the calls of the current turn, `conversation` the messages, and `ledger` the totals.
//!
//! Nothing in here depends on the rest of the crate but for errors and the resources of budgets.

mod action;
mod budget;
mod conversation;
mod fact;
mod ledger;
mod machine;
mod overflow;
mod repeats;
mod settings;
mod standing;
mod summary;
mod turn;

#[cfg(test)]
mod tests;

pub(crate) use self::action::{Action, RunEnd, SummaryAttempt};
pub(crate) use self::budget::BudgetState;
pub(crate) use self::fact::{CallOutcome, Fact, ModelFailure, NewSandbox, SubAgentEnded};
pub(crate) use self::ledger::{LedgerFold, Spending};
pub(crate) use self::machine::{Machine, tool_started};
pub use self::settings::TextAnswers;
pub(crate) use self::settings::default_max_repeats;
pub(crate) use self::settings::{ImageBounds, Rules, ToolTraits};
pub(crate) use self::standing::StandingApproval;
pub(crate) use self::summary::is_summary;
