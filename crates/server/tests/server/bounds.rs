//! Bounds on what clients use: memory, connections, descriptors.

use std::convert::Infallible;
use std::process::Command;

use bytes::Bytes;
use cantle_backends_local::LocalBackend;
use cantle_core::policy::Policy;
use cantle_server::{Server, ServerLimits};
use cantle_testkit::lane;
use futures_util::{StreamExt as _, stream};
use http::{Method, Request, StatusCode};
use http_body_util::{Full, StreamBody};
use hyper::body::Frame;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::support::{
    DEADLINE, Sandbox, ServerProcess, StreamEvent, TestResponse, client, sandbox_directories,
    serve, serve_with, shared_tempdir,
};

/// A form that begins with `start` and never ends.
async fn endless_form(sandbox: &Sandbox<'_>, start: &'static str) -> TestResponse {
    let first = stream::iter([Bytes::from(start)]);
    let more = stream::iter((0..4096).map(|_| Bytes::from(vec![b'x'; 64 * 1024])));
    let pieces = first.chain(more).chain(stream::pending());
    let request = sandbox
        .request(Method::POST, "/files")
        .header("content-type", "multipart/form-data; boundary=b")
        .body(StreamBody::new(
            pieces.map(|piece| Ok::<_, Infallible>(Frame::data(piece))),
        ))
        .unwrap();
    sandbox.server.send_streamed(request).await
}

#[tokio::test]
async fn a_form_without_data_is_refused_early() {
    let server = serve().await;
    let sandbox = server.create_default().await;
    for start in [
        "",
        "--b\r\nX-Header: ",
        "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"",
    ] {
        let answer = endless_form(&sandbox, start).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{start}");
        assert!(answer.text().contains("65536"), "{}", answer.text());
    }
    server.stop().await;
}

