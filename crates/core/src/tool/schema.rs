//! Parameter schemas: how they are made, and the part of them that is checked here.
//!
//! The check covers what models get wrong and what deserializing alone lets pass: missing and
//! unknown names, types, enumerations, in nested objects and lists too. It is no validator; a
//! keyword it does not know, it passes over.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

use super::arguments::{ArgumentError, kind};

/// The schema of a type, with definitions inlined, as models read it best.
pub(super) fn of<P: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    settings
        .into_generator()
        .into_root_schema_for::<P>()
        .to_value()
}

/// Takes out what says nothing to a model (the type's name as a title), and says what dialects want
/// said: that arguments are an object.
pub(super) fn tidy(mut schema: Value) -> Value {
    if let Some(fields) = schema.as_object_mut() {
        fields.remove("title");
        fields.remove("$schema");
        // What says nothing (the schema of `serde_json::Value`) allows every property.
        if fields.is_empty() {
            fields.insert("additionalProperties".to_owned(), true.into());
        }
        if !fields.contains_key("type") {
            fields.insert("type".to_owned(), "object".into());
        }
    }
    schema
}

/// Checks arguments against the schema of a tool.
pub(super) fn check(schema: &Value, arguments: &Value) -> Result<(), ArgumentError> {
    check_at(schema, arguments, "")
}

fn check_at(schema: &Value, value: &Value, path: &str) -> Result<(), ArgumentError> {
    let Some(schema) = schema.as_object() else {
        return Ok(());
    };
    check_type(schema, value, path)?;
    if let Some(allowed) = schema.get("enum").and_then(Value::as_array)
        && !allowed.contains(value)
    {
        let allowed = allowed
            .iter()
            .map(Value::to_string)
            .collect::<Vec<_>>()
            .join(", ");
        return Err(ArgumentError::new(
            path,
            format!("expected one of {allowed}, got {value}"),
        ));
    }
    match value {
        Value::Object(fields) => check_object(schema, fields, path),
        Value::Array(items) => {
            let Some(item_schema) = schema.get("items") else {
                return Ok(());
            };
            items.iter().enumerate().try_for_each(|(index, item)| {
                check_at(item_schema, item, &format!("{path}[{index}]"))
            })
        }
        _ => Ok(()),
    }
}

fn check_type(schema: &Map<String, Value>, value: &Value, path: &str) -> Result<(), ArgumentError> {
    let allowed: Vec<&str> = match schema.get("type") {
        Some(Value::String(one)) => vec![one],
        Some(Value::Array(several)) => several.iter().filter_map(Value::as_str).collect(),
        _ => return Ok(()),
    };
    let fits = allowed.iter().any(|name| match *name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "number" => value.is_number(),
        "integer" => {
            value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|n| n.fract() == 0.0)
        }
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => true,
    });
    if fits {
        return Ok(());
    }
    let expected = allowed.join(" or ");
    let message = match value {
        // Which one, since a number may be none of those expected (an integer).
        Value::Number(number) => format!("expected {expected}, got the number {number}"),
        other => format!("expected {expected}, got {}", kind(other)),
    };
    Err(ArgumentError::new(path, message))
}

fn check_object(
    schema: &Map<String, Value>,
    fields: &Map<String, Value>,
    path: &str,
) -> Result<(), ArgumentError> {
    let empty = Map::new();
    let properties = schema
        .get("properties")
        .and_then(Value::as_object)
        .unwrap_or(&empty);
    let names = || {
        let names: Vec<_> = properties.keys().map(|name| format!("`{name}`")).collect();
        if names.is_empty() {
            "none".to_owned()
        } else {
            names.join(", ")
        }
    };
    let required = schema
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    for name in required.filter_map(Value::as_str) {
        if !fields.contains_key(name) {
            let message = format!("missing argument `{name}` (arguments are: {})", names());
            return Err(ArgumentError::new(path, message));
        }
    }
    // Properties may also come from schemas combined with this one; then the list here is not all.
    let open = ["anyOf", "oneOf", "allOf", "$ref", "patternProperties"];
    let closed = !open.iter().any(|keyword| schema.contains_key(*keyword));
    for (name, value) in fields {
        match (properties.get(name), schema.get("additionalProperties")) {
            (Some(property), _) => check_at(property, value, &join(path, name))?,
            (None, Some(Value::Bool(false))) => return Err(unknown(path, name, &names())),
            (None, Some(Value::Bool(true))) => {}
            (None, Some(rest)) => check_at(rest, value, &join(path, name))?,
            (None, None) if closed && (path.is_empty() || !properties.is_empty()) => {
                return Err(unknown(path, name, &names()));
            }
            (None, None) => {}
        }
    }
    Ok(())
}

fn unknown(path: &str, name: &str, names: &str) -> ArgumentError {
    ArgumentError::new(
        path,
        format!("unknown argument `{name}` (arguments are: {names})"),
    )
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}.{name}")
    }
}

#[cfg(test)]
mod tests;
