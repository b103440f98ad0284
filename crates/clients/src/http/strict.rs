//! Which schemas can be held to strictly: the provider then lets the model write nothing else.

use serde_json::{Map, Value};

/// Keywords of strict schemas.
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

/// Whether a tool's parameters can be held to strictly: every object is closed and has all of its
/// properties required, and nothing is said that strict schemas have no word for. A schema is never
/// changed to be one, since what it allows would be something else.
pub(crate) fn can_be_strict(parameters: &Value) -> bool {
    parameters.get("type").and_then(Value::as_str) == Some("object") && is_strict(parameters)
}

fn is_strict(schema: &Value) -> bool {
    let Value::Object(schema) = schema else {
        return false;
    };
    let known = |(keyword, value): (&String, &Value)| {
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
    schema.iter().all(known) && (!describes_objects(schema) || is_closed(schema))
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

    use super::can_be_strict;

    fn object(properties: &Value, required: &[&str]) -> Value {
        json!({"type": "object", "properties": properties, "required": required,
            "additionalProperties": false})
    }

    #[test]
    fn closed_schemas_with_known_words_can_be_strict() {
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
            assert!(can_be_strict(&schema), "{schema}");
        }
    }

    #[test]
    fn what_would_have_to_be_changed_can_not() {
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
            assert!(!can_be_strict(&schema), "{schema}");
        }
    }
}
