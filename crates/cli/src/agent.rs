//! The agent behind the command line: commands on this machine, and a way to finish.

use std::sync::Arc;

use cantle::agent::{Agent, AgentBuilder};
use cantle::backends::local::LocalBackend;
use cantle::tools::{CodeExec, Finish, finish_schema};
use serde_json::Value;

use crate::display::FINISH;
use crate::settings::Rules;

pub(crate) const NAME: &str = "cantle";

/// Gives an agent its tools and rules. With a schema, it finishes with parameters like that.
pub(crate) fn complete(
    agent: AgentBuilder,
    rules: Rules,
    schema: Option<Value>,
) -> anyhow::Result<Agent> {
    let agent = agent
        .provider(CodeExec::new(Arc::new(LocalBackend::new())).timeout(rules.timeout))
        .max_turns(rules.max_turns);
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
