//! `#[tool]`: what the model is told, and what the function gets.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cantle_core::ids::RunId;
use cantle_core::metadata::Metadata;
use cantle_core::tool;
use cantle_core::tool::{DynTool, ToolContext, ToolError, ToolErrorKind, ToolOutput};
use serde_json::{Value, json};

/// Greets a person.
///
/// Politely, unless told otherwise.
#[tool]
async fn greet(
    /// The person to greet.
    name: String,
    /// In capital letters.
    #[serde(default)]
    loud: bool,
    title: Option<String>,
) -> String {
    let greeting = format!("Hello {}{name}!", title.unwrap_or_default());
    if loud {
        greeting.to_uppercase()
    } else {
        greeting
    }
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Operation {
    Add,
    Divide,
}

#[tool(name = "calculate-it", description = "Calculates.", concurrency_safe)]
fn calculate(cx: ToolContext, operation: Operation, a: i64, b: i64) -> Result<String, ToolError> {
    let result = match operation {
        Operation::Add => a.checked_add(b),
        Operation::Divide => a.checked_div(b),
    };
    result
        .map(|result| format!("{}: {result}", cx.call_id))
        .ok_or_else(|| ToolError::failed("There is no result."))
}

/// Takes nothing, counts itself.
#[tool]
async fn nothing() -> ToolOutput {
    ToolOutput::text("nothing").with_metadata(Metadata::uses(1))
}

/// Arguments whose names Rust reserves or rebinds.
#[tool]
fn odd_names(
    r#type: String,
    mut count: u32,
    #[serde(rename = "renamed")] original: bool,
) -> String {
    count += 1;
    format!("{type} {count} {original}")
}

/// A tool of another module, by a path that is not imported here.
mod elsewhere {
    /// Names like those of the generated code do not clash with it.
    #[derive(serde::Deserialize, schemars::JsonSchema)]
    pub(crate) struct Params {
        pub(crate) arguments: Vec<String>,
    }

    /// Joins.
    #[cantle_core::tool]
    pub(crate) async fn join(params: Params, cx: cantle_core::tool::ToolContext) -> String {
        format!("{}{}", params.arguments.join("+"), cx.depth)
    }
}

/// Counts the letters.
#[tool]
fn letters(text: String) -> usize {
    text.len()
}

#[derive(serde::Serialize)]
struct Point {
    x: i64,
}

/// Finds a point.
#[tool]
async fn point(x: String) -> Result<Option<Point>, std::num::ParseIntError> {
    let x = x.parse()?;
    Ok(Some(Point { x }))
}

/// Reads a file of the host.
#[tool]
fn first_line(path: String) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
    let text = std::fs::read_to_string(path)?;
    Ok(text.lines().next().ok_or("the file is empty")?.to_owned())
}

/// A tool with state.
struct Counter(AtomicU64);

impl Counter {
    /// Adds to the count.
    #[tool(concurrency_safe)]
    async fn add(
        &self,
        /// The number to add.
        n: u64,
        cx: ToolContext,
    ) -> Result<u64, ToolError> {
        if n == 0 {
            return Err(ToolError::failed(format!("{} adds nothing", cx.call_id)));
        }
        Ok(self.0.fetch_add(n, Ordering::Relaxed) + n)
    }

    /// Returns the count.
    #[tool(name = "count")]
    pub(crate) fn current(&self) -> String {
        format!("count {}", self.0.load(Ordering::Relaxed))
    }
}

/// Panics.
#[tool]
#[expect(clippy::panic, reason = "that is what is tested")]
fn boom() -> String {
    panic!("out of {}", "luck")
}

async fn call(tool: &DynTool, arguments: Value) -> Result<ToolOutput, ToolError> {
    let arguments = tool.parse(&arguments.to_string())?.arguments;
    tool.call(arguments, ToolContext::new(RunId::new(), "call-1"))
        .await
}

async fn text(tool: &DynTool, arguments: Value) -> String {
    call(tool, arguments)
        .await
        .expect("the tool works")
        .content
        .text()
}

#[test]
fn the_spec_has_name_docs_and_parameters() {
    let tool = greet();
    assert_eq!(tool.name(), "greet");
    assert_eq!(
        tool.spec().description(),
        "Greets a person.\n\nPolitely, unless told otherwise."
    );
    assert_eq!(
        tool.spec().parameters(),
        &json!({
            "type": "object",
            "properties": {
                "name": {"type": "string", "description": "The person to greet."},
                "loud": {
                    "type": "boolean",
                    "description": "In capital letters.",
                    "default": false,
                },
                "title": {"type": ["string", "null"]},
            },
            "required": ["name"],
        })
    );
    assert!(!tool.properties().concurrency_safe);
}

