//! Approvals of a user that hold for later calls of the run.

use std::collections::HashSet;

use cantle_core::message::ToolCall;
use serde::{Deserialize, Serialize};

/// The calls that a user approved once and for all.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct StandingApproval {
    /// The tool that is called.
    pub(crate) tool: String,
    /// The exact arguments; `None` for any.
    pub(crate) arguments: Option<String>,
}

/// All standing approvals of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct StandingApprovals(HashSet<StandingApproval>);

impl StandingApprovals {
    pub(crate) fn insert(&mut self, approval: StandingApproval) {
        self.0.insert(approval);
    }

    /// Whether a call was approved.
    pub(crate) fn covers(&self, call: &ToolCall) -> bool {
        self.0.iter().any(|approval| {
            let arguments = approval.arguments.as_ref();
            approval.tool == call.name && arguments.is_none_or(|it| *it == call.arguments)
        })
    }
}
