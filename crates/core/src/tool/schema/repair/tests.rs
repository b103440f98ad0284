use proptest::prelude::*;
use serde_json::json;

use crate::tool::schema::check::{Names, accepts};
use crate::tool::{DynTool, RepairKind, ToolSpec};

use super::*;

fn tool(schema: Value) -> DynTool {
    DynTool::from_schema(ToolSpec::new("tool", "", schema), |_, _| async {
        Ok("done".into())
    })
}

/// Returns the repaired arguments, and a line for each repair.
fn mended(schema: &Value, arguments: &Value) -> (Value, Vec<String>) {
    match tool(schema.clone()).parse(&arguments.to_string()) {
        Ok(parsed) => {
            let repairs = parsed.repairs.iter().map(ToString::to_string);
            (parsed.arguments, repairs.collect())
        }
        Err(error) => panic!("{arguments} was refused: {error}"),
    }
}

fn refused(schema: &Value, arguments: &Value) -> String {
    match tool(schema.clone()).parse(&arguments.to_string()) {
        Ok(parsed) => panic!("{arguments} became {parsed:?}"),
        Err(error) => error.to_string(),
    }
}

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "count": {"type": "integer", "description": "How many."},
            "ratio": {"type": ["number", "null"]},
            "deep": {"type": "boolean", "default": false},
            "name": {"type": "string"},
            "paths": {"type": "array", "items": {"type": "string"}},
            "sizes": {"type": "array", "items": {"type": "integer"}},
            "anything": {},
            "order": {"enum": ["Newest", "oldest", 3], "description": "Which first."},
            "filter": {
                "anyOf": [
                    {"type": "object", "properties": {"field": {"type": "string"}, "value": {"type": "integer"}}, "required": ["field"]},
                    {"type": "null"},
                ],
            },
            "filters": {"type": "array", "items": {"type": "object", "properties": {"value": {"type": "integer"}}}},
            "either": {"oneOf": [{"type": "integer"}, {"type": "array", "items": {"type": "integer"}}]},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        },
        "required": ["count"],
    })
}

#[test]
fn unambiguous_mistakes_are_repaired() {
    let cases = [
        (json!({"count": "5"}), json!({"count": 5})),
        (json!({"count": " -5.0 "}), json!({"count": -5})),
        (
            json!({"count": 1, "ratio": "0.25"}),
            json!({"count": 1, "ratio": 0.25}),
        ),
        (
            json!({"count": 1, "deep": "true"}),
            json!({"count": 1, "deep": true}),
        ),
        (json!({"count": 1, "deep": null}), json!({"count": 1})),
        (
            json!({"count": 1, "name": 42}),
            json!({"count": 1, "name": "42"}),
        ),
        (
            json!({"count": 1, "paths": "a, b"}),
            json!({"count": 1, "paths": ["a, b"]}),
        ),
        (
            json!({"count": 1, "paths": "[\"a\", \"b\"]"}),
            json!({"count": 1, "paths": ["a", "b"]}),
        ),
        (
            json!({"count": 1, "paths": "[draft] a"}),
            json!({"count": 1, "paths": ["[draft] a"]}),
        ),
        (
            json!({"count": 1, "paths": [7, "a"]}),
            json!({"count": 1, "paths": ["7", "a"]}),
        ),
        (
            json!({"count": 1, "sizes": "7"}),
            json!({"count": 1, "sizes": [7]}),
        ),
        (
            json!({"count": 1, "sizes": "[1, \"2\"]"}),
            json!({"count": 1, "sizes": [1, 2]}),
        ),
        (
            json!({"count": 1, "order": "newest"}),
            json!({"count": 1, "order": "Newest"}),
        ),
        (
            json!({"count": 1, "order": "3"}),
            json!({"count": 1, "order": 3}),
        ),
        (
            json!({"count": 1, "filter": "{\"field\": \"year\", \"value\": \"7\"}"}),
            json!({"count": 1, "filter": {"field": "year", "value": 7}}),
        ),
        (
            json!({"count": 1, "filters": {"value": "1"}}),
            json!({"count": 1, "filters": [{"value": 1}]}),
        ),
        (
            json!({"count": 1, "filters": [{"value": null}, "{\"value\": 2}"]}),
            json!({"count": 1, "filters": [{}, {"value": 2}]}),
        ),
        (
            json!({"count": 1, "either": "7"}),
            json!({"count": 1, "either": 7}),
        ),
        (
            json!({"count": 1, "labels": {"a": 1}}),
            json!({"count": 1, "labels": {"a": "1"}}),
        ),
    ];
    let mut report = String::new();
    for (arguments, expected) in cases {
        let (became, repairs) = mended(&schema(), &arguments);
        assert_eq!(became, expected, "{arguments}");
        report.push_str(&format!("{arguments}\n    {}\n", repairs.join("; ")));
    }
    insta::assert_snapshot!(report);
}

