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

use async_trait::async_trait;
use cantle_core::llm::ModelInfo;
use cantle_core::tool::{DynTool, ToolContext, ToolError, ToolOutput};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;

use self::background_tool::BackgroundParams;
pub use self::options::SubAgent;
use self::work::Params;
use crate::agent::AgentBuilder;
use crate::scope::{AgentTool, SubAgentCall, SubAgentTool};

impl AgentBuilder {
    /// Adds a sub-agent, which the model calls like a tool.
    pub fn sub_agent(self, sub_agent: SubAgent) -> Self {
        let tool = if sub_agent.in_background {
            // Repeating a call is how to observe a background sub-agent.
            definition::<BackgroundParams>(&sub_agent).with_polls(true)
        } else {
            definition::<Params>(&sub_agent)
        };
        self.add_tool(AgentTool {
            tool,
            sub_agent: Some(Arc::new(sub_agent)),
        })
    }
}

#[async_trait]
impl SubAgentTool for SubAgent {
    async fn call(
        &self,
        arguments: Value,
        cx: ToolContext,
        call: Arc<SubAgentCall>,
    ) -> Result<ToolOutput, ToolError> {
        if self.in_background {
            self.call_in_background(parse(arguments)?, &cx, &call).await
        } else {
            self.call_and_wait(parse(arguments)?, &cx, &call).await
        }
    }

    fn models(&self) -> Vec<&ModelInfo> {
        self.agent.0.models()
    }
}

/// Deserializes parsed arguments.
fn parse<P: DeserializeOwned>(arguments: Value) -> Result<P, ToolError> {
    P::deserialize(arguments).map_err(|error| ToolError::failed(error.to_string()))
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
