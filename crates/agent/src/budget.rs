//! Budgets: limits on the spending of a run and its sub-agents.
//!
//! The state machine counts turns. Everything else is counted here, since the spending of sub-agents
//! counts against the budgets of all runs above them: each account adds to its parent.

use std::sync::Arc;
use std::time::Duration;

use cantle_core::ledger::{Ledger, ModelCall};
use cantle_core::llm::ModelInfo;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::resource::Resource;
use crate::rules::{BudgetState, Spending};

/// Spent part of a budget from which on the model is warned.
const WARNING_THRESHOLD: f64 = 0.8;

/// Limits on a run and its sub-agents together. An unset field is unlimited.
///
/// Near the end of a budget the model is warned; when a budget is exhausted, the model gets one more
/// turn to finish, and then the run ends. The spending may therefore exceed the budget by the cost of
/// one turn.
#[must_use]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Budget {
    /// Input and output tokens, as counted by the provider or estimated.
    pub tokens: Option<u64>,
    /// US dollars, as reported by the provider or computed from prices. A session is refused if the
    /// provider of one of its models is not known to report costs and there are no prices. A call that
    /// comes back without a cost counts with the highest prices of its provider; if they are unknown, the
    /// run ends.
    pub cost_usd: Option<f64>,
    /// Time during which processes work on the run, with that before it was resumed.
    pub time: Option<Duration>,
    /// Tool calls that were started.
    pub tool_calls: Option<u64>,
}

impl Budget {
    /// Returns a budget without limits, on which limits are set.
    pub fn builder() -> Self {
        Self::default()
    }

    /// Sets the number of tokens.
    pub fn tokens(mut self, tokens: u64) -> Self {
        self.tokens = Some(tokens);
        self
    }

    /// Sets the amount in US dollars.
    pub fn cost_usd(mut self, dollars: f64) -> Self {
        self.cost_usd = Some(dollars);
        self
    }

    /// Sets the time.
    pub fn time(mut self, time: Duration) -> Self {
        self.time = Some(time);
        self
    }

    /// Sets the number of tool calls.
    pub fn tool_calls(mut self, calls: u64) -> Self {
        self.tool_calls = Some(calls);
        self
    }
}

/// The spending of one run and its sub-agents, and its budget.
#[derive(Debug)]
pub(crate) struct Account {
    budget: Budget,
    state: Mutex<AccountState>,
    parent: Option<Arc<Account>>,
}

#[derive(Debug)]
struct AccountState {
    spending: Spending,
    /// Time used by earlier processes.
    earlier: Duration,
    since: Instant,
    /// Notices given to this account's run: the levels between it and the budget's account, the
    /// resource, and whether the budget was exhausted.
    notified: Vec<(usize, Resource, bool)>,
    /// The model of a call without a known cost, if money is limited.
    without_cost: Option<String>,
}

impl Account {
    /// An account without spending.
    pub(crate) fn new(budget: Budget, parent: Option<Arc<Account>>) -> Self {
        Self {
            budget,
            state: Mutex::new(AccountState {
                spending: Spending::default(),
                earlier: Duration::ZERO,
                since: Instant::now(),
                notified: Vec::new(),
                without_cost: None,
            }),
            parent,
        }
    }