#[test]
fn arguments_given_as_a_string_are_parsed() {
    let inner = json!({"count": "5"}).to_string();
    let (became, repairs) = mended(&schema(), &Value::String(inner));
    assert_eq!(became, json!({"count": 5}));
    assert_eq!(repairs, ["JSON in text", "`count`: a number in text"]);
}

#[test]
fn valid_values_are_unchanged() {
    for arguments in [
        json!({"count": 5.0}),
        json!({"count": 1, "ratio": null, "filter": null}),
        json!({"count": 1, "name": "{\"a\": 1}"}),
        json!({"count": 1, "paths": []}),
        json!({"count": 1, "anything": null}),
        json!({"count": 1, "anything": "[1]"}),
        json!({"count": 1, "either": [1]}),
    ] {
        assert_eq!(mended(&schema(), &arguments), (arguments, Vec::new()));
    }
}

#[test]
fn ambiguous_values_are_not_repaired() {
    let cases = [
        json!({"count": "five"}),
        json!({"count": "5 apples"}),
        json!({"count": "1e400"}),
        json!({"count": ""}),
        json!({"count": null}),
        json!({"count": true}),
        json!({"count": [5]}),
        json!({"count": "123456789012345678901234567890"}),
        json!({"count": 1, "deep": "True"}),
        json!({"count": 1, "deep": "yes"}),
        json!({"count": 1, "deep": 1}),
        // It was written `1.10`.
        json!({"count": 1, "name": 1.1}),
        json!({"count": 1, "name": true}),
        json!({"count": 1, "name": ["a"]}),
        json!({"count": 1, "paths": ""}),
        json!({"count": 1, "paths": {"a": 1}}),
        json!({"count": 1, "sizes": "seven"}),
        json!({"count": 1, "labels": {"a": null}}),
        json!({"count": 1, "order": "new"}),
        json!({"count": 1, "filter": "field: year"}),
        json!({"count": 1, "filter": {"value": 7}}),
        json!({"count": "x", "deep": "y", "paths": [1, true, []], "page": 2, "size": 3, "name": {}, "labels": 1}),
    ];
    let report: String = cases
        .iter()
        .map(|arguments| format!("{arguments}\n    {}\n", refused(&schema(), arguments)))
        .collect();
    insta::assert_snapshot!(report);
}

#[test]
fn two_possible_repairs_prevent_both() {
    let either = json!({"properties": {"a": {"anyOf": [{"type": "number"}, {"const": "X"}]}}});
    assert_eq!(mended(&either, &json!({"a": "x"})).0, json!({"a": "X"}));
    let both = json!({"properties": {"a": {"enum": ["x", "X"]}}});
    assert_eq!(
        refused(&both, &json!({"a": "ⅹ"})),
        "Argument `a`: expected one of \"x\", \"X\", got the string \"ⅹ\""
    );
    let ambiguous = json!({"properties": {"a": {"anyOf": [
        {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]},
        {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "string"}}}},
    ]}}});
    assert_eq!(
        mended(&ambiguous, &json!({"a": {"x": "1"}})).0,
        json!({"a": [{"x": "1"}]})
    );
}

#[test]
fn errors_refer_to_the_intended_alternative() {
    let shape = |kind: &str, size: &str| {
        json!({
            "type": "object",
            "properties": {"kind": {"const": kind}, size: {"type": "number", "description": format!("The {size}.")}},
            "required": ["kind", size],
        })
    };
    let schema = json!({
        "properties": {
            "shape": {"oneOf": [shape("circle", "radius"), shape("square", "side")]},
            "change": {"oneOf": [{"const": "add"}, {"const": "remove"}], "description": "What to do."},
            "target": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        },
    });
    assert_eq!(
        mended(
            &schema,
            &json!({"shape": "{\"kind\": \"circle\", \"radius\": \"2\"}"})
        )
        .0,
        json!({"shape": {"kind": "circle", "radius": 2}})
    );
    let cases = [
        json!({"shape": {"kind": "hexagon"}}),
        json!({"shape": {"radius": 2}}),
        json!({"shape": {"kind": "circle", "side": 2}}),
        json!({"shape": 7}),
        json!({"change": "drop"}),
        json!({"target": [1]}),
    ];
    let report: String = cases
        .iter()
        .map(|arguments| format!("{arguments}\n    {}\n", refused(&schema, arguments)))
        .collect();
    insta::assert_snapshot!(report);
}

