//! The agent behind the command line: commands in a sandbox, and a way to finish.

use std::sync::Arc;

use cantle::agent::{Agent, AgentBuilder};
use cantle::core::sandbox::Backend;
use cantle::tools::{CodeExec, Finish, finish_schema};
use serde_json::Value;

use crate::settings::Rules;

pub(crate) const NAME: &str = "cantle";

/// The tool whose call ends a run, whatever its parameters are.
pub(crate) const FINISH: &str = "finish";

/// Gives an agent its tools and rules. With a schema, it finishes with parameters like that.
pub(crate) fn complete(
    agent: AgentBuilder,
    backend: Arc<dyn Backend>,
    rules: Rules,
    schema: Option<Value>,
) -> anyhow::Result<Agent> {
    let commands = CodeExec::new(backend)
        .policy(rules.policy)
        .timeout(rules.timeout);
    let agent = agent.provider(commands).max_turns(rules.max_turns);
    let agent = match rules.system_prompt {
        Some(instructions) => agent.system_prompt(instructions),
        None => agent,
    };
    let agent = match schema {
        Some(schema) => {
            let description = "Ends the task with its result, once everything is done.";
            agent.finish(finish_schema(FINISH, description, schema))
        }
        None => agent.finish(Finish),
    };
    Ok(agent.build()?)
}
