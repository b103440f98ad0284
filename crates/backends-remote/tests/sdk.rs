//! Compares requests with those of E2B's official SDK (`tests/sdk/*.json`, written by `tests/sdk/capture.py`).
//!
//! Intended differences are listed with reasons in `tests/sdk/differences.json`.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "the lints know a test by its attribute, and what tests share has none"
)]

#[path = "sdk/stub_server.rs"]
mod stub_server;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use cantle_backends_remote::{ApiGeneration, RemoteBackend};
use cantle_core::ids::RunId;
use cantle_core::policy::{Network, Policy};
use cantle_core::sandbox::{
    Backend as _, ByteRange, PtySize, SandboxContext, SandboxExt as _, SandboxPath, SpawnRequest,
    Stdin,
};
use futures_util::StreamExt as _;
use serde_json::Value;

use self::stub_server::StubServer;

const KEY: &str = "e2b_0000000000000000000000000000000000000000";

fn path(path: &str) -> SandboxPath {
    path.parse().unwrap()
}

/// Performs the calls of `capture.py` and returns the request of each.
async fn capture_requests(generation: ApiGeneration) -> BTreeMap<String, Value> {
    let server = StubServer::start().await;
    let backend = RemoteBackend::builder()
        .api_key(KEY)
        .api_url(&server.url)
        .sandbox_url(&server.url)
        .api_generation(generation)
        .metadata("name", "value")
        .env("NAME", "value")
        .pause_when_idle(Duration::from_millis(300))
        .build()
        .unwrap();
    let mut policy = Policy::unconfined();
    policy.network = Some(Network::Off);
    let cx = || SandboxContext::new(RunId::new(), policy.clone());
    let mut calls = BTreeMap::new();
    let mut record = |call: &str, ends_with: &str, script: Option<&str>| {
        let request = server.last(ends_with, script);
        calls.insert(
            call.to_owned(),
            request.unwrap_or_else(|| panic!("no request for {call}")),
        );
    };

    let sandbox = backend.open(cx().durable()).await.unwrap();
    record("create", "/sandboxes", None);
    let handle = sandbox.persist().await.unwrap();

    let request = SpawnRequest::shell("echo hello")
        .with_env("NAME", "value")
        .with_timeout(Duration::from_secs(30));
    assert_eq!(sandbox.run(request).await.unwrap().stdout.text(), "hello\n");
    record("run", "/Start", Some("echo hello"));

    let request = SpawnRequest::shell("cat").with_stdin(Stdin::Piped);
    let mut process = sandbox.spawn(request).await.unwrap();
    record("background", "/Start", Some("cat"));
    let mut stdin = process.take_stdin().unwrap();
    stdin.write(Bytes::from("text")).await.unwrap();
    record("stdin", "/SendInput", None);
    drop(stdin);
    server.wait_for("/CloseStdin").await;
    record("close_stdin", "/CloseStdin", None);
    drop(process);
    server.wait_for("/SendSignal").await;
    record("kill_command", "/SendSignal", None);

    let size = |rows, columns| PtySize { rows, columns };
    let request = SpawnRequest::argv(["bash", "-i"]).with_pty(size(24, 80));
    let mut terminal = sandbox.spawn(request).await.unwrap();
    record("pty", "/Start", Some("-i"));
    let mut stdin = terminal.take_stdin().unwrap();
    stdin.write(Bytes::from("text")).await.unwrap();
    record("pty_stdin", "/SendInput", None);
    terminal.resize(size(40, 120)).await.unwrap();
    record("resize", "/Update", None);
    drop((stdin, terminal));

    sandbox
        .write_bytes(&path("new"), "text".into())
        .await
        .unwrap();
    record("write", "/files", None);
    record("rename", "/Move", None);
    let mut read = sandbox.read(&path("file"), ByteRange::all()).await.unwrap();
    assert_eq!(read.next().await.unwrap().unwrap(), "text");
    drop(read);
    record("read", "/files", None);
    sandbox.stat(&path("file")).await.unwrap();
    record("stat", "/Stat", Some("/home/user/file"));
    sandbox.list(&path(".")).await.unwrap();
    record("list", "/ListDir", None);
    sandbox.mkdir(&path("new")).await.unwrap();
    record("mkdir", "/MakeDir", None);
    sandbox.remove(&path("file")).await.unwrap();
    record("remove", "/Remove", None);
    // Its stream breaks, which triggers a health check.
    let broken = sandbox.run(SpawnRequest::shell("break")).await;
    broken.expect_err("the broken stream was accepted");
    record("health", "/health", None);
    record("listen_again", "/Connect", None);
    // Its stream has no events.
    let silent = sandbox.run(SpawnRequest::shell("silent")).await;
    silent.expect_err("the empty stream was accepted");
    server.wait_for("/List").await;
    record("processes", "/List", None);

    server.wait_for("/pause").await;
    record("pause", "/pause", None);
    // The next use resumes the paused sandbox.
    sandbox.stat(&path("file")).await.unwrap();
    record("connect", "/connect", None);
    drop(sandbox);
    let again = backend.reattach(&handle, cx()).await.unwrap();
    again.close().await.unwrap();
    record("kill", "/sandboxes/isandbox", None);
    calls
}

