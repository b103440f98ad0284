//! What a schema has against a value.

use serde_json::Value;

use super::path::Path;
use super::{Keywords, branches, describe, within};
use crate::tool::arguments::Problem;

/// How names are taken that an object's schema does not list, where it doesn't say so itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Names {
    /// They are unknown.
    Listed,
    /// They are unknown, unless the schema lists none at all.
    ListedIfAny,
    /// They belong to another part of the schema.
    Open,
}

/// What was found: the first few problems, and how many there are.
#[derive(Debug)]
pub(super) struct Problems {
    pub(super) kept: Vec<Problem>,
    pub(super) count: usize,
    most: usize,
}

impl Problems {
    pub(super) fn keeping(most: usize) -> Self {
        Self {
            kept: Vec::new(),
            count: 0,
            most,
        }
    }

    fn add(&mut self, path: Path<'_>, message: impl FnOnce() -> String) {
        self.count += 1;
        if self.kept.len() < self.most {
            self.kept.push(Problem::new(path.to_string(), message()));
        }
    }
}

/// Whether a schema has nothing against a value.
pub(super) fn accepts(schema: &Value, value: &Value, names: Names) -> bool {
    faults(schema, value, names) == 0
}

fn faults(schema: &Value, value: &Value, names: Names) -> usize {
    let mut problems = Problems::keeping(0);
    check(schema, value, Path::Root, names, &mut problems);
    problems.count
}

/// Finds what a schema has against a value.
pub(super) fn check(
    schema: &Value,
    value: &Value,
    path: Path<'_>,
    names: Names,
    problems: &mut Problems,
) {
    let described = schema;
    let Some(schema) = schema.as_object() else {
        return;
    };
    if !fits_type(schema, value) {
        return problems.add(path, || {
            let expected = types(schema).join(" or ");
            let words = describe::words(Some(described));
            format!("expected {expected}{words}, got {}", describe::came(value))
        });
    }
    if let Some(allowed) = constants(schema)
        && !allowed.contains(value)
    {
        return problems.add(path, || {
            let one_of = if allowed.len() == 1 { "" } else { "one of " };
            let allowed = describe::choices(allowed);
            let words = describe::words(Some(described));
            format!(
                "expected {one_of}{allowed}{words}, got {}",
                describe::came(value)
            )
        });
    }
    match value {
        Value::Object(fields) => check_object(schema, fields, path, names, problems),
        Value::Array(items) => check_items(schema, items, path, problems),
        _ => {}
    }
    for branch in branches(schema, "allOf") {
        check(branch, value, path, Names::Open, problems);
    }
    for keyword in ["anyOf", "oneOf"] {
        let branches = branches(schema, keyword);
        let names = within(schema, names);
        if branches.is_empty() || branches.iter().any(|branch| accepts(branch, value, names)) {
            continue;
        }
        // Which branch was meant matters only where somebody reads about it.
        if problems.most == 0 {
            problems.count += 1;
        } else {
            check_nearest(described, branches, value, path, names, problems);
        }
    }
}