    /// This account and those above it.
    fn with_parents(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |account| account.parent.as_deref())
    }

    /// Adds the spending of earlier processes, and the time that they used.
    pub(crate) fn carry_over(&self, ledger: &Ledger, models: &[&ModelInfo], time: Duration) {
        self.earlier_run(ledger, models);
        self.state.lock().earlier = time;
    }

    /// Adds the spending of earlier processes on this run, or on a sub-agent that does not continue. Calls of
    /// its models whose cost was not known then have the prices that are known now.
    pub(crate) fn earlier_run(&self, ledger: &Ledger, models: &[&ModelInfo]) {
        self.add(ledger.into());
        let unknown = ledger.all_model_calls().filter(|it| it.has_unknown_cost());
        for call in unknown {
            let named = models.iter().map(|model| model.named(&call.model));
            let mut named = named.filter(|model| model.slug == call.model);
            if let Some(prices) = named.find_map(|model| model.prices.or(model.highest_prices)) {
                self.add(Spending {
                    cost_usd: Some(prices.cost_usd(&call.usage)),
                    ..Spending::default()
                });
            }
        }
    }

    /// Adds a model call.
    pub(crate) fn model_call(&self, call: &ModelCall) {
        self.add(call.into());
        if call.has_unknown_cost() {
            let limited = |account: &&Self| account.budget.cost_usd.is_some();
            for account in self.with_parents().filter(limited) {
                account.state.lock().without_cost = Some(call.model.clone());
            }
        }
    }

    /// Returns the model of a call without a known cost, if money is limited here or above.
    pub(crate) fn model_without_cost(&self) -> Option<String> {
        self.with_parents()
            .find_map(|account| account.state.lock().without_cost.clone())
    }

    /// Adds a tool call that starts.
    pub(crate) fn tool_call(&self) {
        self.add(Spending {
            tool_calls: 1,
            ..Spending::default()
        });
    }

    fn add(&self, spending: Spending) {
        for account in self.with_parents() {
            account.state.lock().spending += spending;
        }
    }

    /// Whether money is limited, here or above.
    pub(crate) fn limits_money(&self) -> bool {
        self.with_parents()
            .any(|account| account.budget.cost_usd.is_some())
    }

    /// Returns the least time left, here and above, plus `extra`, with its budget; `None` if unlimited.
    pub(crate) fn time_left(&self, extra: Duration) -> Option<(Duration, BudgetState)> {
        let limits = self.with_parents().filter_map(|account| {
            let limit = account.budget.time?;
            let time = account.time();
            let state = BudgetState {
                resource: Resource::TimeS,
                spent: time.as_secs_f64(),
                limit: limit.as_secs_f64(),
            };
            Some((limit.saturating_add(extra).saturating_sub(time), state))
        });
        limits.min_by_key(|(left, _)| *left)
    }

    /// Time used, including that of earlier processes.
    fn time(&self) -> Duration {
        let state = self.state.lock();
        state.earlier + state.since.elapsed()
    }

    /// Whether a budget is exhausted or can't be enforced, here or above.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.model_without_cost().is_some()
            || self
                .with_parents()
                .any(|account| account.budget_states().any(|state| state.is_exhausted()))
    }

    /// Returns the budgets that are newly near or exhausted. Every run gets its own notices, also
    /// about budgets that it shares.
    pub(crate) fn notices(&self) -> Vec<BudgetState> {
        let mut notices = Vec::new();
        for (level, account) in self.with_parents().enumerate() {
            for state in account.budget_states() {
                if state.spent < state.limit * WARNING_THRESHOLD {
                    continue;
                }
                let key = (level, state.resource, state.is_exhausted());
                let notified = &mut self.state.lock().notified;
                if !notified.contains(&key) {
                    notified.push(key);
                    notices.push(state);
                }
            }
        }
        notices
    }

    /// The states of this account's own budget, for the resources that it limits.
    fn budget_states(&self) -> impl Iterator<Item = BudgetState> {
        let Budget {
            tokens,
            cost_usd,
            time,
            tool_calls,
        } = self.budget;
        let spending = self.state.lock().spending;
        let state = |resource, spent, limit: Option<f64>| {
            Some(BudgetState {
                resource,
                spent,
                limit: limit?,
            })
        };
        let count = |limit: Option<u64>| limit.map(|it| it as f64);
        // Counts are far below 2^52, so the conversions are exact.
        let (spent_tokens, calls) = (spending.tokens as f64, spending.tool_calls as f64);
        let (dollars, elapsed) = (spending.cost_usd.unwrap_or_default(), self.time());
        let states = [
            state(Resource::Tokens, spent_tokens, count(tokens)),
            state(Resource::CostUsd, dollars, cost_usd),
            state(
                Resource::TimeS,
                elapsed.as_secs_f64(),
                time.map(|it| it.as_secs_f64()),
            ),
            state(Resource::ToolCalls, calls, count(tool_calls)),
        ];
        states.into_iter().flatten()
    }
}

#[cfg(test)]
mod tests;
