//! Shutdown, pausing and resuming, and what remains afterwards.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use cantle_backends_local::LocalBackend;
use cantle_server::{Server, ServerLimits};
use http::{Method, StatusCode};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::killed::marked;
use crate::support::{
    DEADLINE, ServerProcess, StreamEvent, TestServer, builder, eventually, sandbox_directories,
    sandbox_ended, serve, serve_in, serve_with, shared_tempdir,
};

/// Set for a child process of this test program that acts as the server; names its directory.
const ROLE: &str = "CANTLE_TEST_SERVER_PLACE";

async fn post(server: &TestServer, id: &str, what: &str, body: Value) -> u16 {
    let path = format!("/sandboxes/{id}/{what}");
    server
        .control(Method::POST, &path, Some(body))
        .await
        .status
        .as_u16()
}

async fn state(server: &TestServer, id: &str) -> String {
    let path = format!("/sandboxes/{id}");
    let answer = server.control(Method::GET, &path, None).await;
    answer.json()["state"].as_str().unwrap_or("none").to_owned()
}

#[tokio::test]
async fn a_stopped_server_leaves_nothing() {
    let server = serve().await;
    let sandbox = server.create_default().await;
    let mut stream = sandbox.start("sleep 300", &[]).await;
    stream.pid().await;
    server.create_default().await;
    let started = Instant::now();
    let directory = server.stop().await;
    assert_eq!(stream.next().await, sandbox_ended());
    assert_eq!(sandbox_directories(&directory), 0);
    // The command alone would take five minutes.
    assert!(started.elapsed() < DEADLINE, "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_dropped_server_drops_its_sandboxes() {
    let server = serve().await;
    let sandbox = server.create_default().await;
    sandbox.start("sleep 300", &[]).await.pid().await;
    let directory = server.abort().await;
    eventually("nothing is left", async || {
        sandbox_directories(&directory) == 0
    })
    .await;
}

#[tokio::test]
async fn a_sandbox_at_its_deadline_is_killed_and_its_streams_are_aborted() {
    let server = serve().await;
    let idle = server
        .create(json!({ "templateID": "base", "timeout": 1 }))
        .await;
    eventually("its time is over", async || {
        state(&server, &idle.id).await == "none"
    })
    .await;
    // Wait until the command has started.
    let sandbox = server.create_default().await;
    let mut stream = sandbox.start("sleep 300", &[]).await;
    stream.pid().await;
    let soon = json!({ "timeout": 1 });
    assert_eq!(post(&server, &sandbox.id, "timeout", soon).await, 204);
    assert_eq!(stream.next().await, sandbox_ended());
    assert_eq!(sandbox.get("/health").await.status, StatusCode::BAD_GATEWAY);
    eventually("nothing is left of it", async || {
        server.sandbox_directories() == 0
    })
    .await;
    assert_eq!(state(&server, &sandbox.id).await, "none");
    server.stop().await;
}

#[tokio::test]
async fn a_paused_sandbox_keeps_its_files_and_resumes() {
    let server = serve().await;
    let sandbox = server
        .create(json!({ "templateID": "base", "envVars": { "A": "b" } }))
        .await;
    sandbox.put("kept", "x").await;
    let mut stream = sandbox.start("sleep 300", &[]).await;
    stream.pid().await;
    assert_eq!(post(&server, &sandbox.id, "pause", json!({})).await, 204);
    assert_eq!(stream.next().await, sandbox_ended());
    assert_eq!(post(&server, &sandbox.id, "pause", json!({})).await, 409);
    assert_eq!(sandbox.get("/health").await.status, StatusCode::BAD_GATEWAY);
    assert_eq!(state(&server, &sandbox.id).await, "paused");
    assert_eq!(
        post(&server, &sandbox.id, "timeout", json!({ "timeout": 5 })).await,
        404
    );
    assert_eq!(post(&server, &sandbox.id, "connect", json!({})).await, 201);
    assert_eq!(post(&server, &sandbox.id, "resume", json!({})).await, 409);
    assert_eq!(sandbox.run("cat kept; echo $A").await.0, "xb\n");
    assert_eq!(sandbox.kill().await, StatusCode::NO_CONTENT);
    assert_eq!(server.sandbox_directories(), 0);
    server.stop().await;
}

#[tokio::test]
async fn a_paused_sandbox_can_be_killed() {
    let server = serve().await;
    let sandbox = server.create_default().await;
    assert_eq!(post(&server, &sandbox.id, "pause", json!({})).await, 204);
    assert_eq!(server.sandbox_directories(), 1);
    assert_eq!(sandbox.kill().await, StatusCode::NO_CONTENT);
    assert_eq!(server.sandbox_directories(), 0);
    server.stop().await;
}

#[tokio::test]
async fn auto_pause_and_auto_resume_work() {
    let server = serve().await;
    let body = json!({
        "templateID": "base", "timeout": 100, "autoPause": true, "autoResume": { "enabled": true }
    });
    let sandbox = server.create(body).await;
    sandbox.put("kept", "x").await;
    // A request after the pause would resume the sandbox.
    let soon = json!({ "timeout": 1 });
    assert_eq!(post(&server, &sandbox.id, "timeout", soon).await, 204);
    eventually("it is paused", async || {
        state(&server, &sandbox.id).await == "paused"
    })
    .await;
    // A health check resumes nothing.
    assert_eq!(sandbox.get("/health").await.status, StatusCode::BAD_GATEWAY);
    assert_eq!(state(&server, &sandbox.id).await, "paused");
    assert_eq!(sandbox.get("/files?path=kept").await.text(), "x");
    assert_eq!(state(&server, &sandbox.id).await, "running");
    server.stop().await;
}

#[tokio::test]
async fn no_default_lifetime_exceeds_the_limit() {
    let mut limits = ServerLimits::default();
    limits.lifetime = Duration::from_secs(10);
    let server = serve_with(|builder| builder.limits(limits)).await;
    let body = json!({ "templateID": "base", "autoResume": { "enabled": true } });
    let sandbox = server.create(body).await;
    let seconds_left = async || {
        let path = format!("/sandboxes/{}", sandbox.id);
        let answer = server.control(Method::GET, &path, None).await.json();
        let end: Timestamp = answer["endAt"].as_str().unwrap().parse().unwrap();
        end.as_second() - Timestamp::now().as_second()
    };
    assert!(seconds_left().await <= 10);
    assert_eq!(post(&server, &sandbox.id, "pause", json!({})).await, 204);
    assert_eq!(post(&server, &sandbox.id, "connect", json!({})).await, 201);
    assert!(seconds_left().await <= 10);
    assert_eq!(post(&server, &sandbox.id, "pause", json!({})).await, 204);
    sandbox.get("/files?path=none").await;
    assert_eq!(state(&server, &sandbox.id).await, "running");
    assert!(seconds_left().await <= 10);
    server.stop().await;
}

#[tokio::test]
async fn a_later_server_resumes_paused_sandboxes() {
    let records = tempfile::tempdir().unwrap();
    let server = serve_with(|builder| builder.state_directory(records.path())).await;
    let body =
        json!({ "templateID": "base", "envVars": { "SECRET": "s" }, "metadata": { "a": "b" } });
    let sandbox = server.create(body).await;
    sandbox.put("kept", "x").await;
    let (id, token) = (sandbox.id.clone(), sandbox.token.clone());
    assert_eq!(post(&server, &id, "pause", json!({})).await, 204);
    let gone = server.create_default().await.id;
    let directory = server.stop().await;
    assert_eq!(sandbox_directories(&directory), 1);

    let server = serve_in(directory, |builder| builder.state_directory(records.path())).await;
    assert_eq!(state(&server, &id).await, "paused");
    assert_eq!(state(&server, &gone).await, "none");
    assert_eq!(post(&server, &id, "connect", json!({})).await, 201);
    let again = crate::support::Sandbox {
        server: &server,
        id,
        token,
    };
    assert_eq!(again.run("cat kept; echo $SECRET").await.0, "xs\n");
    assert_eq!(again.kill().await, StatusCode::NO_CONTENT);
    let directory = server.stop().await;
    assert_eq!(sandbox_directories(&directory), 0);
    let written = std::fs::read_dir(records.path().join("sandboxes"))
        .unwrap()
        .count();
    assert_eq!(written, 0);
}

#[tokio::test]
async fn records_are_private_and_locked_by_one_server() {
    use std::os::unix::fs::PermissionsExt as _;

    let records = tempfile::tempdir().unwrap();
    let server = serve_with(|builder| builder.state_directory(records.path())).await;
    let sandbox = server.create_default().await;
    post(&server, &sandbox.id, "pause", json!({})).await;
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let directory = records.path().join("sandboxes");
    assert_eq!(mode(&directory), 0o700);
    let file = directory.join(format!("{}.json", sandbox.id));
    assert_eq!(mode(&file), 0o600);
    let other = builder(&server.directory).state_directory(records.path());
    let error = other
        .bind("127.0.0.1:0".parse().unwrap())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), cantle_server::ServeErrorKind::State);
    sandbox.kill().await;
    server.stop().await;
}

