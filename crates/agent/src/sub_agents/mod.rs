//! Sub-agents: agents as tools of another agent.
//!
//! A call opens a session of the sub-agent, with its own sandbox unless it shares the caller's. Input
//! files are copied in, and the files of its finish call are copied back. The events of its run are
//! forwarded to the caller's, its spending counts against the caller's budget, and its ledger becomes
//! part of the caller's. If the caller's run is kept, so is the sub-agent's, beside it: a call that was
//! killed or cancelled continues where it was.
//!
//! A call of a background sub-agent only starts it; other calls of the same tool show its status, wait
//! for it and stop it.

mod background_tool;
mod call_tool;
mod options;
mod render;
mod work;

use std::sync::Arc;

use cantle_core::tool::{DynTool, ToolError};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;

use self::background_tool::{BackgroundParams, BackgroundTool};
use self::call_tool::CallTool;
pub use self::options::SubAgent;
use self::work::Params;
use crate::agent::AgentBuilder;
use crate::scope::{AgentTool, SubAgentTool};

impl AgentBuilder {
    /// Adds a sub-agent, which the model calls like a tool.
    #[must_use]
    pub fn sub_agent(self, sub_agent: SubAgent) -> Self {
        let tool = if sub_agent.in_background {
            // Repeating a call is how to observe a background sub-agent.
            let tool = definition::<BackgroundParams>(&sub_agent).with_polls(true);
            agent_tool(tool, Arc::new(BackgroundTool(sub_agent)))
        } else {
            let tool = definition::<Params>(&sub_agent);
            agent_tool(tool, Arc::new(CallTool(sub_agent)))
        };
        self.add_tool(tool)
    }
}

fn agent_tool(tool: DynTool, sub_agent: Arc<dyn SubAgentTool>) -> AgentTool {
    AgentTool {
        tool,
        sub_agent: Some(sub_agent),
    }
}

/// The tool as the model sees it. Its calls may run side by side; they resume from the sub-agent's own
/// journal; and they have turns and budgets instead of a timeout.
fn definition<P: JsonSchema + DeserializeOwned + Send + 'static>(sub_agent: &SubAgent) -> DynTool {
    let name = sub_agent.agent.name();
    let body = |_: P, _| Err(ToolError::failed("A sub-agent needs a calling agent."));
    DynTool::blocking(name, &*sub_agent.description, body)
        .with_concurrency_safe(true)
        .with_repeatable(true)
        .with_timeout(None)
}
