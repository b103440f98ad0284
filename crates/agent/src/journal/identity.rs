//! The identity of a run: what must be equal for another process to resume it.

use cantle_core::llm::{ModelInfo, ToolSpecs};
use cantle_core::tool::ToolSpec;
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use crate::rules::ToolTraits;

/// Annotations of a JSON schema, which don't change the parameters that it accepts.
const ANNOTATIONS: [&str; 6] = [
    "$comment",
    "$schema",
    "default",
    "description",
    "examples",
    "title",
];

/// Keywords of a JSON schema whose values map names to schemas.
const SCHEMA_MAPS: [&str; 3] = ["$defs", "definitions", "properties"];

/// The parts of an agent on which its runs depend: name, model and its parameters, instructions, tools, and the identities
/// of its providers (a sandbox's policy). Limits and budgets are not included, so that a run that
/// reached one can be resumed with a larger one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Identity(Value);

/// The differences between the agent that began a run and the one that resumes it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Differences {
    /// Differences that prevent resuming.
    pub(crate) conflicts: Vec<String>,
    /// Differences of descriptions and built-in defaults.
    pub(crate) warnings: Vec<String>,
}

impl Identity {
    /// The identity of an agent. `specs` describes all tools, `is_finish` selects the finish tools.
    pub(crate) fn new(
        agent: &str,
        model: &ModelInfo,
        instructions: Option<&str>,
        specs: &ToolSpecs,
        is_finish: impl Fn(&str) -> bool,
        providers: &Map<String, Value>,
    ) -> Self {
        let (mut tools, mut finish_tools) = (Map::new(), Map::new());
        for spec in specs.iter() {
            let tools = match is_finish(spec.name()) {
                true => &mut finish_tools,
                false => &mut tools,
            };
            let tool = json!({"description": spec.description(), "parameters": spec.parameters()});
            tools.insert(spec.name().to_owned(), tool);
        }
        Self(json!({
            "agent": agent,
            "model": model.slug,
            // Absent in journals of version 0.1.0.
            "parameters": Some(&model.parameters).filter(|it| !it.is_empty()),
            "instructions": instructions,
            "tools": tools,
            "finish_tools": finish_tools,
            "providers": providers,
        }))
    }

    /// Compares the identity of a journal with that of an agent.
    pub(crate) fn compare(&self, now: &Self) -> Differences {
        let mut differences = Differences::default();
        differences.compare("", &self.0, &now.0);
        differences
    }

    /// Returns tool specs with the texts that this identity records, so that a resumed run continues
    /// with the texts that the model has seen.
    pub(crate) fn recorded_specs(&self, specs: &ToolSpecs) -> ToolSpecs {
        let specs = specs.iter();
        let specs = specs.map(|spec| {
            self.recorded_spec(spec.name())
                .unwrap_or_else(|| spec.clone())
        });
        ToolSpecs::new(specs.collect())
    }

    /// Returns the recorded spec of a tool.
    pub(super) fn recorded_spec(&self, name: &str) -> Option<ToolSpec> {
        let groups = ["tools", "finish_tools"].into_iter();
        let mut tools = groups.filter_map(|group| self.0.get(group)?.get(name));
        let tool = tools.next()?;
        let description = tool.get("description")?.as_str()?;
        let parameters = tool.get("parameters")?.clone();
        Some(ToolSpec::new(name, description, parameters))
    }

    /// The names of the agent and its model.
    pub(crate) fn names(&self) -> (&str, &str) {
        let name = |key| self.0.get(key).and_then(Value::as_str).unwrap_or_default();
        (name("agent"), name("model"))
    }

    /// The tools as far as their names tell: enough to compute a ledger from facts.
    pub(crate) fn tool_traits(&self) -> IndexMap<String, ToolTraits> {
        let mut traits = IndexMap::new();
        for (group, finishes) in [("tools", false), ("finish_tools", true)] {
            let tools = self.0.get(group).and_then(Value::as_object);
            for name in tools.into_iter().flat_map(Map::keys) {
                let tool = ToolTraits {
                    finishes,
                    ..ToolTraits::default()
                };
                traits.insert(name.clone(), tool);
            }
        }
        traits
    }
}

impl Differences {
    fn compare(&mut self, path: &str, then: &Value, now: &Value) {
        if then == now {
            return;
        }
        let (Value::Object(then), Value::Object(now)) = (then, now) else {
            return self.conflict(path, then, now);
        };
        let is_tool_group = path == "tools" || path == "finish_tools";
        let added = now.keys().filter(|key| !then.contains_key(*key));
        for key in then.keys().chain(added) {
            let path = match path {
                "" => key.clone(),
                _ => format!("{path}.{key}"),
            };
            let (then_field, now_field) = (field(then, key), field(now, key));
            if key == "set" && then.contains_key("policy") && then_field.is_null() {
                // Version 0.1.0 recorded the policy only.
                continue;
            }
            if is_tool_group && !then_field.is_null() && !now_field.is_null() {
                self.compare_tools(&path, then_field, now_field);
            } else if key == "policy" && then.contains_key("set") && now.contains_key("set") {
                // The fields that the user set are compared under `set`.
                if then_field != now_field {
                    self.warnings.push(line(&path, then_field, now_field));
                }
            } else {
                self.compare(&path, then_field, now_field);
            }
        }
    }

