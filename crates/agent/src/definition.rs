//! The definition of an agent, shared by its sessions.

use std::sync::{Arc, OnceLock};

use cantle_core::llm::{LlmClient, ModelInfo};
use cantle_core::tool::{AskUser, DynTool, Requirements, ToolProvider};

use crate::approval::Approvals;
use crate::hooks::Hooks;
use crate::rules::Rules;
use crate::scope::AgentTool;
use crate::tool_table::ToolTable;

/// Everything that the sessions of an agent have in common.
pub(crate) struct Definition {
    pub(crate) name: String,
    pub(crate) client: Arc<dyn LlmClient>,
    pub(crate) system_prompt: Option<String>,
    pub(crate) describes_environment: bool,
    pub(crate) tools: Vec<AgentTool>,
    pub(crate) finish_tools: Vec<DynTool>,
    pub(crate) providers: Vec<Arc<dyn ToolProvider>>,
    pub(crate) user: Arc<dyn AskUser>,
    pub(crate) rules: Rules,
    pub(crate) approvals: Approvals,
    pub(crate) hooks: Option<Arc<dyn Hooks>>,
    /// The table of sessions to which no provider adds tools.
    pub(crate) tool_table: OnceLock<Arc<ToolTable>>,
}

impl Definition {
    /// Returns the models of this agent and of its sub-agents.
    pub(crate) fn models(&self) -> Vec<&ModelInfo> {
        let sub_agents = self.tools.iter().filter_map(|it| it.sub_agent.as_ref());
        let own = std::iter::once(self.client.model());
        own.chain(sub_agents.flat_map(|it| it.models())).collect()
    }

    /// Returns the name of a model whose calls have no known cost: this agent's, a fallback, or a
    /// sub-agent's.
    pub(crate) fn model_without_cost(&self) -> Option<String> {
        let mut models = self.models().into_iter();
        let model = models.find_map(ModelInfo::without_cost)?;
        Some(model.slug.clone())
    }

    /// Returns what all providers need from the sandbox.
    pub(crate) fn requirements(&self) -> Requirements {
        let mut all = Requirements::new();
        for provider in &self.providers {
            all.merge(provider.requirements());
        }
        all
    }

    /// Returns the table of the agent's tools and these tools of providers.
    ///
    /// # Errors
    /// If a name is invalid or not unique.
    pub(crate) fn tool_table(&self, provided: Vec<DynTool>) -> Result<Arc<ToolTable>, String> {
        if provided.is_empty() {
            if let Some(table) = self.tool_table.get() {
                return Ok(Arc::clone(table));
            }
            let table = Arc::new(ToolTable::new(&self.tools, &self.finish_tools)?);
            return Ok(Arc::clone(self.tool_table.get_or_init(|| table)));
        }
        let provided = provided.into_iter().map(AgentTool::from);
        let tools: Vec<_> = self.tools.iter().cloned().chain(provided).collect();
        Ok(Arc::new(ToolTable::new(&tools, &self.finish_tools)?))
    }
}
