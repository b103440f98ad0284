//! The client scenarios of the MCP project's conformance suite, which `cargo xtask test` installs.

use std::process::Stdio;
use std::sync::Arc;

use async_trait::async_trait;
use cantle_core::tool::{Answer, AskUser, Question, ToolError};
use cantle_mcp::McpServer;
use cantle_testkit::lane;
use serde_json::{Value, json};
use tokio::process::Command;

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