/// The names of the types that a schema allows; all, where there are none.
pub(super) fn types(schema: &Keywords) -> Vec<&str> {
    match schema.get("type") {
        Some(Value::String(one)) => vec![one],
        Some(Value::Array(several)) => several.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}

/// The only values that a schema allows, where it lists them.
pub(super) fn constants(schema: &Keywords) -> Option<&[Value]> {
    match (schema.get("const"), schema.get("enum")) {
        (Some(one), _) => Some(std::slice::from_ref(one)),
        (None, Some(Value::Array(several))) => Some(several),
        _ => None,
    }
}

fn fits_type(schema: &Keywords, value: &Value) -> bool {
    let allowed = types(schema);
    allowed.is_empty()
        || allowed.iter().any(|name| match *name {
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
        })
}

fn check_items(schema: &Keywords, items: &[Value], path: Path<'_>, problems: &mut Problems) {
    let Some(each) = schema.get("items") else {
        return;
    };
    let first = branches(schema, "prefixItems").len();
    for (index, item) in items.iter().enumerate().skip(first) {
        let path = Path::Item(&path, index);
        check(each, item, path, Names::ListedIfAny, problems);
    }
}

fn check_object(
    schema: &Keywords,
    fields: &Keywords,
    path: Path<'_>,
    names: Names,
    problems: &mut Problems,
) {
    let empty = Keywords::new();
    let properties = schema.get("properties").and_then(Value::as_object);
    let properties = properties.unwrap_or(&empty);
    let required = schema.get("required").and_then(Value::as_array);
    let missing = required.into_iter().flatten().filter_map(Value::as_str);
    let missing: Vec<_> = missing.filter(|name| !fields.contains_key(*name)).collect();
    if !missing.is_empty() {
        problems.add(path, || {
            let words = |name: &&str| format!("`{name}`{}", describe::words(properties.get(*name)));
            let missing: Vec<_> = missing.iter().map(words).collect();
            listed("missing", &missing, properties)
        });
    }

    // Properties may also come from schemas combined with this one; then the list here is not all.
    let combined = ["anyOf", "oneOf", "allOf", "$ref", "patternProperties"];
    let closed = match names {
        Names::Open => false,
        Names::Listed => true,
        Names::ListedIfAny => !properties.is_empty(),
    } && !combined.iter().any(|keyword| schema.contains_key(*keyword));
    let mut unknown = Vec::new();
    for (name, value) in fields {
        let rest = schema.get("additionalProperties");
        match (properties.get(name), rest) {
            (Some(each), _) | (None, Some(each @ Value::Object(_))) => {
                let path = Path::Field(&path, name);
                check(each, value, path, Names::ListedIfAny, problems);
            }
            (None, Some(Value::Bool(false))) => unknown.push(format!("`{name}`")),
            (None, None) if closed => unknown.push(format!("`{name}`")),
            (None, _) => {}
        }
    }
    if !unknown.is_empty() {
        problems.add(path, || listed("unknown", &unknown, properties));
    }
}

fn listed(what: &str, names: &[String], properties: &Keywords) -> String {
    let plural = if names.len() == 1 { "" } else { "s" };
    let (names, all) = (names.join(", "), describe::names(properties));
    format!("{what} argument{plural} {names} (arguments are: {all})")
}

/// Says what is wrong with a value that no branch accepts: by the branch that was meant, as far as
/// that can be told.
fn check_nearest(
    schema: &Value,
    branches: &[Value],
    value: &Value,
    path: Path<'_>,
    names: Names,
    problems: &mut Problems,
) {
    let fits = |branch: &&Value| branch.as_object().is_some_and(|it| fits_type(it, value));
    let fitting: Vec<&Value> = branches.iter().filter(fits).collect();
    if fitting.is_empty() {
        let all = branches.iter().filter_map(Value::as_object);
        let mut expected: Vec<_> = all.flat_map(types).collect();
        expected.dedup();
        return problems.add(path, || {
            let words = describe::words(Some(schema));
            let expected = expected.join(" or ");
            format!("expected {expected}{words}, got {}", describe::came(value))
        });
    }
    // Branches that are single values are an enumeration.
    let single = |branch: &&Value| branch.get("const").cloned();
    if let Some(allowed) = fitting.iter().map(single).collect::<Option<Vec<_>>>() {
        let with_words = serde_json::json!({
            "enum": allowed,
            "description": schema.get("description"),
        });
        return check(&with_words, value, path, names, problems);
    }
    if let Some((name, tags)) = discriminator(&fitting) {
        let tag = value.get(name);
        match tags.iter().position(|known| tag == Some(known)) {
            Some(meant) => {
                if let Some(branch) = fitting.get(meant) {
                    check(branch, value, path, names, problems);
                }
            }
            None => {
                let (path, tags) = (Path::Field(&path, name), describe::choices(&tags));
                let came = tag.map_or("nothing".to_owned(), describe::came);
                problems.add(path, || format!("expected one of {tags}, got {came}"));
            }
        }
        return;
    }
    let nearest = fitting
        .into_iter()
        .min_by_key(|branch| faults(branch, value, names));
    if let Some(branch) = nearest {
        check(branch, value, path, names, problems);
    }
}

/// The property whose value tells the branches apart, and its value in each of them.
fn discriminator<'s>(branches: &[&'s Value]) -> Option<(&'s str, Vec<Value>)> {
    let properties = |branch: &'s Value| branch.get("properties").and_then(Value::as_object);
    let first = properties(branches.first()?)?;
    first.keys().find_map(|name| {
        let tags = branches.iter().map(|branch| {
            let tag = properties(branch)?.get(name)?.as_object()?;
            match constants(tag)? {
                [one] => Some(one.clone()),
                _ => None,
            }
        });
        Some((name.as_str(), tags.collect::<Option<Vec<_>>>()?))
    })
}
