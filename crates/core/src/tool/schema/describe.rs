//! Schemas and values in words, for errors that a model reads.

use serde_json::Value;

use super::Keywords;

/// Characters of a value and of a description that are shown.
const VALUE_CHARS: usize = 80;
const DESCRIPTION_CHARS: usize = 200;

/// What came: `the string "x"`.
pub(super) fn came(value: &Value) -> String {
    let kind = match value {
        Value::Null => return "null".to_owned(),
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "list",
        Value::Object(_) => "object",
    };
    format!("the {kind} {}", short(&value.to_string(), VALUE_CHARS))
}

/// Values to choose from.
pub(super) fn choices<'v>(values: impl IntoIterator<Item = &'v Value>) -> String {
    let choices: Vec<_> = values.into_iter().map(Value::to_string).collect();
    choices.join(", ")
}

/// The schema's own words, in brackets; nothing where it has none.
pub(super) fn words(schema: Option<&Value>) -> String {
    let words = schema.and_then(|schema| schema.get("description"));
    let Some(words) = words.and_then(Value::as_str) else {
        return String::new();
    };
    let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
    format!(" (“{}”)", short(&words, DESCRIPTION_CHARS))
}

/// The names of all properties.
pub(super) fn names(properties: &Keywords) -> String {
    let names: Vec<_> = properties.keys().map(|name| format!("`{name}`")).collect();
    if names.is_empty() {
        return "none".to_owned();
    }
    names.join(", ")
}

fn short(text: &str, chars: usize) -> String {
    match text.char_indices().nth(chars) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}
