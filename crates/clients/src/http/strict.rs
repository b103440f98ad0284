//! Recognizes schemas that support strict mode, in which the provider constrains the model's output.

use serde_json::{Map, Value};

/// JSON schema keywords that strict mode supports.
/// <https://platform.openai.com/docs/guides/structured-outputs#supported-schemas>
const KEYWORDS: &[&str] = &[
    "$defs",
    "$ref",
    "additionalProperties",
    "anyOf",
    "const",
    "definitions",
    "description",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "items",
    "maxItems",
    "maximum",
    "minItems",
    "minimum",
    "multipleOf",
    "pattern",
    "properties",
    "required",
    "title",
    "type",
];

const FORMATS: &[&str] = &[
    "date",
    "date-time",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "time",
    "uuid",
];

/// Returns whether a tool's parameter schema supports strict mode.
///
/// Every object must be closed and require all of its properties, and only supported keywords may
/// occur. Schemas are never changed to qualify, because they would then accept other arguments.
pub(crate) fn supports_strict_mode(parameters: &Value) -> bool {
    parameters.get("type").and_then(Value::as_str) == Some("object") && is_strict(parameters)
}

fn is_strict(schema: &Value) -> bool {
    let Value::Object(schema) = schema else {
        return false;
    };
    let is_supported = |(keyword, value): (&String, &Value)| {
        KEYWORDS.contains(&keyword.as_str())
            && match keyword.as_str() {
                "items" => is_strict(value),
                "anyOf" => value
                    .as_array()
                    .is_some_and(|all| all.iter().all(is_strict)),
                "properties" | "$defs" | "definitions" => value
                    .as_object()
                    .is_some_and(|all| all.values().all(is_strict)),
                "format" => value
                    .as_str()
                    .is_some_and(|format| FORMATS.contains(&format)),
                _ => true,
            }
    };
    schema.iter().all(is_supported) && (!describes_objects(schema) || is_closed(schema))
}

fn describes_objects(schema: &Map<String, Value>) -> bool {
    let of_type = match schema.get("type") {
        Some(Value::String(name)) => name == "object",
        Some(Value::Array(names)) => names.iter().any(|name| name == "object"),
        _ => false,
    };
    of_type || schema.contains_key("properties")
}

fn is_closed(schema: &Map<String, Value>) -> bool {
    let required: Vec<_> = match schema.get("required") {
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    let mut properties = schema
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flatten();
    schema.get("additionalProperties") == Some(&Value::Bool(false))
        && properties.all(|(name, _)| required.contains(&name.as_str()))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::supports_strict_mode;

    fn object(properties: &Value, required: &[&str]) -> Value {
        json!({"type": "object", "properties": properties, "required": required,
            "additionalProperties": false})
    }

    #[test]
    fn closed_schemas_with_supported_keywords_are_strict() {
        let text = json!({"type": "string", "description": "A city."});
        let nested = object(
            &json!({"at": {"type": "string", "format": "date-time"}}),
            &["at"],
        );
        for schema in [
            object(&json!({}), &[]),
            object(&json!({"city": text}), &["city"]),
            object(
                &json!({"when": nested, "many": {"type": "array", "items": {"enum": [1, 2]}},
                    "maybe": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/x"}]}}),
                &["when", "many", "maybe"],
            ),
        ] {
            assert!(supports_strict_mode(&schema), "{schema}");
        }
    }

    #[test]
    fn schemas_that_need_changes_are_not_strict() {
        let text = json!({"type": "string"});
        let open = json!({"type": "object", "properties": {"city": text}, "required": ["city"]});
        for schema in [
            json!({}),
            open.clone(),
            object(&json!({"city": text}), &[]),
            object(&json!({"where": open}), &["where"]),
            object(&json!({"where": {"anyOf": [open]}}), &["where"]),
            object(
                &json!({"many": {"type": "array", "items": open}}),
                &["many"],
            ),
            object(
                &json!({"n": {"type": "integer", "format": "uint32"}}),
                &["n"],
            ),
            object(&json!({"n": {"type": "integer", "default": 1}}), &["n"]),
            object(&json!({"n": {"type": ["object", "null"]}}), &["n"]),
            object(&json!({"n": true}), &["n"]),
        ] {
            assert!(!supports_strict_mode(&schema), "{schema}");
        }
    }
}