#[tokio::test]
async fn unreadable_records_are_reported_and_stay() {
    let records = tempfile::tempdir().unwrap();
    let record = records.path().join("sandboxes/i1.json");
    std::fs::create_dir(records.path().join("sandboxes")).unwrap();
    std::fs::write(&record, "{").unwrap();
    let directory = shared_tempdir();
    let server = builder(&directory).state_directory(records.path());
    let server = server.bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let reported: Vec<_> = server.unreadable_records().iter().collect();
    assert!(
        matches!(&*reported, [(path, _)] if *path == record),
        "{reported:?}"
    );
    assert_eq!(server.paused(), None);
    drop(server);
    assert!(record.exists());
}

#[tokio::test]
async fn closing_a_sandbox_ends_every_request() {
    let server = serve().await;
    let sandbox = server.create_default().await;
    let watch = json!({ "path": "" });
    let mut watching = sandbox
        .stream("filesystem.Filesystem/WatchDir", watch, &[])
        .await;
    assert_eq!(
        watching.next().await,
        StreamEvent::Message(json!({ "start": {} }))
    );
    let mut stream = sandbox.start("yes", &[]).await;
    stream.pid().await;
    assert_eq!(sandbox.kill().await, StatusCode::NO_CONTENT);
    assert_eq!(watching.next().await, sandbox_ended());
    while stream.next().await != sandbox_ended() {}
    server.stop().await;
}