#[test]
fn the_attribute_overrides_name_and_description() {
    let tool = calculate();
    assert_eq!(tool.name(), "calculate-it");
    assert_eq!(tool.spec().description(), "Calculates.");
    assert!(tool.properties().concurrency_safe);
    assert_eq!(
        tool.spec().parameters(),
        &json!({
            "type": "object",
            "properties": {
                "operation": {"type": "string", "enum": ["add", "divide"]},
                "a": {"type": "integer", "format": "int64"},
                "b": {"type": "integer", "format": "int64"},
            },
            "required": ["operation", "a", "b"],
        })
    );
}

#[tokio::test]
async fn any_serializable_value_and_any_error_is_a_result() {
    assert_eq!(text(&letters(), json!({"text": "four"})).await, "4");
    assert_eq!(text(&point(), json!({"x": "-3"})).await, r#"{"x":-3}"#);
    let error = call(&point(), json!({"x": "three"})).await.unwrap_err();
    assert_eq!(error.kind(), ToolErrorKind::Failed);
    assert_eq!(error.to_string(), "invalid digit found in string");
    let error = call(&first_line(), json!({"path": "/dev/null"})).await;
    assert_eq!(error.unwrap_err().to_string(), "the file is empty");
    let error = call(&first_line(), json!({"path": "/missing"})).await;
    assert!(error.unwrap_err().to_string().contains("No such file"));
}

#[tokio::test]
async fn methods_are_tools_that_share_their_state() {
    let counter = Arc::new(Counter(AtomicU64::new(1)));
    let (add, count) = (counter.add(), counter.current());
    assert_eq!(
        (add.name(), add.properties().concurrency_safe),
        ("add", true)
    );
    assert_eq!(add.spec().parameters()["required"], json!(["n"]));
    assert_eq!(text(&add, json!({"n": 4})).await, "5");
    assert_eq!(text(&counter.add(), json!({"n": 1})).await, "6");
    assert_eq!(text(&count, json!({})).await, "count 6");
    let error = call(&add, json!({"n": 0})).await.unwrap_err();
    assert_eq!(error.to_string(), "call-1 adds nothing");
}

#[tokio::test]
async fn optional_arguments_may_be_omitted() {
    let tool = greet();
    assert_eq!(text(&tool, json!({"name": "Ada"})).await, "Hello Ada!");
    assert_eq!(
        text(
            &tool,
            json!({"name": "Ada", "loud": true, "title": "Lady "})
        )
        .await,
        "HELLO LADY ADA!"
    );
    assert_eq!(
        text(&tool, json!({"name": "Ada", "title": null})).await,
        "Hello Ada!"
    );
}

#[tokio::test]
async fn plain_functions_get_the_context_and_return_errors() {
    let tool = calculate();
    assert_eq!(
        text(&tool, json!({"operation": "add", "a": 2, "b": 3})).await,
        "call-1: 5"
    );
    let error = call(&tool, json!({"operation": "divide", "a": 2, "b": 0}))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ToolErrorKind::Failed);
    assert_eq!(error.to_string(), "There is no result.");
}

#[tokio::test]
async fn functions_without_arguments_have_no_parameters() {
    let tool = nothing();
    assert!(!tool.spec().has_parameters());
    let output = call(&tool, json!({})).await.expect("the tool works");
    assert_eq!(
        output,
        ToolOutput::text("nothing").with_metadata(Metadata::uses(1))
    );
    let error = call(&tool, json!({"x": 1})).await.unwrap_err();
    assert_eq!(error.kind(), ToolErrorKind::InvalidArguments);
    assert_eq!(
        error.to_string(),
        "unknown argument `x` (arguments are: none)"
    );
}

#[tokio::test]
async fn odd_argument_names_work() {
    assert_eq!(
        text(
            &odd_names(),
            json!({"type": "a", "count": 1, "renamed": true})
        )
        .await,
        "a 2 true"
    );
}

#[tokio::test]
async fn generated_names_do_not_clash() {
    let arguments = json!({"params": {"arguments": ["x", "y"]}});
    assert_eq!(text(&elsewhere::join(), arguments).await, "x+y0");
}

#[tokio::test]
async fn panics_of_plain_functions_are_errors() {
    let error = call(&boom(), json!({})).await.unwrap_err();
    assert_eq!(error.kind(), ToolErrorKind::Panicked);
    assert_eq!(
        error.to_string(),
        "The tool failed with an internal error: out of luck"
    );
}
