use std::collections::{BTreeMap, HashMap};

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::*;
use crate::tool::{DynTool, ToolSpec, arguments};

/// Parses arguments for a tool with these parameters.
fn read<P: DeserializeOwned + JsonSchema>(text: &str) -> Result<P, InvalidArguments> {
    let spec = ToolSpec::new("tool", "", of::<P>());
    let mut repairs = Vec::new();
    let value = arguments::parse(text, &mut repairs)?;
    let value = validate(spec.parameters(), value, &mut repairs)?;
    arguments::typed(&value)
}

fn accepted<P>(arguments: &Value) -> P
where
    P: DeserializeOwned + JsonSchema,
{
    match read(&arguments.to_string()) {
        Ok(params) => params,
        Err(error) => panic!("{arguments} was refused: {error}"),
    }
}

fn refused<P>(text: &str) -> String
where
    P: DeserializeOwned + JsonSchema,
{
    match read::<P>(text) {
        Ok(_) => panic!("{text} was accepted"),
        Err(error) => error.to_string(),
    }
}

#[derive(Debug, PartialEq, Deserialize, JsonSchema)]
struct Search {
    /// The search text.
    query: String,
    #[serde(default = "ten")]
    limit: u32,
    order: Option<Order>,
    #[serde(default)]
    filters: Vec<Filter>,
    within: Option<Option<Within>>,
}

fn ten() -> u32 {
    10
}

#[derive(Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Order {
    NewestFirst,
    OldestFirst,
}

#[derive(Debug, PartialEq, Deserialize, JsonSchema)]
struct Filter {
    field: String,
    values: Vec<i64>,
}

#[derive(Debug, PartialEq, Deserialize, JsonSchema)]
struct Within {
    days: f64,
}

#[test]
fn optional_parameters_may_be_omitted() {
    let expected = Search {
        query: "x".to_owned(),
        limit: 10,
        order: None,
        filters: Vec::new(),
        within: None,
    };
    assert_eq!(accepted::<Search>(&json!({"query": "x"})), expected);
    assert_eq!(
        accepted::<Search>(&json!({"query": "x", "order": null, "within": null})),
        expected
    );
}

#[test]
fn nested_values_are_accepted() {
    let search: Search = accepted(&json!({
        "query": "x",
        "limit": 3,
        "order": "oldest_first",
        "filters": [{"field": "year", "values": [2024, 2025]}],
        "within": {"days": 7},
    }));
    assert_eq!(
        search,
        Search {
            query: "x".to_owned(),
            limit: 3,
            order: Some(Order::OldestFirst),
            filters: vec![Filter {
                field: "year".to_owned(),
                values: vec![2024, 2025],
            }],
            within: Some(Some(Within { days: 7.0 })),
        }
    );
}

#[test]
fn errors_name_the_argument_and_the_expected_type() {
    let cases = [
        "",
        "[\"x\"]",
        "\"x\"",
        "{\"query\": \"x\"",
        "{\"query\": \"x\"} {\"query\": \"y\"}",
        "{}",
        "{\"quary\": \"x\"}",
        "{\"query\": \"x\", \"page\": 2}",
        "{\"query\": [1]}",
        "{\"query\": null}",
        "{\"query\": \"x\", \"limit\": \"few\"}",
        "{\"quary\": \"x\", \"page\": 2, \"limit\": \"few\", \"filters\": [{\"field\": 1.5}]}",
        "{\"query\": \"x\", \"limit\": 1.5}",
        "{\"query\": \"x\", \"limit\": -1}",
        "{\"query\": \"x\", \"order\": \"random\"}",
        "{\"query\": \"x\", \"filters\": {\"field\": \"year\"}}",
        "{\"query\": \"x\", \"filters\": [{\"field\": \"year\", \"values\": [1]}, {\"field\": \"a\"}]}",
        "{\"query\": \"x\", \"filters\": [{\"field\": \"year\", \"values\": [1, \"two\"]}]}",
        "{\"query\": \"x\", \"filters\": [{\"field\": \"a\", \"values\": [], \"op\": \"=\"}]}",
        "{\"query\": \"x\", \"within\": {\"weeks\": 2}}",
        "{\"query\": \"x\", \"within\": 7}",
    ];
    let report: String = cases
        .iter()
        .map(|text| format!("{text}\n    {}\n", refused::<Search>(text)))
        .collect();
    insta::assert_snapshot!(report);
}

