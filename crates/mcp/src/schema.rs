//! Schemas of tools in the form that model providers accept.

use std::collections::VecDeque;

use indexmap::{IndexMap, IndexSet};
use rmcp::model::JsonObject;
use serde_json::{Value, json};

use crate::limits::MAX_SCHEMA_BRANCHES;

/// Keywords that Anthropic or OpenAI refuses at the root of a schema, and the reference, which hides properties there.
const REFUSED_AT_ROOT: [&str; 6] = ["$ref", "allOf", "anyOf", "enum", "not", "oneOf"];
/// The definition with those keywords, if a reference leads into them.
const REMOVED: &str = "cantle_removed";

/// Returns a schema whose root has the properties of all its branches instead of keywords that providers refuse there;
/// `None` if it has no such keyword. It accepts more than the original, which the server still enforces.
pub(crate) fn flattened(schema: &JsonObject) -> Option<JsonObject> {
    if !REFUSED_AT_ROOT.iter().any(|it| schema.contains_key(*it)) {
        return None;
    }
    let root = Value::Object(schema.clone());
    let mut properties: IndexMap<&String, Vec<&Value>> = IndexMap::new();
    let mut required: IndexSet<&Value> = IndexSet::new();
    let mut is_open = false;
    let mut pending = VecDeque::from([(&root, true)]);
    // References can form cycles.
    for _ in 0..MAX_SCHEMA_BRANCHES {
        let Some((branch, is_mandatory)) = pending.pop_front() else {
            break;
        };
        let listed = branch.get("properties").and_then(Value::as_object);
        for (name, property) in listed.into_iter().flatten() {
            let alternatives = properties.entry(name).or_default();
            if !alternatives.contains(&property) {
                alternatives.push(property);
            }
        }
        if is_mandatory {
            required.extend(list(branch, "required"));
        }
        let rest = branch.get("additionalProperties");
        is_open |= rest.is_some_and(|rest| *rest != Value::Bool(false));
        is_open |= branch.get("patternProperties").is_some();
        for keyword in ["allOf", "anyOf", "oneOf"] {
            let is_mandatory = is_mandatory && keyword == "allOf";
            let branches = list(branch, keyword).iter();
            pending.extend(branches.map(|branch| (branch, is_mandatory)));
        }
        if let Some(reference) = branch.get("$ref").and_then(Value::as_str) {
            let pointer = reference.strip_prefix('#');
            match pointer.and_then(|pointer| root.pointer(pointer)) {
                Some(target) => pending.push_front((target, is_mandatory)),
                None => is_open = true,
            }
        }
    }
    is_open |= !pending.is_empty();
    let merged = properties.into_iter().map(|(name, alternatives)| {
        let property = match alternatives.as_slice() {
            [only] => Value::clone(only),
            _ => json!({"anyOf": alternatives}),
        };
        (name.clone(), property)
    });
    let mut merged: JsonObject = merged.collect();
    if let Some(own) = schema.get("properties").and_then(Value::as_object) {
        merged.extend(own.clone());
    }
    let mut flat = schema.clone();
    flat.retain(|keyword, _| !REFUSED_AT_ROOT.contains(&keyword.as_str()));
    if !merged.is_empty() {
        flat.insert("properties".to_owned(), Value::Object(merged));
    }
    if !required.is_empty() {
        flat.insert("required".to_owned(), json!(required));
    }
    if is_open {
        // Unlisted names are refused before a call otherwise.
        flat.entry("additionalProperties")
            .or_insert(Value::Bool(true));
    }
    // Some generators define what occurs twice where it occurs first, which may be in a branch.
    if redirect_all(flat.values_mut()) {
        let removed = schema.iter();
        let removed = removed.filter(|(keyword, _)| REFUSED_AT_ROOT.contains(&keyword.as_str()));
        let mut removed: Value = removed
            .map(|(keyword, it)| (keyword.clone(), it.clone()))
            .collect();
        redirect(&mut removed);
        let definitions = flat.entry("$defs").or_insert_with(|| json!({}));
        if let Some(definitions) = definitions.as_object_mut() {
            definitions.insert(REMOVED.to_owned(), removed);
        }
    }
    Some(flat)
}

/// Directs references into keywords that are removed to [`REMOVED`]; returns whether there are any.
fn redirect(schema: &mut Value) -> bool {
    match schema {
        Value::Array(items) => redirect_all(items.iter_mut()),
        Value::Object(fields) => {
            let reference = fields.get_mut("$ref").and_then(|it| match it {
                Value::String(reference) => Some(reference),
                _ => None,
            });
            let pointer = reference.as_ref().and_then(|it| it.strip_prefix("#/"));
            let root = pointer.and_then(|pointer| pointer.split('/').next());
            let leads_there = root.is_some_and(|root| REFUSED_AT_ROOT.contains(&root));
            if let (true, Some(reference)) = (leads_there, reference) {
                *reference = reference.replacen('#', &format!("#/$defs/{REMOVED}"), 1);
            }
            redirect_all(fields.values_mut()) | leads_there
        }
        _ => false,
    }
}

