//! The identity of a run: what must be the same for it to go on as itself.

use cantle_core::tool::DynTool;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::hex;
use crate::agent::Definition;

/// What an agent is, as far as a run depends on it: its name and model, its instructions, its tools
/// and what its providers say of themselves (a sandbox's policy). Limits and budgets are no part of
/// it, so that a run that reached one can go on with a larger one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Identity(Value);

impl Identity {
    /// The identity of sessions of `agent` with these tools.
    pub(crate) fn new(agent: &Definition, tools: &[DynTool]) -> Self {
        let described = |tools: &mut dyn Iterator<Item = &DynTool>| -> Map<String, Value> {
            tools
                .map(|tool| (tool.name().to_owned(), digest(tool).into()))
                .collect()
        };
        let providers: Map<String, Value> = agent
            .providers
            .iter()
            .map(|provider| (provider.name().to_owned(), provider.identity()))
            .collect();
        Self(json!({
            "agent": agent.name,
            "model": agent.client.model().slug,
            "instructions": agent.system_prompt,
            "tools": described(&mut tools.iter()),
            "finish_tools": described(&mut agent.finish_tools.iter()),
            "providers": providers,
        }))
    }

    /// What is different in `now`, a line each.
    pub(crate) fn differences(&self, now: &Self) -> Vec<String> {
        let mut lines = Vec::new();
        compare("", &self.0, &now.0, &mut lines);
        lines
    }
}

/// What a tool tells the model about itself, in short.
fn digest(tool: &DynTool) -> String {
    let spec = tool.spec();
    let described = json!([spec.description(), spec.parameters()]).to_string();
    hex(&Sha256::digest(described)).chars().take(16).collect()
}

fn compare(path: &str, then: &Value, now: &Value, lines: &mut Vec<String>) {
    if let (Value::Object(then), Value::Object(now)) = (then, now) {
        let added = now.keys().filter(|key| !then.contains_key(*key));
        for key in then.keys().chain(added) {
            let path = if path.is_empty() {
                key.clone()
            } else {
                format!("{path}.{key}")
            };
            let field = |fields: &Map<String, Value>| fields.get(key).cloned().unwrap_or_default();
            compare(&path, &field(then), &field(now), lines);
        }
    } else if then != now {
        let shown = |value: &Value| match value {
            Value::Null => "nothing".to_owned(),
            other => other.to_string(),
        };
        lines.push(format!("{path}: {} then, {} now", shown(then), shown(now)));
    }
}