/// A schema and a value that it accepts.
fn pair() -> impl Strategy<Value = (Value, Value)> {
    let text = "[a-z0-9 {}\\[\\]\",.-]{0,8}|true|null|-?[0-9]{1,3}(\\.[0-9])?";
    let leaf = prop_oneof![
        any::<i32>().prop_map(|n| (json!({"type": "integer"}), json!(n))),
        any::<i32>().prop_map(|n| (json!({"type": "number"}), json!(f64::from(n) / 4.0))),
        any::<bool>().prop_map(|b| (json!({"type": "boolean"}), json!(b))),
        text.prop_map(|s| (json!({"type": "string"}), json!(s))),
        text.prop_map(|s| (json!({"type": ["string", "null"]}), json!(s))),
        Just((
            json!({"anyOf": [{"type": "integer"}, {"type": "null"}]}),
            Value::Null
        )),
        "[a-c]{1,3}".prop_map(|s| (json!({"enum": [s, "Other", 7]}), json!(s))),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        let object = proptest::collection::btree_map("[a-d]", (inner.clone(), any::<bool>()), 0..4);
        let object = object.prop_map(|fields| {
            let mut properties = Keywords::new();
            let (mut value, mut required) = (Keywords::new(), Vec::new());
            for (name, ((each, it), is_required)) in fields {
                properties.insert(name.clone(), each);
                if is_required {
                    required.push(name.clone());
                }
                value.insert(name, it);
            }
            let schema = json!({"type": "object", "properties": properties, "required": required});
            (schema, Value::Object(value))
        });
        let list = (inner.clone(), 0..3_usize).prop_map(|((each, it), count)| {
            (
                json!({"type": "array", "items": each}),
                Value::Array(vec![it; count]),
            )
        });
        let either = (inner.clone(), inner)
            .prop_map(|((one, value), (other, _))| (json!({"anyOf": [other, one]}), value));
        prop_oneof![object, list, either]
    })
}

#[test]
fn nested_alternatives_take_a_bounded_number_of_attempts() {
    let nested = |depth: u32| {
        let alternatives = (0..depth).fold(
            json!({"type": "boolean"}),
            |inner, _| json!({"anyOf": [inner]}),
        );
        json!({"type": "object", "properties": {"x": alternatives}})
    };
    let (arguments, _) = mended(&nested(3), &json!({"x": "true"}));
    assert_eq!(arguments, json!({"x": true}));
    let error = refused(&nested(40), &json!({"x": "5"}));
    assert!(error.starts_with("Argument `x`: expected "), "{error}");
}

fn value() -> impl Strategy<Value = Value> {
    pair().prop_map(|(_, value)| value)
}

fn repaired(schema: &Value, value: Value) -> (Value, Vec<Repair>) {
    let mut repairs = Vec::new();
    let mut repair = ArgumentRepair::new(&mut repairs);
    let value = repair.repair(schema, value, Path::Root, Names::ListedIfAny);
    (value, repairs)
}

/// The value as JSON in text, wherever it is an object or a list with something in it.
fn in_text(value: &Value) -> Option<Value> {
    let has_any = match value {
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        _ => false,
    };
    has_any.then(|| Value::String(value.to_string()))
}

proptest! {
    #[test]
    fn valid_values_are_never_changed((schema, value) in pair()) {
        prop_assert!(accepts(&schema, &value, Names::ListedIfAny), "{schema} {value}");
        prop_assert_eq!(repaired(&schema, value.clone()), (value, Vec::new()));
    }

    #[test]
    fn repair_is_idempotent((schema, _) in pair(), value in value()) {
        let (once, _) = repaired(&schema, value);
        prop_assert_eq!(repaired(&schema, once.clone()), (once, Vec::new()));
    }

    #[test]
    fn parsed_arguments_are_valid((schema, _) in pair(), value in value()) {
        let schema = json!({"properties": {"x": schema}});
        let arguments = json!({"x": value});
        match tool(schema.clone()).parse(&arguments.to_string()) {
            Ok(parsed) => {
                prop_assert!(accepts(&schema, &parsed.arguments, Names::Listed));
                prop_assert_eq!(parsed.repairs.is_empty(), parsed.arguments == arguments);
            }
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }

    #[test]
    fn values_given_as_strings_are_restored((schema, value) in pair()) {
        let text = in_text(&value).filter(|text| !accepts(&schema, text, Names::ListedIfAny));
        // An alternative may take the text for something else, a list of texts for instance.
        let is_plain = !schema.to_string().contains("anyOf");
        if let Some(text) = text.filter(|_| is_plain) {
            let (out, repairs) = repaired(&schema, text);
            prop_assert_eq!(out, value);
            prop_assert_eq!(repairs.len(), 1);
            prop_assert_eq!(repairs[0].kind, RepairKind::JsonInText);
        }
    }
}