fn redirect_all<'s>(schemas: impl Iterator<Item = &'s mut Value>) -> bool {
    schemas.fold(false, |any, it| any | redirect(it))
}

/// Returns the list under a keyword; empty if there is none.
fn list<'s>(schema: &'s Value, keyword: &str) -> &'s [Value] {
    let list = schema.get(keyword).and_then(Value::as_array);
    list.map(Vec::as_slice).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flat(schema: &Value) -> Option<Value> {
        flattened(schema.as_object().unwrap()).map(Value::Object)
    }

    #[test]
    fn branches_at_the_root_become_properties() {
        let (text, flag) = (json!({"type": "string"}), json!({"type": "boolean"}));
        let add = json!({
            "properties": {"action": {"const": "add"}, "text": text},
            "required": ["action", "text"],
        });
        let remove = json!({
            "properties": {"action": {"const": "remove"}, "id": {"type": "integer"}, "force": flag},
            "required": ["action"],
        });
        let user = json!({
            "properties": {"user": text},
            "required": ["user", "id"],
            "anyOf": [{"required": ["text"]}, {"required": ["force"]}],
        });
        let schema = json!({
            "type": "object",
            "properties": {"id": text},
            "required": ["id"],
            "oneOf": [{"$ref": "#/$defs/add"}, remove],
            "allOf": [user],
            "enum": [{"id": "a"}],
            "not": {"required": ["none"]},
            "$defs": {"add": add},
        });
        let expected = json!({
            "type": "object",
            "properties": {
                "id": text,
                "user": text,
                "action": {"anyOf": [{"const": "add"}, {"const": "remove"}]},
                "text": text,
                "force": flag,
            },
            "required": ["id", "user"],
            "$defs": {"add": add},
        });
        assert_eq!(flat(&schema), Some(expected));
    }

    #[test]
    fn a_reference_at_the_root_is_resolved() {
        let place =
            json!({"type": "object", "properties": {"in": {"$ref": "#/definitions/place"}}});
        let place = json!({"place": place});
        let schema = json!({"$ref": "#/definitions/place", "definitions": place});
        let expected = json!({
            "properties": {"in": {"$ref": "#/definitions/place"}},
            "definitions": place,
        });
        assert_eq!(flat(&schema), Some(expected));
    }

    #[test]
    fn references_into_branches_lead_to_definitions() {
        let from = "#/anyOf/0/properties/from";
        let place = json!({"type": "object", "properties": {"parent": {"$ref": from}}});
        let schema = json!({
            "anyOf": [
                {"properties": {"from": place}},
                {"properties": {"to": {"type": "array", "items": {"$ref": from}}}},
            ],
            "$defs": {"other": {"$ref": "#/$defs/none"}},
        });
        let flat = flat(&schema).unwrap();
        let moved = json!("#/$defs/cantle_removed/anyOf/0/properties/from");
        for place in [
            "/properties/to/items",
            "/properties/from/properties/parent",
            "/$defs/cantle_removed/anyOf/0/properties/from/properties/parent",
        ] {
            assert_eq!(flat.pointer(place).unwrap()["$ref"], moved, "{flat}");
        }
        assert_eq!(flat["$defs"]["other"], schema["$defs"]["other"]);
    }

    #[test]
    fn branches_that_are_not_known_leave_the_schema_open() {
        for branch in [
            json!({"$ref": "#"}),
            json!({"$ref": "https://example.com/schema"}),
            json!({"additionalProperties": {"type": "string"}}),
        ] {
            let expected = json!({"additionalProperties": true});
            assert_eq!(
                flat(&json!({"anyOf": [branch]})),
                Some(expected),
                "{branch}"
            );
        }
    }

    #[test]
    fn a_long_list_that_is_repeated_is_merged_soon() {
        let names: Vec<_> = (0..8_000).map(|number| number.to_string()).collect();
        let all = json!({"required": names});
        let schema =
            json!({"allOf": vec![json!({"$ref": "#/$defs/all"}); 49], "$defs": {"all": all}});
        let expected = json!({"required": names, "$defs": {"all": all}});
        // Comparing each name with the others would take too long.
        assert_eq!(flat(&schema), Some(expected));
    }

    #[test]
    fn other_schemas_are_unchanged() {
        let nested = json!({"type": "object", "properties": {"a": {"anyOf": [{"type": "null"}]}}});
        assert_eq!(flat(&nested), None);
    }
}