#[tokio::test]
async fn an_upload_over_the_limit_is_answered_after_the_whole_body() {
    let mut policy = Policy::workspace();
    policy.limits.file_size_bytes = Some(1 << 20);
    let server = serve_with(|builder| builder.policy(policy)).await;
    let sandbox = server.create_default().await;
    sandbox.put("file", "x").await;
    // A client that reads nothing until it has sent everything.
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let size = 64 << 20;
    let head = format!(
        "POST /files?path=file HTTP/1.1\r\nhost: {}\r\ne2b-sandbox-id: {}\r\ne2b-sandbox-port: 49983\r\n\
         x-access-token: {}\r\ncontent-type: application/octet-stream\r\ncontent-length: {size}\r\n\r\n",
        server.address, sandbox.id, sandbox.token
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    for _ in 0..size >> 20 {
        let sent = timeout(DEADLINE, stream.write_all(&[0; 1 << 20])).await;
        sent.expect("the server reads on").unwrap();
    }
    let mut answer = [0; 12];
    let read = timeout(DEADLINE, stream.read_exact(&mut answer)).await;
    read.expect("an answer").unwrap();
    assert_eq!(&answer, b"HTTP/1.1 507");
    server.stop().await;
}

#[tokio::test]
async fn the_memory_for_one_sandbox_is_limited() {
    let mut limits = ServerLimits::default();
    limits.memory_bytes_per_sandbox = 1 << 20;
    let server = serve_with(|builder| builder.limits(limits)).await;
    let (sandbox, other) = (server.create_default().await, server.create_default().await);
    sandbox
        .run("mkdir many; cd many; seq 4000 | xargs touch")
        .await;
    let watch = json!({ "path": "many" });
    let create = async |watch: &Value| {
        let call = sandbox.call("filesystem.Filesystem/CreateWatcher", watch.clone());
        call.await
    };
    let mut watchers = Vec::new();
    let refused = loop {
        let answer = create(&watch).await;
        if answer.status != StatusCode::OK {
            break answer;
        }
        watchers.push(answer.json());
    };
    assert_eq!(refused.json()["code"], "resource_exhausted");
    assert!((1..4).contains(&watchers.len()), "{}", watchers.len());
    let large = json!({ "process": { "cmd": "/bin/true", "args": ["x".repeat(200_000)] } });
    let mut stream = sandbox
        .stream("process.Process/Start", large.clone(), &[])
        .await;
    let StreamEvent::End(end) = stream.next().await else {
        panic!("the command starts");
    };
    assert_eq!(end["error"]["code"], "resource_exhausted");
    // Another sandbox has its own budget.
    assert_eq!(other.run("true").await.1["exited"], true);
    for watcher in watchers {
        let call = "filesystem.Filesystem/RemoveWatcher";
        assert_eq!(sandbox.call(call, watcher).await.status, StatusCode::OK);
    }
    assert_eq!(create(&watch).await.status, StatusCode::OK);
    server.stop().await;
}

#[tokio::test]
async fn a_refusal_does_not_repeat_a_long_request() {
    let server = serve().await;
    let sandbox = server.create_default().await;
    let long = "\u{1}".repeat(100_000);
    let mut refusals = Vec::new();
    for message in [
        json!({ "process": { "tag": long }, "signal": 9 }),
        json!({ "process": { "pid": long }, "signal": 9 }),
    ] {
        let call = sandbox.call("process.Process/SendSignal", message);
        refusals.push(call.await);
    }
    let body = Some(json!({ "templateID": long }));
    refusals.push(server.control(Method::POST, "/v2/sandboxes", body).await);
    for refused in refusals {
        assert!(refused.status.is_client_error(), "{}", refused.status);
        assert!(refused.body.len() < 60_000, "{}", refused.body.len());
    }
    server.stop().await;
}

#[tokio::test]
async fn the_head_of_a_request_is_limited() {
    let server = serve().await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let head = format!(
        "GET /health HTTP/1.1\r\nconnection: close\r\nx: {}\r\n\r\n",
        "x".repeat(200_000)
    );
    // Both fail if the server has closed the connection already.
    let _ = stream.write_all(head.as_bytes()).await;
    let mut answer = Vec::new();
    let read = timeout(DEADLINE, stream.read_to_end(&mut answer)).await;
    let _ = read.expect("the server closes the connection");
    let answer = String::from_utf8_lossy(&answer);
    assert!(!answer.contains(" 204 "), "{answer}");
    server.stop().await;
}

#[tokio::test]
async fn one_key_leaves_connections_to_the_others() {
    let mut limits = ServerLimits::default();
    // Four are for unauthenticated clients; of the others, each key has three reserved.
    limits.connections = 16;
    let server =
        serve_with(|builder| builder.limits(limits).key(&"a".into()).key(&"b".into())).await;
    let created = async |key: &str| {
        let body = Some(json!({ "templateID": "base" }));
        let made = server
            .control_as(key, Method::POST, "/v2/sandboxes", body)
            .await;
        assert_eq!(made.status, StatusCode::CREATED, "{made:?}");
        let made = made.json();
        Sandbox {
            server: &server,
            id: made["sandboxID"].as_str().unwrap().to_owned(),
            token: made["envdAccessToken"].as_str().unwrap().to_owned(),
        }
    };
    let sandbox = created("a").await;
    let mut streams = Vec::new();
    for _ in 0..9 {
        let mut stream = sandbox.start("sleep 300", &[]).await;
        stream.pid().await;
        streams.push(stream);
    }
    // One request waits for a place, and further ones are refused.
    let list = || {
        let request = Request::get("/v2/sandboxes").header("x-api-key", "a");
        server.ask(request.body(Full::default()).unwrap())
    };
    let waiting = async {
        let answers = futures_util::future::join3(list(), list(), list());
        let (one, two, three) = answers.await;
        let mut all = [one.status, two.status, three.status].map(|status| status.as_u16());
        all.sort_unstable();
        all
    };
    let others = async {
        let sandbox = created("b").await;
        assert_eq!(sandbox.run("echo in").await.0, "in\n");
        streams.clear();
    };
    let (all, ()) = futures_util::future::join(waiting, others).await;
    assert_eq!(all[0], 200);
    assert_eq!(all[2], 429);
    server.stop().await;
}

/// Set for a child process of this test program that acts as the server; names its directory.
const ROLE: &str = "CANTLE_TEST_SERVER_BOUNDS";

/// The maximum of sandboxes of that server.
const MANY: usize = 2000;

/// The child process of the next tests; does nothing when run as a test.
#[tokio::test]
async fn bounds_child_process() {
    let Some(place) = std::env::var_os(ROLE).map(std::path::PathBuf::from) else {
        return;
    };
    let backend = LocalBackend::new()
        .in_directory(&place)
        .workspace_at("/home/user");
    let mut limits = ServerLimits::default();
    limits.sandboxes = MANY;
    limits.sandboxes_per_key = MANY;
    let server = Server::builder(backend).limits(limits);
    let server = server.bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    println!("\nserving {}", server.address());
    server.serve(CancellationToken::new()).await.unwrap();
}

/// Starts a server that may open `files` files (an argument of `ulimit -n`).
fn start_limited(place: &tempfile::TempDir, files: &str) -> ServerProcess {
    let test = "bounds::bounds_child_process";
    let line = format!("ulimit -n {files}; exec \"$0\" --exact {test} --nocapture");
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new("/bin/sh");
    command.arg("-c").arg(line).arg(program);
    ServerProcess::start(command.env(ROLE, place.path()))
}

#[tokio::test]
async fn sandboxes_and_commands_are_refused_before_descriptors_run_out() {
    let place = shared_tempdir();
    let limited = start_limited(&place, "256");
    let server = &client(limited.address);
    let mut sandboxes = Vec::new();
    let before = limited.descriptors();
    let refused = loop {
        let body = Some(json!({ "templateID": "base" }));
        let made = server.control(Method::POST, "/v2/sandboxes", body).await;
        if made.status != StatusCode::CREATED {
            break made;
        }
        let made = made.json();
        sandboxes.push(Sandbox {
            server,
            id: made["sandboxID"].as_str().unwrap().to_owned(),
            token: made["envdAccessToken"].as_str().unwrap().to_owned(),
        });
        if sandboxes.len() == 10 {
            let each = (limited.descriptors() - before).div_ceil(10);
            assert!(
                each <= 6,
                "{each} descriptors for each sandbox and connection"
            );
        }
    };
    assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused.json()["error_code"], "sandbox_capacity_unavailable");
    assert!(sandboxes.len() > 10, "{}", sandboxes.len());
    // What there is keeps working.
    let last = sandboxes.pop().unwrap();
    assert_eq!(last.kill().await, StatusCode::NO_CONTENT);
    for sandbox in &sandboxes {
        assert_eq!(sandbox.run("echo in").await.0, "in\n");
    }
    let before = limited.descriptors();
    let mut stream = sandboxes[0].start("sleep 300", &[]).await;
    stream.pid().await;
    let each = limited.descriptors() - before;
    assert!(
        each <= 5,
        "{each} descriptors for a command and its connection"
    );
}

