//! The costs of a sub-agent.

use cantle_core::ledger::Ledger;

/// The end of a sub-agent's run, for the calling run's ledger.
#[derive(Debug)]
pub(crate) struct SubAgentReport {
    pub(crate) ledger: Ledger,
    /// Whether the sub-agent was stopped with the calling run, and continues with it.
    pub(crate) suspended: bool,
}
