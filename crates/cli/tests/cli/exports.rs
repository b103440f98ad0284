//! Kept runs in the formats of other programs.

use std::process::Stdio;

use cantle_testkit::lane;
use cantle_testkit::openai::{Script, ScriptedServer, ServerOptions, ToolCall, Turn, Usage};
use serde_json::{Value, json};

use crate::finish;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpSocket};
use tokio::time::timeout;

use crate::support::{DEADLINE, TestEnv, static_program, wait_for_exit};

const SECRET: &str = "sk-export-0123456789";
/// Validates files: the first with ATIF's models, the second with Inspect's reader.
const READERS: &str = "
import json, sys
from atif import Trajectory
from inspect_ai.log import read_eval_log
trajectory = Trajectory.model_validate(json.load(open(sys.argv[1])))
print(trajectory.schema_version, len(trajectory.steps), len(trajectory.subagent_trajectories))
log = read_eval_log(sys.argv[2])
print(log.version, log.status, len(log.samples), len(log.samples[0].messages), log.samples[0].output.choices[0].stop_reason)
";

/// Keeps a run with reasoning, an image, invalid arguments, a sub-agent and a secret.
async fn kept() -> (ScriptedServer, TestEnv) {
    let usage = Usage::new(100, 20).cached(60).reasoning(5);
    let task = json!({"task": "Review it."});
    let main = Script::new()
        .turn(
            Turn::text("I **look**.")
                .reasoning("Think first.")
                .usage(usage)
                .call(ToolCall::new(
                    "code_exec",
                    json!({"cmd": "printf '%s' \"$OPENAI_API_KEY\"; exit 3"}),
                )),
        )
        .turn(Turn::tool(ToolCall::new("code_exec", "{\"cmd\": ")))
        .turn(Turn::tool(ToolCall::new("reviewer", task)))
        .turn(finish("Reviewed.", &[]));
    let critic = Script::new().turn(finish("It is good.", &[]));
    let options = ServerOptions::new(main).model("critic", critic);
    let server = ScriptedServer::start(options).await.unwrap();
    let env = TestEnv::new()
        .with_server(&server.url())
        .set("OPENAI_API_KEY", SECRET);
    let agents = "[reviewer]\ndescription = \"Reviews.\"\nmodel = \"critic\"\n";
    env.write("team.toml", agents);
    env.write("dot.gif", crate::DOT);
    let args = [
        "run",
        "Have it reviewed.",
        "--image",
        "dot.gif",
        "--sub-agents",
        "team.toml",
    ];
    let flags = ["--env", "OPENAI_API_KEY"];
    let exited = env.run(args.iter().chain(&flags)).await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
    (server, env)
}

async fn exported(env: &TestEnv, format: &str) -> String {
    let file = format!("export.{format}");
    let args = ["runs", "show", "last", "--format", format, "-o", &file];
    let exited = env.run(args).await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
    let text = env.read(&file);
    assert!(!text.contains(SECRET), "{text}");
    assert!(text.contains("[OPENAI_API_KEY redacted]"), "{text}");
    assert!(text.contains("data:image/gif;base64,"), "{text}");
    text
}

