//! Validation of a value against a schema.

use serde_json::Value;

use super::path::Path;
use super::{Keywords, branches, describe, names_in_branch};
use crate::tool::arguments::Problem;

/// Treatment of property names that an object's schema doesn't list.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Names {
    /// They are errors.
    Listed,
    /// They are errors, unless the schema lists no properties at all.
    ListedIfAny,
    /// They may belong to another part of the schema.
    Open,
}

/// The first few problems found, and the total number.
#[derive(Debug)]
pub(super) struct Problems {
    pub(super) kept: Vec<Problem>,
    pub(super) count: usize,
    max_kept: usize,
}

impl Problems {
    pub(super) fn keeping(max_kept: usize) -> Self {
        Self {
            kept: Vec::new(),
            count: 0,
            max_kept,
        }
    }

    fn add(&mut self, path: Path<'_>, message: impl FnOnce() -> String) {
        self.count += 1;
        if self.kept.len() < self.max_kept {
            let (path, message) = (path.to_string(), message());
            self.kept.push(Problem { path, message });
        }
    }
}

/// Returns whether a value satisfies a schema.
pub(super) fn accepts(schema: &Value, value: &Value, names: Names) -> bool {
    count_problems(schema, value, names) == 0
}

fn count_problems(schema: &Value, value: &Value, names: Names) -> usize {
    let mut problems = Problems::keeping(0);
    check(schema, value, Path::Root, names, &mut problems);
    problems.count
}

/// Adds the value's problems to `problems`.
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
            let description = describe::description(Some(described));
            format!(
                "expected {expected}{description}, got {}",
                describe::value(value)
            )
        });
    }
    if let Some(allowed) = constants(schema)
        && !allowed.contains(value)
    {
        return problems.add(path, || {
            let one_of = if allowed.len() == 1 { "" } else { "one of " };
            let allowed = describe::choices(allowed);
            let description = describe::description(Some(described));
            format!(
                "expected {one_of}{allowed}{description}, got {}",
                describe::value(value)
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
        let names = names_in_branch(schema, names);
        if branches.is_empty() || branches.iter().any(|branch| accepts(branch, value, names)) {
            continue;
        }
        // The intended branch matters only if the problems are reported.
        if problems.max_kept == 0 {
            problems.count += 1;
        } else {
            check_nearest(described, branches, value, path, names, problems);
        }
    }
}

/// Returns the names of the types that a schema allows; empty if it allows all.
pub(super) fn types(schema: &Keywords) -> Vec<&str> {
    match schema.get("type") {
        Some(Value::String(one)) => vec![one],
        Some(Value::Array(several)) => several.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}

/// Returns the values of `const` or `enum`.
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
            let described =
                |name: &&str| format!("`{name}`{}", describe::description(properties.get(*name)));
            let missing: Vec<_> = missing.iter().map(described).collect();
            listed("missing", &missing, properties)
        });
    }

    // Combined schemas may define further properties.
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

/// Reports the problems of a value that no branch accepts, by the branch that was probably intended.
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
            let description = describe::description(Some(schema));
            let expected = expected.join(" or ");
            format!(
                "expected {expected}{description}, got {}",
                describe::value(value)
            )
        });
    }
    // Branches that are single values are an enumeration.
    let single = |branch: &&Value| branch.get("const").cloned();
    if let Some(allowed) = fitting.iter().map(single).collect::<Option<Vec<_>>>() {
        let enumeration = serde_json::json!({
            "enum": allowed,
            "description": schema.get("description"),
        });
        return check(&enumeration, value, path, names, problems);
    }
    if let Some((name, tags)) = discriminator(&fitting) {
        let tag = value.get(name);
        match tags.iter().position(|known| tag == Some(known)) {
            Some(intended) => {
                if let Some(branch) = fitting.get(intended) {
                    check(branch, value, path, names, problems);
                }
            }
            None => {
                let (path, tags) = (Path::Field(&path, name), describe::choices(&tags));
                let given = tag.map_or("nothing".to_owned(), describe::value);
                problems.add(path, || format!("expected one of {tags}, got {given}"));
            }
        }
        return;
    }
    let nearest = fitting
        .into_iter()
        .min_by_key(|branch| count_problems(branch, value, names));
    if let Some(branch) = nearest {
        check(branch, value, path, names, problems);
    }
}

/// Returns the property whose constant distinguishes the branches, and its value in each of them.
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
