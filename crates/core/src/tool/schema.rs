//! Parameter schemas: how they are made, what of them is checked, and which near-misses are mended.
//!
//! The check covers what models get wrong and what deserializing alone lets pass: missing and
//! unknown names, types, enumerations, in nested objects and lists and in alternatives too. It is no
//! validator; a keyword it does not know, it passes over.

mod check;
mod describe;
mod path;
mod repair;

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

use self::check::{Names, Problems};
use self::path::Path;
use super::arguments::{ArgumentError, Repair};

/// Problems that one error tells of; of more, the number is told.
const MAX_PROBLEMS: usize = 5;

/// A schema's keywords.
type Keywords = Map<String, Value>;

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

/// Checks arguments against the schema of a tool, with near-misses mended; what was mended is added
/// to `repairs`.
pub(super) fn admit(
    schema: &Value,
    arguments: Value,
    repairs: &mut Vec<Repair>,
) -> Result<Value, ArgumentError> {
    let arguments = repair::repair(schema, arguments, Path::Root, Names::Listed, repairs);
    let mut problems = Problems::keeping(MAX_PROBLEMS);
    check::check(schema, &arguments, Path::Root, Names::Listed, &mut problems);
    match ArgumentError::of(&problems.kept, problems.count) {
        Some(error) => Err(error),
        None => Ok(arguments),
    }
}

/// The schemas under a keyword such as `anyOf`.
fn branches<'s>(schema: &'s Keywords, keyword: &str) -> &'s [Value] {
    let branches = schema.get(keyword).and_then(Value::as_array);
    branches.map(Vec::as_slice).unwrap_or_default()
}

/// How names are taken within a branch of this schema: where the schema has properties itself, the
/// branch does not know them.
fn within(schema: &Keywords, names: Names) -> Names {
    if schema.contains_key("properties") || names == Names::Open {
        Names::Open
    } else {
        Names::ListedIfAny
    }
}

#[cfg(test)]
mod tests;