#[tokio::test]
async fn runs_are_exported_for_other_programs() {
    let (_server, env) = kept().await;
    let atif: Value = serde_json::from_str(&exported(&env, "atif").await).unwrap();
    assert_eq!(atif["schema_version"], "ATIF-v1.8");
    let steps = atif["steps"].as_array().unwrap();
    let ids: Vec<_> = steps
        .iter()
        .map(|step| step["step_id"].as_u64().unwrap())
        .collect();
    assert_eq!(ids, (1..=steps.len() as u64).collect::<Vec<_>>());
    assert!(
        steps
            .iter()
            .all(|step| step.get("is_copied_context").is_none()),
        "{atif:#}"
    );
    let answers: Vec<_> = steps
        .iter()
        .filter(|step| step["source"] == "agent")
        .collect();
    assert_eq!(answers.len(), 4, "{atif:#}");
    let first = answers[0];
    assert_eq!(first["message"], "I **look**.");
    assert_eq!(first["reasoning_content"], "Think first.");
    let (calls, results) = (&first["tool_calls"], &first["observation"]["results"]);
    assert_eq!(calls[0]["function_name"], "code_exec");
    assert_eq!(results[0]["source_call_id"], calls[0]["tool_call_id"]);
    let metrics = &first["metrics"];
    assert_eq!(metrics["prompt_tokens"], 100);
    assert_eq!(metrics["completion_tokens"], 20);
    assert_eq!(metrics["cached_tokens"], 60);
    let invalid = &answers[1]["tool_calls"][0];
    assert_eq!(invalid["arguments"], json!({}));
    assert_eq!(invalid["extra"]["invalid_arguments"], "{\"cmd\": ");
    let sub_agent = &atif["subagent_trajectories"][0];
    let reference = &answers[2]["observation"]["results"][0]["subagent_trajectory_ref"][0];
    assert_eq!(reference["trajectory_id"], sub_agent["trajectory_id"]);
    let tools = atif["agent"]["tool_definitions"].as_array().unwrap();
    assert!(
        tools
            .iter()
            .any(|tool| tool["function"]["name"] == "code_exec"),
        "{atif:#}"
    );

    let log: Value = serde_json::from_str(&exported(&env, "inspect").await).unwrap();
    assert_eq!(
        (&log["version"], &log["status"]),
        (&json!(2), &json!("success"))
    );
    assert_eq!(log["eval"]["dataset"]["samples"], 2);
    let roles = log["samples"][0]["messages"].as_array().unwrap().iter();
    let roles: Vec<_> = roles
        .map(|message| message["role"].as_str().unwrap())
        .collect();
    assert_eq!(roles[..4], ["system", "user", "assistant", "tool"]);
    assert_eq!(
        log["samples"][1]["metadata"]["parent"],
        log["samples"][0]["id"]
    );

    let lines = exported(&env, "fine-tuning").await;
    let lines: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 2);
    for line in &lines {
        let messages = line["messages"].as_array().unwrap();
        assert_eq!(messages.first().unwrap()["role"], "system");
        assert_eq!(messages.last().unwrap()["role"], "assistant");
        let mut open = Vec::new();
        for message in messages {
            let calls = message["tool_calls"].as_array().into_iter().flatten();
            open.extend(calls.map(|call| &call["id"]));
            if message["role"] == "tool" {
                open.retain(|id| **id != message["tool_call_id"]);
            }
        }
        // Those of the last answer.
        assert_eq!(open.len(), 1, "{line:#}");
        assert!(
            line["tools"]
                .as_array()
                .is_some_and(|tools| !tools.is_empty()),
            "{line:#}"
        );
    }
}

#[tokio::test]
async fn exports_are_read_by_their_own_readers() {
    let Ok(python) = std::env::var("CANTLE_TEST_READERS_PYTHON") else {
        return lane::skip("the readers of ATIF and Inspect belong to the full lane");
    };
    let (_server, env) = kept().await;
    for format in ["atif", "inspect"] {
        exported(&env, format).await;
    }
    std::fs::rename(env.path("export.inspect"), env.path("log.json")).unwrap();
    let mut readers = env.command_of(python);
    readers
        .args(["-c", READERS, "export.atif", "log.json"])
        .stdin(Stdio::null());
    let exited = wait_for_exit(readers.spawn().unwrap()).await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
    let shown: Vec<_> = exited.stdout.lines().collect();
    assert!(
        shown[0].starts_with("ATIF-v1.8 ") && shown[0].ends_with(" 1"),
        "{shown:?}"
    );
    assert!(
        shown[1].starts_with("2 success 2 ") && shown[1].ends_with(" tool_calls"),
        "{shown:?}"
    );
}

#[cfg(not(feature = "otel"))]
#[tokio::test]
async fn collector_is_refused_by_a_build_without_opentelemetry() {
    let server = ScriptedServer::start(crate::nothing_to_do()).await.unwrap();
    let env = TestEnv::new().with_server(&server.url());
    let exited = env
        .run(["run", "Do it", "--otlp", "http://127.0.0.1:9"])
        .await;
    assert_eq!(exited.code, Some(2), "{exited:?}");
    assert!(exited.stderr.contains("`--features otel`"), "{exited:?}");
    assert_eq!(server.requests().len(), 0);
}

