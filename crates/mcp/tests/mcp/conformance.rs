//! The scenarios of the MCP project's conformance suite, which `cargo xtask test` installs.

use std::process::Stdio;
use std::sync::Arc;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use cantle_core::content::{Media, MediaKind, Part};
use cantle_core::tool::{Answer, AskUser, DynTool, Question, ToolError, ToolOutput, ToolSpec};
use cantle_mcp::{HttpToolServer, McpServer};
use cantle_testkit::lane;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

use super::server::PIXEL;
use super::{call_with, context, open};

/// Revisions of the protocol and scenarios of the quick lane. The full lane has all scenarios of both; files list those that
/// are to fail, with the reasons, and the suite fails if one of them passes.
const CLIENT_SCENARIOS: [(&str, &[&str]); 2] = [
    ("2025-11-25", &["tools_call", "sse-retry"]),
    (
        "2026-07-28",
        &[
            "tools_call",
            "request-metadata",
            "sep-2322-client-request-state",
            "http-standard-headers",
            "http-invalid-tool-headers",
            "json-schema-ref-no-deref",
        ],
    ),
];
const SERVER_SCENARIOS: [(&str, &[&str]); 2] = [
    ("2025-11-25", &["tools-call-simple-text"]),
    ("2026-07-28", &["tools-list"]),
];

/// Runs the suite for a role, `client` or `server`, and panics unless exactly the expected scenarios fail.
async fn run_suite(role: &str, quick: &[(&str, &[&str])], subject: [&str; 2]) {
    let variable = |name: &str| std::env::var(format!("CANTLE_TEST_MCP_{name}"));
    let (Ok(node), Ok(suite)) = (variable("NODE"), variable("CONFORMANCE")) else {
        return lane::skip("the peer mcp is not available");
    };
    let mut problems = Vec::new();
    for (version, scenarios) in quick {
        let quick = scenarios.iter().map(|scenario| ["--scenario", scenario]);
        let all = vec![["--suite", "all"]];
        for chosen in lane::choose("most scenarios of the suite", quick.collect(), all) {
            let expected = format!(
                "{}/tests/mcp/conformance/{version}.yml",
                env!("CARGO_MANIFEST_DIR")
            );
            let mut command = Command::new(&node);
            command
                .args([&*suite, role, "--spec-version", version])
                .args(["--timeout", "120000", "--expected-failures", &expected])
                .args(chosen)
                .args(subject)
                .stdin(Stdio::null())
                .kill_on_drop(true);
            let mut ran = command.output().await.unwrap();
            if !ran.status.success() && lane::is_full() {
                // Side by side, scenarios that measure time can fail.
                ran = command.output().await.unwrap();
            }
            if !ran.status.success() {
                let out = String::from_utf8_lossy(&ran.stdout);
                let err = String::from_utf8_lossy(&ran.stderr);
                problems.push(format!("{chosen:?} of {version}:\n{out}\n{err}"));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// A WAV file without samples.
const SOUND: &str = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAAAAA=";

/// A user who takes the default of each question.
struct Agreeable;

#[async_trait]
impl AskUser for Agreeable {
    fn is_available(&self) -> bool {
        true
    }

    async fn ask(&self, question: Question) -> Result<Answer, ToolError> {
        let answer = match question.default {
            Some(_) => "",
            None => "yes",
        };
        let parsed = question.parse_answer(answer);
        parsed.map_err(|error| ToolError::failed(error.to_string()))
    }
}

/// Makes the calls that the suite asks for, or one of every tool, of the server at the URL that is the last argument.
#[test]
#[ignore = "started by the conformance suite, as a client"]
fn client() {
    let url = std::env::args().next_back().unwrap();
    let asked: Value = match std::env::var("MCP_CONFORMANCE_CONTEXT") {
        Ok(context) => serde_json::from_str(&context).unwrap(),
        Err(_) => Value::Null,
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let set = open(McpServer::http("suite", url)).await;
        let tools = set.tools();
        let calls: Vec<(String, Value)> = match asked["toolCalls"].as_array() {
            Some(calls) => calls
                .iter()
                .map(|call| {
                    let name = call["name"].as_str().unwrap();
                    (format!("suite__{name}"), call["arguments"].clone())
                })
                .collect(),
            None => tools
                .iter()
                .map(|tool| (tool.name().to_owned(), arguments(tool, &tools)))
                .collect(),
        };
        for (name, arguments) in calls {
            let mut cx = context();
            cx.user = Arc::new(Agreeable);
            let output = call_with(&*set, &name, arguments, cx).await;
            eprintln!("{name}: {output:?}");
        }
        set.close().await.unwrap();
    });
}

/// Returns arguments for a tool; an argument that is a schema is that of the first tool.
fn arguments(tool: &DynTool, tools: &[DynTool]) -> Value {
    let properties = tool.spec().parameters()["properties"].as_object().cloned();
    let arguments = properties.into_iter().flatten().map(|(name, schema)| {
        let value = match schema["type"].as_str() {
            Some("number" | "integer") => json!(3),
            Some("boolean") => json!(true),
            Some("object") => tools[0].spec().parameters().clone(),
            _ => json!("text"),
        };
        (name, value)
    });
    Value::Object(arguments.collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn client_fails_only_in_the_scenarios_that_are_listed() {
    let program = std::env::current_exe().unwrap();
    let client = format!(
        "{} conformance::client --exact --ignored --nocapture",
        program.display()
    );
    run_suite("client", &CLIENT_SCENARIOS, ["--command", &client]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn server_fails_only_in_the_scenarios_that_are_listed() {
    let tools = || {
        let tool = |name: &str, result: fn() -> ToolOutput| {
            let spec = ToolSpec::new(name, "A tool of the suite.", json!({"type": "object"}));
            DynTool::from_schema(spec, move |_, _| async move { Ok(result()) })
        };
        let schema = json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "$defs": {"address": {"$anchor": "addressDef", "type": "object"}},
            "properties": {"address": {"$ref": "#/$defs/address"}},
            "allOf": [{"anyOf": [{"required": ["address"]}, {"type": "object"}]}],
            "if": {"required": ["address"]}, "then": {}, "else": {},
            "additionalProperties": false,
        });
        let spec = ToolSpec::new("json_schema_2020_12_tool", "A tool of the suite.", schema);
        let with_schema = DynTool::from_schema(spec, async |_, _| Ok(ToolOutput::text("done")));
        vec![
            with_schema,
            tool("test_simple_text", || {
                ToolOutput::text("This is a simple text response for testing.")
            }),
            tool("test_image_content", || {
                let pixel = BASE64.decode(PIXEL).unwrap();
                let image = Media::image(pixel).unwrap();
                ToolOutput::new(vec![Part::Media(image)])
            }),
            tool("test_audio_content", || {
                let sound = BASE64.decode(SOUND).unwrap();
                let sound = Media::new(MediaKind::Audio, sound);
                ToolOutput::new(vec![Part::Media(sound.unwrap())])
            }),
            tool("test_error_handling", || {
                ToolOutput::failure("This tool intentionally returns an error for testing")
            }),
        ]
    };
    let server = HttpToolServer::new(tools, tools(), CancellationToken::new());
    let server = Arc::new(server);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let router = axum::Router::new().fallback(move |request: axum::extract::Request| {
        let server = Arc::clone(&server);
        async move { server.answer(request).await.map(axum::body::Body::new) }
    });
    let task = tokio::spawn(async move {
        let _ = axum::serve(listener, router).await;
    });
    run_suite("server", &SERVER_SCENARIOS, ["--url", &url]).await;
    task.abort();
}