/// The child process of the next test; does nothing when run as a test.
#[tokio::test]
async fn server_child_process() {
    let Some(place) = std::env::var_os(ROLE).map(std::path::PathBuf::from) else {
        return;
    };
    let sandboxes = place.join("sandboxes");
    let backend = LocalBackend::new()
        .in_directory(&sandboxes)
        .workspace_at("/home/user");
    let server = Server::builder(backend.clone())
        .state_directory(place.join("state"))
        .bind("127.0.0.1:0".parse().unwrap())
        .await
        .unwrap();
    backend.reclaim(Duration::ZERO).await;
    println!("\nserving {}", server.address());
    server.serve(CancellationToken::new()).await.unwrap();
}

fn start_process(place: &Path) -> ServerProcess {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "life::server_child_process", "--nocapture"]);
    ServerProcess::start(command.env(ROLE, place))
}

#[tokio::test]
async fn a_killed_server_leaves_no_process_and_the_next_one_cleans_up() {
    let place = shared_tempdir();
    let sandboxes = place.path().join("sandboxes");
    std::fs::create_dir(&sandboxes).unwrap();
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(&sandboxes, std::fs::Permissions::from_mode(0o711)).unwrap();
    let killed = start_process(place.path());
    let client = crate::support::client(killed.address);
    let mark = format!("MARK={}", cantle_core::ids::unique_id());
    let (name, value) = mark.split_once('=').unwrap();
    let body = json!({ "templateID": "base", "envVars": { name: value } });
    let (one, paused) = (client.create(body.clone()).await, client.create(body).await);
    paused.put("kept", "x").await;
    let mut stream = one.start("setsid sleep 300 & sleep 300", &[]).await;
    stream.pid().await;
    assert_eq!(post(&client, &paused.id, "pause", json!({})).await, 204);
    eventually("both commands run", async || marked(&mark).len() >= 2).await;
    let (id, token) = (paused.id.clone(), paused.token.clone());
    drop(killed);
    assert_eq!(stream.next().await, StreamEvent::Broken);
    eventually("no process is left", async || marked(&mark).is_empty()).await;

    let next = start_process(place.path());
    let count = || std::fs::read_dir(&sandboxes).unwrap().count();
    assert_eq!(count(), 1);
    let client = crate::support::client(next.address);
    assert_eq!(post(&client, &id, "connect", json!({})).await, 201);
    let again = crate::support::Sandbox {
        server: &client,
        id,
        token,
    };
    assert_eq!(again.get("/files?path=kept").await.text(), "x");
    assert_eq!(again.kill().await, StatusCode::NO_CONTENT);
    assert_eq!(count(), 0);
}

#[tokio::test]
async fn many_sandboxes_leave_no_trace() {
    let server = serve().await;
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    server.create_default().await.kill().await;
    let before = descriptors();
    for _ in 0..10 {
        let made = futures_util::future::join_all((0..8).map(|_| server.create_default())).await;
        let ran = futures_util::future::join_all(made.iter().map(|one| one.run("echo x"))).await;
        assert!(ran.iter().all(|(written, _)| written == "x\n"));
        let killed = futures_util::future::join_all(made.iter().map(|one| one.kill())).await;
        assert!(
            killed
                .iter()
                .all(|status| *status == StatusCode::NO_CONTENT)
        );
    }
    assert_eq!(server.sandbox_directories(), 0);
    // This client's connections close a moment later; other tests have connections of their own.
    eventually("no descriptor is left", async || {
        descriptors() <= before + 200
    })
    .await;
    server.stop().await;
}