#[tokio::test]
async fn a_server_with_few_descriptors_refuses_sandboxes_before_it_fails() {
    for (files, least) in [("32", 0), ("40", 0), ("64", 1)] {
        let place = shared_tempdir();
        let limited = start_limited(&place, files);
        let server = &client(limited.address);
        let mut created = 0;
        let refused = loop {
            let body = Some(json!({ "templateID": "base" }));
            let made = server.control(Method::POST, "/v2/sandboxes", body).await;
            if made.status != StatusCode::CREATED {
                break made;
            }
            created += 1;
        };
        assert!(created >= least, "{created} sandboxes with {files} files");
        let status = refused.status;
        assert_eq!(status, StatusCode::TOO_MANY_REQUESTS, "{refused:?}");
    }
}

#[tokio::test]
async fn nothing_fails_below_the_maximum_of_sandboxes() {
    const AT_ONCE: usize = 16;
    let many = lane::choose("most of 2,000 sandboxes", 60, MANY);
    let place = shared_tempdir();
    let limited = start_limited(&place, "$(ulimit -Hn)");
    let server = &client(limited.address);
    let before = limited.descriptors();
    // Several users of one key, each with a sandbox after another.
    let sandboxes: Vec<_> = stream::iter(0..many)
        .map(|_| server.create_default())
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    if many == MANY {
        let body = Some(json!({ "templateID": "base" }));
        let refused = server.control(Method::POST, "/v2/sandboxes", body).await;
        assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
    }
    let ran: Vec<_> = stream::iter(&sandboxes)
        .map(|sandbox| sandbox.run("echo $((6 * 7)) > file; cat file"))
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    for (output, end) in ran {
        assert_eq!(
            (&*output, &end["exitCode"]),
            ("42\n", &Value::Null),
            "{end}"
        );
    }
    let killed: Vec<_> = stream::iter(&sandboxes)
        .map(Sandbox::kill)
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    assert_eq!(killed, vec![StatusCode::NO_CONTENT; many]);
    let deadline = std::time::Instant::now() + DEADLINE;
    while limited.descriptors() > before + 8 || sandbox_directories(&place) > 0 {
        assert!(std::time::Instant::now() < deadline, "everything is closed");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}
