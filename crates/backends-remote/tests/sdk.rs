//! What we send, beside what E2B's official SDK sends for the same (`tests/sdk/*.json`, written by
//! `tests/sdk/capture.py`). Every difference is intended and says why, in `tests/sdk/differences.json`.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "the lints know a test by its attribute, and what tests share has none"
)]

#[path = "sdk/scripted.rs"]
mod scripted;

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

use self::scripted::Scripted;

const KEY: &str = "e2b_0000000000000000000000000000000000000000";

fn path(path: &str) -> SandboxPath {
    path.parse().unwrap()
}

/// Does what `capture.py` does, and gives what was sent for each call.
async fn ours(generation: ApiGeneration) -> BTreeMap<String, Value> {
    let server = Scripted::start().await;
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
    let mut note = |call: &str, ends_with: &str, script: Option<&str>| {
        let request = server.last(ends_with, script);
        calls.insert(
            call.to_owned(),
            request.unwrap_or_else(|| panic!("no request for {call}")),
        );
    };

    let sandbox = backend.open(cx().durable()).await.unwrap();
    note("create", "/sandboxes", None);
    let handle = sandbox.persist().await.unwrap();

    let request = SpawnRequest::shell("echo hello")
        .with_env("NAME", "value")
        .with_timeout(Duration::from_secs(30));
    assert_eq!(sandbox.run(request).await.unwrap().stdout.text(), "hello\n");
    note("run", "/Start", Some("echo hello"));

    let request = SpawnRequest::shell("cat").with_stdin(Stdin::Piped);
    let mut process = sandbox.spawn(request).await.unwrap();
    note("background", "/Start", Some("cat"));
    let mut stdin = process.take_stdin().unwrap();
    stdin.write(Bytes::from("text")).await.unwrap();
    note("stdin", "/SendInput", None);
    drop(stdin);
    server.wait_for("/CloseStdin").await;
    note("close_stdin", "/CloseStdin", None);
    drop(process);
    server.wait_for("/SendSignal").await;
    note("kill_command", "/SendSignal", None);

    let size = |rows, columns| PtySize { rows, columns };
    let request = SpawnRequest::argv(["bash", "-i"]).with_pty(size(24, 80));
    let mut terminal = sandbox.spawn(request).await.unwrap();
    note("pty", "/Start", Some("-i"));
    let mut stdin = terminal.take_stdin().unwrap();
    stdin.write(Bytes::from("text")).await.unwrap();
    note("pty_stdin", "/SendInput", None);
    terminal.resize(size(40, 120)).await.unwrap();
    note("resize", "/Update", None);
    drop((stdin, terminal));

    sandbox
        .write_bytes(&path("new"), "text".into())
        .await
        .unwrap();
    note("write", "/files", None);
    note("rename", "/Move", None);
    let mut read = sandbox.read(&path("file"), ByteRange::all()).await.unwrap();
    assert_eq!(read.next().await.unwrap().unwrap(), "text");
    drop(read);
    note("read", "/files", None);
    sandbox.stat(&path("file")).await.unwrap();
    note("stat", "/Stat", Some("/home/user/file"));
    sandbox.list(&path(".")).await.unwrap();
    note("list", "/ListDir", None);
    sandbox.mkdir(&path("new")).await.unwrap();
    note("mkdir", "/MakeDir", None);
    sandbox.remove(&path("file")).await.unwrap();
    note("remove", "/Remove", None);
    // The stream of this one breaks, so that the sandbox is looked after.
    let broken = sandbox.run(SpawnRequest::shell("break")).await;
    broken.expect_err("its stream has no end");
    note("health", "/health", None);
    note("listen_again", "/Connect", None);
    // And of this one nothing is heard at all.
    let unheard = sandbox.run(SpawnRequest::shell("unheard")).await;
    unheard.expect_err("it has no beginning");
    server.wait_for("/List").await;
    note("processes", "/List", None);

    server.wait_for("/pause").await;
    note("pause", "/pause", None);
    // Asleep, it is woken by the next use.
    sandbox.stat(&path("file")).await.unwrap();
    note("connect", "/connect", None);
    drop(sandbox);
    let again = backend.reattach(&handle, cx()).await.unwrap();
    again.close().await.unwrap();
    note("kill", "/sandboxes/isandbox", None);
    calls
}

/// What keeps a sandbox alive that nobody uses.
async fn prolonging() -> Value {
    let server = Scripted::start().await;
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

/// Every value of a request, by its path in it.
fn flat(at: &str, value: &Value, all: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                flat(&format!("{at}.{name}"), value, all);
            }
        }
        Value::Array(items) if at.ends_with("envelopes") => {
            for (number, value) in items.iter().enumerate() {
                flat(&format!("{at}.{number}"), value, all);
            }
        }
        value => {
            all.insert(at.trim_start_matches('.').to_owned(), value.clone());
        }
    }
}

fn fields(request: &Value) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    flat("", request, &mut all);
    all.remove("call");
    all
}

async fn compare(sdk: &str, generation: ApiGeneration) {
    let intended: Vec<Value> = serde_json::from_str(include_str!("sdk/differences.json")).unwrap();
    let theirs: Vec<Value> = serde_json::from_str(sdk).unwrap();
    let (mut ours, prolonged) = tokio::join!(ours(generation), prolonging());
    ours.insert("prolong".to_owned(), prolonged);
    let mut unexpected = Vec::new();
    let mut met = BTreeSet::new();
    for request in &theirs {
        let call = request["call"].as_str().unwrap();
        let own = ours
            .get(call)
            .unwrap_or_else(|| panic!("{call} is not tried"));
        let (theirs, ours) = (fields(request), fields(own));
        let names: BTreeSet<&String> = theirs.keys().chain(ours.keys()).collect();
        for name in names {
            if theirs.get(name) == ours.get(name) {
                continue;
            }
            let known = intended.iter().position(|it| {
                let calls = it["calls"].as_array().unwrap();
                it["field"] == **name && calls.iter().any(|known| known == call || known == "*")
            });
            match known {
                Some(at) => {
                    met.insert(at);
                }
                None => unexpected.push(format!(
                    "{call}: {name}: theirs {:?}, ours {:?}",
                    theirs.get(name),
                    ours.get(name)
                )),
            }
        }
    }
    assert!(unexpected.is_empty(), "{}", unexpected.join("\n"));
    let stale: Vec<_> = (0..intended.len())
        .filter(|at| !met.contains(at) && intended[*at]["only"].is_null())
        .map(|at| &intended[at])
        .collect();
    assert!(
        stale.is_empty(),
        "these are no differences any more: {stale:?}"
    );
}

#[tokio::test]
async fn requests_are_those_of_the_second_generations_sdk() {
    compare(include_str!("sdk/python-2.63.0.json"), ApiGeneration::V2).await;
}

#[tokio::test]
async fn requests_are_those_of_the_first_generations_sdk() {
    compare(include_str!("sdk/python-2.45.0.json"), ApiGeneration::V1).await;
}

#[tokio::test]
async fn output_whose_rest_never_came_is_not_taken_for_all() {
    let server = Scripted::start().await;
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
        "the rest of the command's output is lost: the stream ended before its end"
    );
    sandbox.close().await.unwrap();
}
