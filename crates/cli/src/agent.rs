//! The agent behind the command line: commands in a sandbox, and a finish tool.

use std::num::NonZeroU32;
use std::sync::Arc;

use cantle::agent::{Agent, AgentBuilder, TextAnswers};
use cantle::core::policy::Policy;
use cantle::core::sandbox::Backend;
use cantle::tools::{CodeExec, Finish, finish_schema};
use serde_json::Value;

use crate::settings::Settings;

pub(crate) const NAME: &str = "cantle";

/// Name of the finish tool, whatever its parameters are.
pub(crate) const FINISH: &str = "finish";

/// Adds `code_exec`, the finish tool and the settings to an agent.
///
/// With a schema, the finish tool takes parameters of that schema.
pub(crate) fn complete(
    agent: AgentBuilder,
    backend: Arc<dyn Backend>,
    policy: Policy,
    settings: &Settings,
    schema: Option<Value>,
) -> anyhow::Result<Agent> {
    let code_exec = CodeExec::new(backend)
        .policy(policy)
        .timeout(settings.timeout())
        .parallel(settings.parallel_commands == Some(true));
    let mut agent = agent.provider(code_exec).max_turns(settings.max_turns());
    if let Some(repeats) = settings.max_repeats {
        agent = agent.max_repeats(NonZeroU32::new(repeats));
    }
    if settings.strict_finish == Some(true) {
        agent = agent.text_answers(TextAnswers::Insist);
    }
    if let Some(prompt) = &settings.system_prompt {
        agent = agent.system_prompt(prompt);
    }
    agent = match schema {
        Some(schema) => {
            let description = "Ends the task with its result, once everything is done.";
            agent.finish(finish_schema(FINISH, description, schema))
        }
        None => agent.finish(Finish),
    };
    Ok(agent.build()?)
}
