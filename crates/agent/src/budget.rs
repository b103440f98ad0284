//! Budgets: what a run, with all that works for it, may use.
//!
//! Turns are counted by the loop itself. What sub-agents use counts for those above them too, so the
//! rest is counted here, where all of a tree can reach it: every account passes on what it is told to
//! the one above.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cantle_core::ledger::{Ledger, ModelCall};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

/// The part of a budget after which the model is told.
const NEAR: f64 = 0.8;

/// How much a run may use, together with its sub-agents. What is not set is not limited.
///
/// Near the end the model is told; when a budget is spent it gets one more turn, to finish, and then
/// the run ends. So what is used may be more than the budget by what one turn costs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Budget {
    /// Tokens, read and written, as providers count them or as estimated.
    pub tokens: Option<u64>,
    /// US dollars, as providers or given prices say. Refused where it is known that neither does; what a
    /// call cost of which nobody said it does not count, and a warning says so, once.
    pub cost_usd: Option<f64>,
    /// Time, from when the run begins or goes on.
    pub time: Option<Duration>,
    /// Tool calls that were begun.
    pub tool_calls: Option<u64>,
}

impl Budget {
    /// The same with this many tokens.
    #[must_use]
    pub fn tokens(mut self, tokens: u64) -> Self {
        self.tokens = Some(tokens);
        self
    }

    /// The same with this many US dollars.
    #[must_use]
    pub fn cost_usd(mut self, dollars: f64) -> Self {
        self.cost_usd = Some(dollars);
        self
    }

    /// The same with this much time.
    #[must_use]
    pub fn time(mut self, time: Duration) -> Self {
        self.time = Some(time);
        self
    }

    /// The same with this many tool calls.
    #[must_use]
    pub fn tool_calls(mut self, calls: u64) -> Self {
        self.tool_calls = Some(calls);
        self
    }
}

/// One of the things that a [`Budget`] limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Resource {
    Tokens,
    CostUsd,
    TimeS,
    ToolCalls,
}

/// How much of a budget is spent, in the resource's unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct BudgetState {
    pub(crate) resource: Resource,
    pub(crate) spent: f64,
    pub(crate) limit: f64,
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

/// What one run and those below it used, against its budget.
#[derive(Debug)]
pub(crate) struct Account {
    budget: Budget,
    used: Mutex<Used>,
    above: Option<Arc<Account>>,
}

#[derive(Debug)]
struct Used {
    tokens: u64,
    cost_usd: f64,
    tool_calls: u64,
    /// Time of processes before this one.
    earlier: Duration,
    since: Instant,
    /// What the run of this account was told of: whose budget (how many accounts above its own), and
    /// that it is near, or spent.
    told: Vec<(usize, Resource, bool)>,
    /// Whether somebody was told that a call's cost is not known.
    told_unpriced: bool,
}

/// What the loop must be told of budgets, each once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Notice {
    /// Most of one is spent.
    Near(BudgetState),
    /// One is spent.
    Spent(BudgetState),
}

impl Account {
    /// An account of which nothing is used.
    pub(crate) fn new(budget: Budget, above: Option<Arc<Account>>) -> Self {
        Self {
            budget,
            used: Mutex::new(Used {
                tokens: 0,
                cost_usd: 0.0,
                tool_calls: 0,
                earlier: Duration::ZERO,
                since: Instant::now(),
                told: Vec::new(),
                told_unpriced: false,
            }),
            above,
        }
    }