    fn compare_tools(&mut self, path: &str, then: &Value, now: &Value) {
        if let Value::String(digest) = then {
            // Version 0.1.0 recorded a digest only.
            if *digest != old_digest(now) {
                self.warnings
                    .push(format!("{path}: its description or its parameters"));
            }
            return;
        }
        let parameters = |tool: &Value| signature(tool.get("parameters").unwrap_or(&Value::Null));
        let (then_parameters, now_parameters) = (parameters(then), parameters(now));
        if then_parameters != now_parameters {
            self.conflict(
                &format!("{path}.parameters"),
                &then_parameters,
                &now_parameters,
            );
        } else if then != now {
            self.warnings.push(format!("{path}: its description"));
        }
    }

    fn conflict(&mut self, path: &str, then: &Value, now: &Value) {
        self.conflicts.push(line(path, then, now));
    }
}

fn line(path: &str, then: &Value, now: &Value) -> String {
    let shown = |value: &Value| match value {
        Value::Null => "nothing".to_owned(),
        other => other.to_string(),
    };
    format!("{path}: {} then, {} now", shown(then), shown(now))
}

fn field<'v>(fields: &'v Map<String, Value>, key: &str) -> &'v Value {
    fields.get(key).unwrap_or(&Value::Null)
}

/// The digest of a tool in journals of version 0.1.0.
fn old_digest(tool: &Value) -> String {
    let (description, parameters) = (tool.get("description"), tool.get("parameters"));
    let mut digest = format!(
        "{:x}",
        Sha256::digest(json!([description, parameters]).to_string())
    );
    digest.truncate(16);
    digest
}

/// Returns a schema without annotations: the names and types of parameters.
fn signature(schema: &Value) -> Value {
    match schema {
        Value::Object(fields) => fields
            .iter()
            .filter(|(key, _)| !ANNOTATIONS.contains(&key.as_str()))
            .map(|(key, value)| {
                let value = match value {
                    Value::Object(schemas) if SCHEMA_MAPS.contains(&key.as_str()) => schemas
                        .iter()
                        .map(|(name, schema)| (name.clone(), signature(schema)))
                        .collect(),
                    other => signature(other),
                };
                (key.clone(), value)
            })
            .collect(),
        Value::Array(items) => items.iter().map(signature).collect(),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(description: &str, parameter: &str, policy: &Value) -> Identity {
        let parameters = json!({
            "type": "object",
            "properties": {"description": {"type": parameter, "description": description}},
        });
        let specs = ToolSpecs::new(vec![ToolSpec::new("work", description, parameters)]);
        let providers = json!({"commands": policy}).as_object().cloned().unwrap();
        let model = ModelInfo::new("model");
        Identity::new("agent", &model, None, &specs, |_| false, &providers)
    }

    #[test]
    fn descriptions_and_defaults_are_warnings_and_parameters_and_set_fields_are_conflicts() {
        let policy =
            |network: &str, set: Value| json!({"policy": {"network": network}, "set": set});
        let then = identity("Works.", "string", &policy("off", json!({})));
        assert_eq!(then.compare(&then), Differences::default());

        let reworded = identity("Does work.", "string", &policy("on", json!({})));
        let differences = then.compare(&reworded);
        assert_eq!(differences.conflicts, [""; 0]);
        assert_eq!(
            differences.warnings,
            [
                "providers.commands.policy: {\"network\":\"off\"} then, {\"network\":\"on\"} now",
                "tools.work: its description"
            ]
        );
        let specs = then.recorded_specs(&ToolSpecs::new(vec![ToolSpec::new(
            "work",
            "Does work.",
            json!({}),
        )]));
        let descriptions: Vec<_> = specs.iter().map(ToolSpec::description).collect();
        assert_eq!(descriptions, ["Works."]);

        let changed = identity("Works.", "integer", &policy("on", json!({"network": "on"})));
        let conflicts = then.compare(&changed).conflicts;
        assert_eq!(conflicts.len(), 2, "{conflicts:?}");
        assert!(conflicts[0].starts_with("providers.commands.set.network: nothing then"));
        assert!(conflicts[1].starts_with("tools.work.parameters: "));
    }

    #[test]
    fn changed_request_parameters_are_conflicts() {
        let with = |parameters: Value| {
            let mut model = ModelInfo::new("model");
            model.parameters = parameters.as_object().cloned().unwrap();
            let specs = ToolSpecs::default();
            Identity::new("agent", &model, None, &specs, |_| false, &Map::new())
        };
        let then = with(json!({"temperature": 0.5, "seed": 1}));
        let now = with(json!({"temperature": 0.7, "seed": 1}));
        assert_eq!(
            then.compare(&now).conflicts,
            ["parameters.temperature: 0.5 then, 0.7 now"]
        );
        let mut old = with(json!({}));
        assert_eq!(
            old.compare(&now).conflicts,
            [r#"parameters: nothing then, {"seed":1,"temperature":0.7} now"#]
        );
        old.0.as_object_mut().unwrap().remove("parameters");
        assert_eq!(
            old.compare(&with(json!({}))),
            Differences::default(),
            "version 0.1.0"
        );
    }

    #[test]
    fn a_digest_of_version_0_1_0_is_a_warning_only() {
        let now = identity("Works.", "string", &json!({}));
        let mut then = now.clone();
        then.0["tools"]["work"] = old_digest(&now.0["tools"]["work"]).into();
        assert_eq!(then.compare(&now), Differences::default());
        then.0["tools"]["work"] = "0123456789abcdef".into();
        let differences = then.compare(&now);
        assert!(differences.conflicts.is_empty());
        assert_eq!(differences.warnings.len(), 1);
        then.0["tools"]["gone"] = "0123456789abcdef".into();
        assert_eq!(then.compare(&now).conflicts.len(), 1);
    }
}
