//! Approvals of a user that hold for later calls of the run.

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

impl StandingApproval {
    /// Whether a call is approved.
    pub(crate) fn covers(&self, call: &ToolCall) -> bool {
        let arguments = self.arguments.as_ref();
        self.tool == call.name && arguments.is_none_or(|it| *it == call.arguments)
    }
}
