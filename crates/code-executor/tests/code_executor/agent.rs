//! An agent that makes a chart, finds it again in another session, and changes it; one that makes many files.

use std::sync::Arc;

use cantle_agent::{Agent, SessionOptions};
use cantle_backends_local::LocalBackend;
use cantle_clients::chat::ChatClient;
use cantle_core::event::RunStatus;
use cantle_core::ids::unique_id;
use cantle_core::principal::{Level, Principal};
use cantle_files::{FileStore, Files, MemoryRecords, Urls};
use cantle_testkit::openai::{Request, Script, ScriptedServer, ServerOptions, ToolCall, Turn};
use cantle_tools::{CodeExec, Finish};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{files, remote_files};

#[tokio::test]
async fn an_agent_finds_its_chart_in_a_directory_again() {
    let directory = TempDir::new().unwrap();
    // Another process would open the same store and catalogue.
    make_find_and_change((files(&directory).await, files(&directory).await), "alice").await;
}

#[tokio::test]
async fn an_agent_finds_its_chart_in_s3_again() {
    let owner = unique_id();
    let prefix = format!("sessions/{owner}");
    if let (Some(one), Some(other)) = (remote_files(&prefix).await, remote_files(&prefix).await) {
        let url = make_find_and_change((one, other), &owner).await;
        let mut curl = std::process::Command::new("curl");
        let content = curl.args(["-sf", &url.unwrap()]).output().unwrap();
        assert_eq!(content.stdout, b"<svg>2</svg>");
    }
}

/// Returns the address of the changed chart.
async fn make_find_and_change((first, second): (Files, Files), owner: &str) -> Option<String> {
    let make = |request: &Request| match request.turn {
        0 => python("open('/tmp/chart.svg', 'w').write('<svg>1</svg>')"),
        _ => finish(),
    };
    run(&first, owner, make).await;
    let change = |request: &Request| match request.turn {
        0 => call("list_files", json!({})),
        1 => {
            let id = &result(request)["files"][0]["file_id"];
            call("load_file", json!({ "file_id": id }))
        }
        2 => {
            let path = &result(request)["local_path"];
            python(&format!(
                "t = open({path}).read(); open({path}, 'w').write(t.replace('1', '2'))"
            ))
        }
        _ => finish(),
    };
    run(&second, owner, change).await;
    let charts = second.list(owner, None, 10).await.unwrap();
    let names: Vec<_> = charts.iter().map(|it| &*it.filename).collect();
    assert_eq!(names, ["chart.svg", "chart.svg"]);
    let mut contents = Vec::new();
    for chart in &charts {
        contents.push(second.read_bytes(owner, chart.id, 100).await.unwrap());
    }
    assert_eq!(contents, ["<svg>2</svg>", "<svg>1</svg>"]);
    // Each is a file of the run that made it.
    assert!(charts[0].run.is_some() && charts[0].run != charts[1].run);
    second.url(&charts[0]).await.unwrap()
}

#[tokio::test]
async fn a_result_that_is_too_long_keeps_the_list_of_generated_files() {
    let base = format!("https://example.com/{}", "x".repeat(1000));
    let store = FileStore::memory().with_urls(Urls::Public(base.parse().unwrap()));
    let files = Files::open(store.unwrap(), MemoryRecords::new())
        .await
        .unwrap();
    let shown = Arc::new(Mutex::new(String::new()));
    let latest = Arc::clone(&shown);
    let make = move |request: &Request| match request.turn {
        0 => python("for n in range(100): open(f'/tmp/{n:03}.txt', 'w').write('x')"),
        _ => {
            *latest.lock() = text(request);
            finish()
        }
    };
    run(&files, "alice", make).await;
    let shown = shown.lock().clone();
    assert!(shown.contains("its middle is omitted here"), "{shown}");
    let (_, list) = shown.split_once("--- Generated Files ---").unwrap();
    for number in 0..100 {
        assert!(list.contains(&format!("[{number:03}.txt](")), "{list}");
    }
    assert!(list.contains("[000.txt](https://example.com/"), "{list}");
}

/// Runs a task in a session of its own.
async fn run(files: &Files, owner: &str, turn: impl Fn(&Request) -> Turn + Send + Sync + 'static) {
    let script = Script::new().then_with(turn);
    let server = ScriptedServer::start(ServerOptions::new(script))
        .await
        .unwrap();
    let client = ChatClient::builder("scripted").base_url(server.url());
    let sandbox = CodeExec::new(LocalBackend::new());
    let mut agent = Agent::builder("charts", client.build().unwrap()).provider(sandbox);
    for tool in cantle_code_executor::tools(files) {
        agent = agent.tool(tool);
    }
    let agent = agent.finish(Finish).build().unwrap();
    let principal = Principal::new(owner, Level::User).unwrap();
    let options = SessionOptions::default().principal(principal);
    let session = agent.session(options).await.unwrap();
    let outcome = session.run("Work on the chart").unwrap().outcome().await;
    assert_eq!(outcome.status(), RunStatus::Finished, "{:?}", outcome.error);
    assert_eq!(
        outcome
            .ledger
            .tools
            .values()
            .map(|it| it.failures)
            .sum::<u64>(),
        0
    );
    session.close().await.unwrap();
}

fn call(tool: &str, arguments: Value) -> Turn {
    Turn::tool(ToolCall::new(tool, arguments))
}

fn python(code: &str) -> Turn {
    call("run_python", json!({ "code": code }))
}

fn finish() -> Turn {
    call("finish", json!({"reason": "done", "paths": []}))
}

/// Returns the result of the latest call.
fn result(request: &Request) -> Value {
    serde_json::from_str(&text(request)).unwrap()
}

fn text(request: &Request) -> String {
    let body = request.body();
    let latest = body["messages"].as_array().unwrap().last().unwrap().clone();
    let content = &latest["content"];
    let text = content.as_str().or(content[0]["text"].as_str());
    text.unwrap().to_owned()
}
