//! The tools of an agent, and the interface between a run and the sub-agents it calls.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use cantle_core::ledger::Ledger;
use cantle_core::llm::ModelInfo;
use cantle_core::sandbox::Sandbox;
use cantle_core::tool::{DynTool, ToolContext, ToolError, ToolOutput};
use parking_lot::Mutex;
use serde_json::Value;

use super::background::SubAgentReport;
use super::run_scope::RunScope;
use crate::journal::RunStore;
use crate::progress::SubAgentProgress;

/// A tool of an agent: an ordinary one, or a sub-agent.
#[derive(Clone)]
pub(crate) struct AgentTool {
    /// Name, parameters and properties; also the body of an ordinary tool.
    pub(crate) tool: DynTool,
    /// The body of a sub-agent.
    pub(crate) sub_agent: Option<Arc<dyn SubAgentTool>>,
}

impl From<DynTool> for AgentTool {
    fn from(tool: DynTool) -> Self {
        Self {
            tool,
            sub_agent: None,
        }
    }
}

impl fmt::Debug for AgentTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tool.fmt(f)
    }
}

/// A tool whose calls run another agent, below the calling run.
#[async_trait]
pub(crate) trait SubAgentTool: Send + Sync {
    /// Runs a call. Its costs are left in the call's report.
    async fn call(
        &self,
        arguments: Value,
        cx: ToolContext,
        call: Arc<SubAgentCall>,
    ) -> Result<ToolOutput, ToolError>;

    /// Returns the models of the sub-agent and of those below it.
    fn models(&self) -> Vec<&ModelInfo>;
}

/// The calling run, as a sub-agent's session sees it.
#[derive(Clone, Debug)]
pub(crate) struct ParentRun {
    pub(crate) scope: Arc<RunScope>,
    pub(crate) call_id: String,
    /// The calling run's sandbox, from which files come and to which they are delivered.
    pub(crate) sandbox: Option<Arc<dyn Sandbox>>,
    /// Whether the sub-agent works in that sandbox.
    pub(crate) shares_sandbox: bool,
}

/// One call of a sub-agent.
#[derive(Debug)]
pub(crate) struct SubAgentCall {
    /// The calling run.
    pub(crate) scope: Arc<RunScope>,
    pub(crate) call_id: String,
    pub(crate) progress: Arc<SubAgentProgress>,
    report: Mutex<Option<SubAgentReport>>,
}

impl SubAgentCall {
    pub(crate) fn new(scope: &Arc<RunScope>, call_id: &str) -> Self {
        Self {
            scope: Arc::clone(scope),
            call_id: call_id.to_owned(),
            progress: Arc::default(),
            report: Mutex::default(),
        }
    }

    /// The store of this call's runs, if runs are kept.
    pub(crate) fn store(&self) -> Option<RunStore> {
        let store = self.scope.store.as_ref()?;
        Some(store.of_call(self.scope.run, &self.call_id))
    }

    pub(crate) fn set_report(&self, report: SubAgentReport) {
        *self.report.lock() = Some(report);
    }

    pub(crate) fn take_report(&self) -> Option<SubAgentReport> {
        self.report.lock().take()
    }

    /// The ledger of a sub-agent whose call has no result: that of its report, or of its progress so far. `None` if it
    /// used nothing, or works in the background, which has a report of its own.
    pub(crate) fn take_ledger(&self) -> Option<Ledger> {
        if self.scope.background.of_call(&self.call_id).is_some() {
            return None;
        }
        let report = self.take_report().map(|report| report.ledger);
        let ledger = report.unwrap_or_else(|| self.progress.ledger());
        Some(ledger).filter(|ledger| !ledger.model_calls.is_empty())
    }
}
