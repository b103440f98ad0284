//! The scenarios of the MCP project's conformance suite, which `cargo xtask test` installs.

use std::process::Stdio;
use std::sync::Arc;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use cantle_core::content::{Media, Part};
use cantle_core::tool::{Answer, AskUser, DynTool, Question, ToolError, ToolOutput, ToolSpec};
use cantle_mcp::{HttpToolServer, McpServer};
use cantle_testkit::lane;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

use super::server::PIXEL;
use super::{call_with, context, open};

/// Revisions of the protocol and their scenarios, without those of OAuth, which is not supported.
/// `http-custom-headers` needs a client that knows the arguments it is to send.
const SCENARIOS: [(&str, &[&str]); 2] = [
    (
        "2025-11-25",
        &[
            "initialize",
            "tools_call",
            "elicitation-sep1034-client-defaults",
            "sse-retry",
        ],
    ),
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

/// Calls every tool of the server at the URL that is the last argument.
#[test]
#[ignore = "started by the conformance suite, as a client"]
fn client() {
    let url = std::env::args().next_back().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let set = open(McpServer::http("suite", url)).await;
        for tool in set.tools() {
            let properties = tool.spec().parameters()["properties"].as_object().cloned();
            let arguments: serde_json::Map<String, Value> = properties
                .into_iter()
                .flatten()
                .map(|(name, schema)| match schema["type"].as_str() {
                    Some("number" | "integer") => (name, json!(3)),
                    Some("boolean") => (name, json!(true)),
                    _ => (name, json!("text")),
                })
                .collect();
            let mut cx = context();
            cx.user = Arc::new(Agreeable);
            let output = call_with(&*set, tool.name(), arguments.into(), cx).await;
            eprintln!("{}: {output:?}", tool.name());
        }
        set.close().await.unwrap();
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn scenarios_of_the_suite_pass() {
    let variable = |name: &str| std::env::var(format!("CANTLE_TEST_MCP_{name}"));
    let (Ok(node), Ok(suite)) = (variable("NODE"), variable("CONFORMANCE")) else {
        lane::skip("the peer mcp is not available");
        return;
    };
    let program = std::env::current_exe().unwrap();
    let client = format!(
        "{} conformance::client --exact --ignored --nocapture",
        program.display()
    );
    let scenarios = SCENARIOS
        .iter()
        .flat_map(|(version, names)| names.iter().map(move |name| (version, name)));
    for (version, scenario) in scenarios {
        let ran = Command::new(&node)
            .args([&*suite, "client", "--spec-version", version])
            .args(["--scenario", scenario, "--command", &client])
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .unwrap();
        let (out, err) = (
            String::from_utf8_lossy(&ran.stdout),
            String::from_utf8_lossy(&ran.stderr),
        );
        assert!(
            ran.status.success(),
            "{scenario} of {version}:\n{out}\n{err}"
        );
    }
}

/// Scenarios of the suite for servers. The others are about resources, prompts, logging, completion, sampling and
/// elicitation, which Cantle's servers do not have.
const SERVER_SCENARIOS: [(&str, &[&str]); 2] = [
    (
        "2025-11-25",
        &[
            "server-initialize",
            "server-session-lifecycle",
            "ping",
            "tools-list",
            "tools-call-simple-text",
            "tools-call-image",
            "tools-call-error",
        ],
    ),
    (
        "2026-07-28",
        &[
            "server-stateless",
            "tools-list",
            "tools-call-simple-text",
            "tools-call-error",
            "http-header-validation",
            "caching",
        ],
    ),
];

/// The checks of a scenario that fail: they need prompts and resources, or tools that ask the client for something or
/// change the server.
fn expected_failures(scenario: &str) -> &'static [&'static str] {
    match scenario {
        "server-stateless" => &[
            "sep-2575-server-rejects-undeclared-capability",
            "sep-2575-missing-capability-http-400",
            "sep-2575-http-server-no-independent-requests-on-stream",
            "sep-2575-server-no-log-without-loglevel",
        ],
        "caching" => &[
            "sep-2549-prompts-list-caching-hints",
            "sep-2549-resources-list-caching-hints",
            "sep-2549-resources-templates-list-caching-hints",
        ],
        _ => &[],
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn server_scenarios_of_the_suite_pass() {
    let variable = |name: &str| std::env::var(format!("CANTLE_TEST_MCP_{name}"));
    let (Ok(node), Ok(suite)) = (variable("NODE"), variable("CONFORMANCE")) else {
        lane::skip("the peer mcp is not available");
        return;
    };
    let tools = || {
        let tool = |name: &str, result: fn() -> ToolOutput| {
            let spec = ToolSpec::new(name, "A tool of the suite.", json!({"type": "object"}));
            DynTool::from_schema(spec, move |_, _| async move { Ok(result()) })
        };
        vec![
            tool("test_simple_text", || {
                ToolOutput::text("This is a simple text response for testing.")
            }),
            tool("test_image_content", || {
                let pixel = BASE64.decode(PIXEL).unwrap();
                let image = Media::image(pixel).unwrap();
                ToolOutput::new(vec![Part::Media(image)])
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
    let mut problems = Vec::new();
    let quick = [("2025-11-25", &["tools-list", "tools-call-simple-text"][..])];
    let chosen = lane::choose("most server scenarios", &quick[..], &SERVER_SCENARIOS);
    for (version, scenarios) in chosen {
        for scenario in *scenarios {
            let ran = Command::new(&node)
                .args([&*suite, "server", "--spec-version", version])
                .args(["--scenario", scenario, "--url", &url])
                .stdin(Stdio::null())
                .kill_on_drop(true)
                .output()
                .await
                .unwrap();
            let out = String::from_utf8_lossy(&ran.stdout);
            let failed = out.lines().filter(|line| line.contains("FAILURE"));
            let failed: Vec<&str> = failed
                .filter_map(|line| {
                    line.split(['[', ']', ' '])
                        .find(|word| word.starts_with("sep-"))
                })
                .collect();
            let expected = expected_failures(scenario);
            if failed != expected || (!ran.status.success() && expected.is_empty()) {
                problems.push(format!("{scenario} of {version}: {failed:?}\n{out}"));
            }
        }
    }
    task.abort();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