#[test]
fn empty_text_and_null_mean_no_arguments() {
    #[derive(Debug, PartialEq, Deserialize, JsonSchema)]
    struct Nothing {}

    for text in ["", "  \n", "null", "{}"] {
        assert_eq!(read::<Nothing>(text), Ok(Nothing {}), "{text:?}");
    }
    assert_eq!(
        refused::<Nothing>(r#"{"x": 1}"#),
        "unknown argument `x` (arguments are: none)"
    );
}

#[test]
fn map_values_are_checked() {
    let map: HashMap<String, u8> = accepted(&json!({"a": 1, "b": 2}));
    assert_eq!(
        map,
        HashMap::from([("a".to_owned(), 1), ("b".to_owned(), 2)])
    );
    assert_eq!(
        refused::<HashMap<String, u8>>(r#"{"a": "one"}"#),
        "Argument `a`: expected integer, got the string \"one\""
    );

    #[derive(Debug, PartialEq, Deserialize, JsonSchema)]
    struct Headers {
        headers: BTreeMap<String, String>,
    }
    let headers: Headers = accepted(&json!({"headers": {"Accept": "text/html"}}));
    assert_eq!(headers.headers["Accept"], "text/html");
    assert_eq!(
        refused::<Headers>(r#"{"headers": {"Accept": [1]}}"#),
        "Argument `headers.Accept`: expected string, got the list [1]"
    );
}

#[test]
fn free_form_parameters_accept_any_object() {
    let anything = json!({"a": 1, "b": {"c": [null]}});
    assert_eq!(accepted::<Value>(&anything), anything);
    assert_eq!(
        Value::Object(accepted::<Map<String, Value>>(&anything)),
        anything
    );

    #[derive(Debug, PartialEq, Deserialize, JsonSchema)]
    struct Post {
        /// The body.
        body: Value,
    }
    for body in [json!(1), json!("x"), json!([1, {"a": null}]), anything] {
        assert_eq!(accepted::<Post>(&json!({"body": body})), Post { body });
    }
    assert_eq!(
        refused::<Post>(r#"{"body": 1, "head": 2}"#),
        "unknown argument `head` (arguments are: `body`)"
    );
}

#[derive(Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum Shape {
    Circle { radius: f64 },
    Square { side: f64 },
}

#[derive(Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(untagged)]
enum Target {
    Name(String),
    Number { number: u32 },
}

#[derive(Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Change {
    Rename { to: String },
    Remove,
}

#[test]
fn enums_of_every_serde_representation_are_accepted() {
    #[derive(Debug, PartialEq, Deserialize, JsonSchema)]
    struct Draw {
        shape: Shape,
        target: Target,
        change: Change,
    }
    let draw: Draw = accepted(&json!({
        "shape": {"kind": "circle", "radius": 1.5},
        "target": {"number": 3},
        "change": {"rename": {"to": "x"}},
    }));
    assert_eq!(
        draw,
        Draw {
            shape: Shape::Circle { radius: 1.5 },
            target: Target::Number { number: 3 },
            change: Change::Rename { to: "x".to_owned() },
        }
    );
    let draw: Draw = accepted(&json!({
        "shape": {"kind": "square", "side": 2},
        "target": "x",
        "change": "remove",
    }));
    assert_eq!(
        draw,
        Draw {
            shape: Shape::Square { side: 2.0 },
            target: Target::Name("x".to_owned()),
            change: Change::Remove,
        }
    );

    assert_eq!(
        accepted::<Shape>(&json!({"kind": "square", "side": 2})),
        Shape::Square { side: 2.0 }
    );
    assert_eq!(
        refused::<Shape>(r#"{"kind": "hexagon"}"#),
        "Argument `kind`: expected one of \"circle\", \"square\", got the string \"hexagon\""
    );
}

#[test]
fn flattened_and_combined_parameters_are_accepted() {
    #[derive(Debug, PartialEq, Deserialize, JsonSchema)]
    struct Page {
        page: u32,
    }
    #[derive(Debug, PartialEq, Deserialize, JsonSchema)]
    struct Listing {
        folder: String,
        #[serde(flatten)]
        page: Page,
        #[serde(flatten)]
        shape: Shape,
    }
    assert_eq!(
        accepted::<Listing>(&json!({"folder": "a", "page": 2, "kind": "circle", "radius": 1})),
        Listing {
            folder: "a".to_owned(),
            page: Page { page: 2 },
            shape: Shape::Circle { radius: 1.0 },
        }
    );
}

#[test]
fn recursive_parameters_are_accepted() {
    #[derive(Debug, PartialEq, Deserialize, JsonSchema)]
    struct Folder {
        name: String,
        #[serde(default)]
        folders: Vec<Folder>,
    }
    let folder: Folder = accepted(&json!({"name": "a", "folders": [{"name": "b"}]}));
    assert_eq!(folder.folders.len(), 1);
    assert_eq!(
        refused::<Folder>(r#"{"name": "a", "folders": [{"nome": "b"}]}"#),
        "Argument `folders[0]`: missing field `name`"
    );
}

#[test]
fn a_default_is_part_of_the_schema() {
    #[derive(Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(default)]
    struct Settings {
        /// The number.
        count: u8,
        names: Vec<String>,
    }
    assert_eq!(
        ToolSpec::new("set", "Sets.", of::<Settings>()).parameters(),
        &json!({
            "type": "object",
            "properties": {
                "count": {
                    "type": "integer",
                    "format": "uint8",
                    "minimum": 0,
                    "maximum": 255,
        "description": "The number.",
                    "default": 0,
                },
                "names": {"type": "array", "items": {"type": "string"}, "default": []},
            },
        })
    );
    assert_eq!(accepted::<Settings>(&json!({})), Settings::default());
}

/// Parses arguments for a tool with this JSON schema.
fn bare(schema: Value, arguments: &Value) -> Result<Value, String> {
    let tool = DynTool::from_schema(ToolSpec::new("tool", "", schema), |_, _| async {
        Ok("done".into())
    });
    tool.parse(&arguments.to_string())
        .map(|parsed| parsed.arguments)
        .map_err(|error| error.to_string())
}

#[test]
fn arguments_are_checked_against_a_json_schema() {
    let schema = json!({
        "type": "object",
        "properties": {
            "mode": {"enum": ["fast", "slow", 3, null]},
            "size": {"type": ["integer", "null"]},
            "nested": {
                "type": "object",
                "properties": {"a": {"type": "boolean"}},
                "required": ["a"],
                "additionalProperties": false,
            },
            "open": {"type": "object", "additionalProperties": true},
            "pattern": {"type": "object", "patternProperties": {"^x-": {"type": "string"}}},
            "pairs": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
        },
        "required": ["mode"],
    });
    let accepted = [
        json!({"mode": "fast"}),
        json!({"mode": 3, "size": 4.0}),
        json!({"mode": null, "size": null}),
        json!({"mode": "slow", "nested": {"a": true}}),
        json!({"mode": "slow", "open": {"anything": [1]}, "pattern": {"x-a": "b"}}),
        json!({"mode": "slow", "pairs": [[1, 2.5], []]}),
    ];
    for arguments in accepted {
        assert_eq!(bare(schema.clone(), &arguments), Ok(arguments));
    }
    let refused = [
        json!({}),
        json!({"mode": "medium"}),
        json!({"mode": "fast", "size": 1.5}),
        json!({"mode": "fast", "nested": {}}),
        json!({"mode": "fast", "nested": {"a": 1}}),
        json!({"mode": "fast", "nested": {"a": true, "b": 1}}),
        json!({"mode": "fast", "pairs": [[1], ["two"]]}),
        json!({"mode": "fast", "other": 1}),
    ];
    let report: String = refused
        .into_iter()
        .map(|arguments| {
            let error = bare(schema.clone(), &arguments).unwrap_err();
            format!("{arguments}\n    {error}\n")
        })
        .collect();
    insta::assert_snapshot!(report);
}

#[test]
fn an_empty_schema_accepts_any_object() {
    for schema in [
        json!({}),
        json!({"type": "object", "additionalProperties": true}),
    ] {
        let arguments = json!({"a": 1});
        assert_eq!(bare(schema, &arguments), Ok(arguments));
    }
    // The usual schema of a tool without parameters.
    assert_eq!(
        bare(
            json!({"type": "object", "properties": {}}),
            &json!({"a": 1})
        ),
        Err("unknown argument `a` (arguments are: none)".to_owned())
    );
}

#[test]
fn alternative_required_properties_are_supported() {
    let schema = json!({
        "type": "object",
        "properties": {"id": {"oneOf": [{"type": "string"}, {"type": "integer"}]}},
        "anyOf": [{"required": ["id"]}, {"required": ["name"]}],
    });
    let arguments = json!({"name": "x"});
    assert_eq!(bare(schema, &arguments), Ok(arguments));
}