/// Returns the request that extends an idle sandbox's lifetime.
async fn capture_extension() -> Value {
    let server = StubServer::start().await;
    let backend = RemoteBackend::builder()
        .api_key(KEY)
        .api_url(&server.url)
        .sandbox_url(&server.url)
        .lifetime(Duration::from_secs(15))
        .build()
        .unwrap();
    let cx = SandboxContext::new(RunId::new(), Policy::unconfined());
    let sandbox = backend.open(cx).await.unwrap();
    server.wait_for("/timeout").await;
    sandbox.close().await.unwrap();
    server.last("/timeout", None).unwrap()
}

/// Collects all values of a request by their paths.
fn flatten(at: &str, value: &Value, all: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                flatten(&format!("{at}.{name}"), value, all);
            }
        }
        Value::Array(items) if at.ends_with("envelopes") => {
            for (number, value) in items.iter().enumerate() {
                flatten(&format!("{at}.{number}"), value, all);
            }
        }
        value => {
            all.insert(at.trim_start_matches('.').to_owned(), value.clone());
        }
    }
}

fn fields(request: &Value) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    flatten("", request, &mut all);
    all.remove("call");
    all
}

async fn compare(sdk: &str, generation: ApiGeneration) {
    let intended: Vec<Value> = serde_json::from_str(include_str!("sdk/differences.json")).unwrap();
    let sdk_requests: Vec<Value> = serde_json::from_str(sdk).unwrap();
    let (mut requests, extension) = tokio::join!(capture_requests(generation), capture_extension());
    requests.insert("prolong".to_owned(), extension);
    let mut unexpected = Vec::new();
    let mut used = BTreeSet::new();
    for request in &sdk_requests {
        let call = request["call"].as_str().unwrap();
        let own = requests
            .get(call)
            .unwrap_or_else(|| panic!("{call} is not covered"));
        let (sdk_fields, own_fields) = (fields(request), fields(own));
        let names: BTreeSet<&String> = sdk_fields.keys().chain(own_fields.keys()).collect();
        for name in names {
            if sdk_fields.get(name) == own_fields.get(name) {
                continue;
            }
            let known = intended.iter().position(|it| {
                let calls = it["calls"].as_array().unwrap();
                it["field"] == **name && calls.iter().any(|known| known == call || known == "*")
            });
            match known {
                Some(at) => {
                    used.insert(at);
                }
                None => unexpected.push(format!(
                    "{call}: {name}: SDK {:?}, backend {:?}",
                    sdk_fields.get(name),
                    own_fields.get(name)
                )),
            }
        }
    }
    assert!(unexpected.is_empty(), "{}", unexpected.join("\n"));
    let stale: Vec<_> = (0..intended.len())
        .filter(|at| !used.contains(at) && intended[*at]["only"].is_null())
        .map(|at| &intended[at])
        .collect();
    assert!(
        stale.is_empty(),
        "these listed differences no longer exist: {stale:?}"
    );
}

#[tokio::test]
async fn v2_requests_match_the_sdk() {
    compare(include_str!("sdk/python-2.63.0.json"), ApiGeneration::V2).await;
}

#[tokio::test]
async fn v1_requests_match_the_sdk() {
    compare(include_str!("sdk/python-2.45.0.json"), ApiGeneration::V1).await;
}

#[tokio::test]
async fn truncated_output_is_an_error() {
    let server = StubServer::start().await;
    let backend = RemoteBackend::builder()
        .api_key(KEY)
        .api_url(&server.url)
        .sandbox_url(&server.url)
        .build()
        .unwrap();
    let cx = SandboxContext::new(RunId::new(), Policy::unconfined());
    let sandbox = backend.open(cx).await.unwrap();
    let error = sandbox.run(SpawnRequest::shell("half")).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the rest of the command's output is lost: the stream ended without an end message"
    );
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn create_parameters_are_sent_unless_another_setting_decides() {
    let server = StubServer::start().await;
    let builder = || {
        RemoteBackend::builder()
            .api_key(KEY)
            .api_url(&server.url)
            .sandbox_url(&server.url)
    };
    let backend = builder().create_parameter("mcp", serde_json::json!({"browser": {}}));
    let cx = SandboxContext::new(RunId::new(), Policy::unconfined());
    let sandbox = backend.build().unwrap().open(cx).await.unwrap();
    let request = server.last("/sandboxes", None).unwrap();
    assert_eq!(
        request["body"]["json"]["mcp"],
        serde_json::json!({"browser": {}})
    );
    assert_eq!(request["body"]["json"]["templateID"], "base");
    sandbox.close().await.unwrap();
    for name in ["templateID", "network", "allow_internet_access", "envVars"] {
        let refused = builder().create_parameter(name, Value::Bool(true)).build();
        let message = refused.unwrap_err().to_string();
        assert!(message.contains(name), "{message}");
    }
}
