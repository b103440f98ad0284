//! Parameter schemas: generation, validation of arguments, and argument repair.
//!
//! Validation covers the mistakes that models make: missing and unknown names, types and
//! enumerations, in nested objects, lists and alternatives. It is not a complete JSON schema
//! validator; unknown keywords are ignored.

mod check;
mod describe;
mod path;
mod repair;

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

use self::check::{Names, Problems};
use self::path::Path;
use self::repair::ArgumentRepair;
use super::arguments::{InvalidArguments, Repair};

/// Maximum number of problems listed in an error.
const MAX_PROBLEMS: usize = 5;

/// A schema's keywords.
type Keywords = Map<String, Value>;

/// Generates the schema of a type, with definitions inlined, which models handle best.
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

/// Removes keywords without meaning for a model (the type's name as a title), and declares the type
/// `object`, which dialects require.
pub(super) fn normalize(mut schema: Value) -> Value {
    if let Some(fields) = schema.as_object_mut() {
        fields.remove("title");
        fields.remove("$schema");
        // An empty schema (that of `serde_json::Value`) allows every property.
        if fields.is_empty() {
            fields.insert("additionalProperties".to_owned(), true.into());
        }
        if !fields.contains_key("type") {
            fields.insert("type".to_owned(), "object".into());
        }
    }
    schema
}

/// Repairs arguments and checks them against a tool's schema; adds the repairs to `repairs`.
pub(super) fn validate(
    schema: &Value,
    arguments: Value,
    repairs: &mut Vec<Repair>,
) -> Result<Value, InvalidArguments> {
    let mut repair = ArgumentRepair::new(repairs);
    let arguments = repair.repair(schema, arguments, Path::Root, Names::Listed);
    let mut problems = Problems::keeping(MAX_PROBLEMS);
    check::check(schema, &arguments, Path::Root, Names::Listed, &mut problems);
    match InvalidArguments::of(&problems.kept, problems.count) {
        Some(error) => Err(error),
        None => Ok(arguments),
    }
}

/// Returns the schemas under a keyword such as `anyOf`.
fn branches<'s>(schema: &'s Keywords, keyword: &str) -> &'s [Value] {
    let branches = schema.get(keyword).and_then(Value::as_array);
    branches.map(Vec::as_slice).unwrap_or_default()
}

/// Returns the treatment of unlisted names in a branch of this schema, which doesn't know the
/// schema's own properties.
fn names_in_branch(schema: &Keywords, names: Names) -> Names {
    if schema.contains_key("properties") || names == Names::Open {
        Names::Open
    } else {
        Names::ListedIfAny
    }
}

#[cfg(test)]
mod tests;
