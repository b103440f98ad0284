//! The fold of a run's facts into its ledger. Every total of the crate is read from here.

use std::ops::AddAssign;

use cantle_core::ledger::{CallPurpose, Ledger, ModelCall};

use super::fact::CallOutcome;

/// The ledger of a run, as far as its facts are known.
#[derive(Clone, Debug, Default)]
pub(crate) struct LedgerFold {
    ledger: Ledger,
    /// Ledgers of sub-agents that were suspended with the run. When they are resumed, their own
    /// journals report the same costs again.
    suspended: Vec<(String, Ledger)>,
}

impl LedgerFold {
    /// The ledger without suspended sub-agents.
    pub(crate) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The ledger at the end of a process, with suspended sub-agents.
    pub(crate) fn into_ledger(mut self) -> Ledger {
        for (tool, ledger) in std::mem::take(&mut self.suspended) {
            self.sub_agent(&tool, ledger);
        }
        self.ledger
    }

    /// Adds a model call. Returns its index, for [`drop_turn`](Self::drop_turn).
    pub(crate) fn model_call(&mut self, call: ModelCall) -> usize {
        self.ledger.model_calls.push(call);
        self.ledger.model_calls.len() - 1
    }

    /// Marks the call of a turn that was dropped.
    pub(super) fn drop_turn(&mut self, index: usize) {
        if let Some(call) = self.ledger.model_calls.get_mut(index) {
            call.purpose = CallPurpose::DroppedTurn;
        }
    }

    /// Adds a tool call that ran.
    pub(super) fn tool_call(&mut self, tool: &str, outcome: &CallOutcome) {
        self.ledger.record_repairs(tool, outcome.repairs);
        self.ledger.record_tool(
            tool,
            outcome.success,
            outcome.duration,
            outcome.metadata.clone(),
        );
        if outcome.cancelled {
            self.ledger.record_cancelled(tool);
        }
    }

    /// Adds a tool call that was answered without running.
    pub(super) fn refused_call(&mut self, tool: &str) {
        self.ledger.record_refused(tool);
    }

    /// Adds the ledger of a sub-agent that ended.
    pub(crate) fn sub_agent(&mut self, tool: &str, ledger: Ledger) {
        let ledgers = self.ledger.sub_agents.entry(tool.to_owned());
        ledgers.or_default().push(ledger);
    }

    /// Adds the ledger of a sub-agent that was suspended with the run.
    pub(crate) fn suspended_sub_agent(&mut self, tool: String, ledger: Ledger) {
        self.suspended.push((tool, ledger));
    }

    /// Removes suspended sub-agents: the run continues, and so do they.
    pub(crate) fn resumed(&mut self) {
        self.suspended.clear();
    }
}

/// Totals that budgets limit and lists show.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Spending {
    /// Reported and estimated tokens.
    pub(crate) tokens: u64,
    /// Known cost in US dollars; `None` if no cost is known.
    pub(crate) cost_usd: Option<f64>,
    /// Tool calls that were started.
    pub(crate) tool_calls: u64,
}

impl From<&ModelCall> for Spending {
    fn from(call: &ModelCall) -> Self {
        Self {
            tokens: call.usage.total(),
            cost_usd: call.cost_usd,
            tool_calls: 0,
        }
    }
}

impl From<&Ledger> for Spending {
    fn from(ledger: &Ledger) -> Self {
        Self {
            tokens: (ledger.reported_usage() + ledger.estimated_usage()).total(),
            cost_usd: ledger.cost_usd(),
            tool_calls: ledger.started_tool_calls(),
        }
    }
}

impl AddAssign for Spending {
    fn add_assign(&mut self, other: Self) {
        self.tokens += other.tokens;
        self.cost_usd = [self.cost_usd, other.cost_usd]
            .into_iter()
            .flatten()
            .reduce(|a, b| a + b);
        self.tool_calls += other.tool_calls;
    }
}
