//! Text about schemas and values, for errors that a model reads.

use serde_json::Value;

use super::Keywords;
use crate::escape::shorten;
use crate::tool::arguments::kind;

/// Maximum characters of a value and of a description.
const MAX_VALUE_CHARS: usize = 80;
const MAX_DESCRIPTION_CHARS: usize = 200;

/// Describes a value: `the string "x"`.
pub(super) fn value(value: &Value) -> String {
    let text = shorten(&value.to_string(), MAX_VALUE_CHARS);
    match value {
        Value::Null => text,
        _ => format!("the {} {text}", kind(value)),
    }
}

/// Lists the values to choose from.
pub(super) fn choices<'v>(values: impl IntoIterator<Item = &'v Value>) -> String {
    let choices: Vec<_> = values.into_iter().map(Value::to_string).collect();
    choices.join(", ")
}

/// Returns the schema's description in parentheses; empty if it has none.
pub(super) fn description(schema: Option<&Value>) -> String {
    let words = schema.and_then(|schema| schema.get("description"));
    let Some(words) = words.and_then(Value::as_str) else {
        return String::new();
    };
    let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
    format!(" (“{}”)", shorten(&words, MAX_DESCRIPTION_CHARS))
}

/// Lists the names of all properties.
pub(super) fn names(properties: &Keywords) -> String {
    let names: Vec<_> = properties.keys().map(|name| format!("`{name}`")).collect();
    if names.is_empty() {
        return "none".to_owned();
    }
    names.join(", ")
}