/// A run sends spans to a collector, with redacted content, and outlives a missing one.
#[tokio::test]
async fn spans_reach_a_collector() {
    if !cfg!(feature = "otel") {
        return lane::skip("only the quick lane builds the program with OpenTelemetry");
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let collector = async {
        let mut received = Vec::new();
        loop {
            let (mut connection, _) = listener.accept().await.unwrap();
            let mut reader = BufReader::new(&mut connection);
            let (mut line, mut length) = (String::new(), 0);
            while reader.read_line(&mut line).await.unwrap() > 2 {
                if let Some(value) = line.to_lowercase().strip_prefix("content-length: ") {
                    length = value.trim().parse().unwrap();
                }
                line.clear();
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).await.unwrap();
            received.extend_from_slice(&body);
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
            connection.write_all(answer).await.unwrap();
            let text = String::from_utf8_lossy(&received).into_owned();
            // The span of the run is the last to end.
            if text.contains("invoke_agent cantle") {
                return text;
            }
        }
    };
    let script = Script::new()
        .turn(crate::command("printf '%s' \"$OPENAI_API_KEY\""))
        .turn(finish("Done.", &[]))
        .repeat_last();
    let server = ScriptedServer::start(script).await.unwrap();
    let env = TestEnv::new()
        .with_server(&server.url())
        .set("OPENAI_API_KEY", SECRET)
        .set("OTEL_RESOURCE_ATTRIBUTES", "service.name=analytics")
        .set("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "true");
    let run = [
        "run",
        "Print it",
        "--env",
        "OPENAI_API_KEY",
        "--otlp",
        &address,
    ];
    let (exited, text) = tokio::join!(env.run(run), timeout(DEADLINE, collector));
    let text = text.unwrap();
    assert_eq!(exited.code, Some(0), "{exited:?}");
    for part in [
        "analytics",
        "chat scripted",
        "execute_tool code_exec",
        "[OPENAI_API_KEY redacted]",
    ] {
        assert!(text.contains(part), "{text:?}");
    }
    assert!(!text.contains(SECRET), "{text:?}");

    // Bound but not listening, so connections are refused.
    let missing = TcpSocket::new_v4().unwrap();
    missing.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = format!("http://{}", missing.local_addr().unwrap());
    let env = env.set("OTEL_EXPORTER_OTLP_ENDPOINT", address);
    let exited = env.run(["run", "Print it"]).await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
    assert!(
        exited.stderr.contains("spans were not exported"),
        "{exited:?}"
    );
}

/// Phoenix shows the spans of a run as a tree of calls of a model and of tools.
#[tokio::test]
async fn phoenix_shows_the_spans_of_a_run() {
    let Ok(phoenix) = std::env::var("CANTLE_TEST_PHOENIX_URL") else {
        return lane::skip("Phoenix belongs to the full lane");
    };
    let Some(program) = static_program() else {
        return;
    };
    let script = Script::new()
        .turn(crate::command("echo seen").usage(Usage::new(100, 20)))
        .turn(finish("Done.", &[]).usage(Usage::new(100, 20)));
    let server = ScriptedServer::start(script).await.unwrap();
    let env = TestEnv::new()
        .with_server(&server.url())
        .with_program(program);
    let exited = env.run(["run", "Print it", "--otlp", &phoenix]).await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
    let address = format!("{phoenix}/v1/projects/default/spans?limit=100");
    let fetch = async || {
        let mut curl = env.command_of("curl");
        curl.args(["--silent", "--fail", &address]);
        let fetched = wait_for_exit(curl.spawn().unwrap()).await;
        let answer: Value = serde_json::from_str(&fetched.stdout).unwrap();
        answer["data"].as_array().unwrap().clone()
    };
    // It stores spans after it has answered.
    let stored = async {
        loop {
            let spans = fetch().await;
            if spans.len() >= 5 {
                return spans;
            }
        }
    };
    let spans = timeout(DEADLINE, stored).await.unwrap();
    let root = spans.iter().find(|span| span["parent_id"].is_null());
    let root = &root.unwrap()["context"]["span_id"];
    let mut shown: Vec<_> = spans
        .iter()
        .map(|span| {
            let tokens = &span["attributes"]["llm.token_count.total"];
            let is_below = span["parent_id"] == *root;
            json!([span["name"], span["span_kind"], is_below, tokens]).to_string()
        })
        .collect();
    shown.sort();
    let expected = [
        r#"["chat scripted","LLM",true,120]"#,
        r#"["chat scripted","LLM",true,120]"#,
        r#"["execute_tool code_exec","TOOL",true,null]"#,
        r#"["execute_tool finish","TOOL",true,null]"#,
        r#"["invoke_agent cantle","AGENT",false,240]"#,
    ];
    assert_eq!(shown, expected);
}