    fn used(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Books what a run used in an earlier process.
    pub(crate) fn carry_over(&self, ledger: &Ledger, time: Duration) {
        let tokens = ledger.reported_usage().total() + ledger.estimated_usage().total();
        self.book(
            tokens,
            ledger.cost_usd().unwrap_or_default(),
            ledger.begun_calls(),
        );
        self.used().earlier = time;
    }

    /// Books a model call.
    pub(crate) fn model_call(&self, call: &ModelCall) {
        self.book(call.usage.total(), call.cost_usd.unwrap_or_default(), 0);
    }

    /// The budget of money, here or above, that a call does not count against because nobody said what
    /// it cost; each budget once.
    pub(crate) fn unpriced(&self, call: &ModelCall) -> Option<f64> {
        if !call.is_of_unknown_cost() {
            return None;
        }
        let mut accounts = std::iter::successors(Some(self), |account| account.above.as_deref());
        accounts.find_map(|account| {
            let limit = account.budget.cost_usd?;
            let told = std::mem::replace(&mut account.used().told_unpriced, true);
            (!told).then_some(limit)
        })
    }

    /// Whether money is limited, here or above.
    pub(crate) fn limits_money(&self) -> bool {
        let mut accounts = std::iter::successors(Some(self), |account| account.above.as_deref());
        accounts.any(|account| account.budget.cost_usd.is_some())
    }

    /// Books a tool call that begins.
    pub(crate) fn tool_call(&self) {
        self.book(0, 0.0, 1);
    }

    fn book(&self, tokens: u64, cost_usd: f64, tool_calls: u64) {
        let mut account = Some(self);
        while let Some(this) = account {
            let mut used = this.used();
            used.tokens += tokens;
            used.cost_usd += cost_usd;
            used.tool_calls += tool_calls;
            account = this.above.as_deref();
        }
    }

    /// The time that is left, here and above, with this much more; none where it is not limited.
    pub(crate) fn time_left(&self, more: Duration) -> Option<(Duration, BudgetState)> {
        let here = self.budget.time.map(|limit| {
            let time = self.time();
            let state = BudgetState {
                resource: Resource::TimeS,
                spent: time.as_secs_f64(),
                limit: limit.as_secs_f64(),
            };
            ((limit + more).saturating_sub(time), state)
        });
        let above = self.above.as_ref().and_then(|above| above.time_left(more));
        here.into_iter().chain(above).min_by_key(|(left, _)| *left)
    }

    /// Time used so far, with that of earlier processes.
    pub(crate) fn time(&self) -> Duration {
        let used = self.used();
        used.earlier + used.since.elapsed()
    }

    /// What is to be told now. Every run is told by itself, also of budgets that it shares.
    pub(crate) fn notices(&self) -> Vec<Notice> {
        let accounts = std::iter::successors(Some(self), |account| account.above.as_deref());
        let states = accounts
            .map(Self::states)
            .enumerate()
            .flat_map(|(above, states)| states.into_iter().map(move |state| (above, state)));
        let states: Vec<_> = states.collect();
        let mut used = self.used();
        let mut notices = Vec::new();
        for (above, state) in states {
            let over = state.spent >= state.limit;
            let key = (above, state.resource, over);
            if state.spent < state.limit * NEAR || used.told.contains(&key) {
                continue;
            }
            used.told.push(key);
            notices.push(if over {
                Notice::Spent(state)
            } else {
                Notice::Near(state)
            });
        }
        notices
    }

    /// How this account's own budget stands.
    fn states(&self) -> Vec<BudgetState> {
        let time = self.time();
        let used = self.used();
        // Token counts are far below 2^52, where the conversions are exact.
        let states = [
            (
                Resource::Tokens,
                used.tokens as f64,
                self.budget.tokens.map(|limit| limit as f64),
            ),
            (Resource::CostUsd, used.cost_usd, self.budget.cost_usd),
            (
                Resource::TimeS,
                time.as_secs_f64(),
                self.budget.time.map(|limit| limit.as_secs_f64()),
            ),
            (
                Resource::ToolCalls,
                used.tool_calls as f64,
                self.budget.tool_calls.map(|limit| limit as f64),
            ),
        ];
        let limited = |(resource, spent, limit): (Resource, f64, Option<f64>)| {
            Some(BudgetState {
                resource,
                spent,
                limit: limit?,
            })
        };
        states.into_iter().filter_map(limited).collect()
    }
}

#[cfg(test)]
mod tests;
