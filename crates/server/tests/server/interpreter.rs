//! The code interpreter: executions, contexts, bounds and access.

use cantle_backends_local::LocalBackend;
use cantle_python::Interpreter;
use cantle_server::ServerLimits;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::support::{DEADLINE, Sandbox, TestResponse, TestServer, eventually, serve, serve_with};

pub(crate) async fn serve_code() -> TestServer {
    let interpreter = Interpreter::new(LocalBackend::new());
    serve_with(|builder| builder.interpreter(interpreter)).await
}

async fn open(server: &TestServer) -> Sandbox<'_> {
    server
        .create(json!({ "templateID": "code-interpreter-v1" }))
        .await
}

/// A request to the code interpreter, without a token.
fn request(
    sandbox: &Sandbox<'_>,
    method: Method,
    path: &str,
    body: Option<Value>,
) -> Request<Full<Bytes>> {
    let body = body.map(|body| body.to_string()).unwrap_or_default();
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", sandbox.server.address.to_string())
        .header("e2b-sandbox-id", &sandbox.id)
        .header("e2b-sandbox-port", "49999");
    request.body(Full::from(body)).unwrap()
}

async fn ask(
    sandbox: &Sandbox<'_>,
    method: Method,
    path: &str,
    body: Option<Value>,
) -> TestResponse {
    let mut request = request(sandbox, method, path, body);
    let token = sandbox.token.parse().unwrap();
    request.headers_mut().insert("x-access-token", token);
    sandbox.server.ask(request).await
}

async fn post(sandbox: &Sandbox<'_>, path: &str, body: Value) -> TestResponse {
    ask(sandbox, Method::POST, path, Some(body)).await
}

/// The events of an execution, without the times.
fn events(response: &TestResponse) -> Vec<Value> {
    assert_eq!(response.status, StatusCode::OK, "{response:?}");
    let text = response.text();
    let mut events: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    for event in &mut events {
        let time = event.as_object_mut().unwrap().remove("timestamp");
        assert!(time.is_none_or(|time| time.as_u64().unwrap() > 1_700_000_000_000_000_000));
    }
    events
}

async fn execute(sandbox: &Sandbox<'_>, body: Value) -> Vec<Value> {
    events(&post(sandbox, "/execute", body).await)
}

/// The text of all events of a kind.
async fn texts(sandbox: &Sandbox<'_>, kind: &str, body: Value) -> String {
    let events = execute(sandbox, body).await;
    let chosen = events.iter().filter(|event| event["type"] == kind);
    let texts: Vec<_> = chosen
        .map(|event| event["text"].as_str().or(event["name"].as_str()).unwrap())
        .collect();
    assert!(!texts.is_empty(), "{events:?}");
    texts.concat()
}

async fn create_context(sandbox: &Sandbox<'_>, options: Value) -> String {
    let created = post(sandbox, "/contexts", options).await;
    assert_eq!(created.status, StatusCode::CREATED, "{created:?}");
    created.json()["id"].as_str().unwrap().to_owned()
}

/// Starts code and reads the response up to its first event.
async fn start(sandbox: &Sandbox<'_>, body: Value) -> Incoming {
    let mut request = request(sandbox, Method::POST, "/execute", Some(body));
    let token = sandbox.token.parse().unwrap();
    request.headers_mut().insert("x-access-token", token);
    let response = sandbox.server.send(request).await;
    assert_eq!(response.status(), StatusCode::OK);
    let mut body = response.into_body();
    let first = timeout(DEADLINE, body.frame()).await.unwrap();
    first.unwrap().unwrap();
    body
}

#[tokio::test]
async fn python_keeps_its_variables() {
    let server = serve_code().await;
    let sandbox = open(&server).await;
    let first = execute(&sandbox, json!({ "code": "x = 20\nprint('é')\nx + 1" })).await;
    let count = |number: u64| json!({ "type": "number_of_executions", "execution_count": number });
    let end = json!({ "type": "end_of_execution" });
    let result = |text: &str| json!({ "type": "result", "text": text, "is_main_result": true });
    let printed = json!({ "type": "stdout", "text": "é\n" });
    assert_eq!(first, [count(1), printed, result("21"), end.clone()]);
    let named = json!({ "code": "x", "language": "Python", "context_id": null, "env_vars": null });
    assert_eq!(
        execute(&sandbox, named).await,
        [count(2), result("20"), end.clone()]
    );
    let raised = execute(&sandbox, json!({ "code": "1 / 0" })).await;
    let traceback = raised[1]["traceback"].as_str().unwrap();
    assert!(traceback.starts_with("Traceback"), "{traceback}");
    assert_eq!(
        (&raised[1]["name"], &raised[1]["value"], &raised[2]),
        (
            &json!("ZeroDivisionError"),
            &json!("division by zero"),
            &end
        )
    );
    server.stop().await;
}

#[tokio::test]
async fn contexts_are_separate_and_can_be_restarted() {
    let server = serve_code().await;
    let sandbox = open(&server).await;
    let other = create_context(&sandbox, json!({ "cwd": "/tmp" })).await;
    let code = |code: &str| json!({ "code": code });
    let in_other = |code: &str| json!({ "code": code, "context_id": other });
    execute(&sandbox, code("x = 1")).await;
    execute(&sandbox, in_other("x = 2; import os")).await;
    assert_eq!(texts(&sandbox, "result", code("x")).await, "1");
    assert_eq!(texts(&sandbox, "result", in_other("x")).await, "2");
    let directory = texts(&sandbox, "result", in_other("os.getcwd()")).await;
    assert_eq!(directory, "/tmp");

    let listed = ask(&sandbox, Method::GET, "/contexts", None).await.json();
    let new = json!({ "id": other, "language": "python", "cwd": "/tmp" });
    let default = json!({ "id": "python", "language": "python", "cwd": "/home/user" });
    let listed = listed.as_array().unwrap();
    assert!(
        listed.contains(&new) && listed.contains(&default),
        "{listed:?}"
    );
    assert_eq!(listed.len(), 4);

    let restart = format!("/contexts/{other}/restart");
    assert!(
        post(&sandbox, &restart, json!({}))
            .await
            .status
            .is_success()
    );
    let restarted = execute(&sandbox, in_other("x")).await;
    assert_eq!(restarted[0]["execution_count"], 1);
    assert_eq!(restarted[1]["name"], "NameError");
    assert_eq!(texts(&sandbox, "result", code("x")).await, "1");

    let path = format!("/contexts/{other}");
    let removed = ask(&sandbox, Method::DELETE, &path, None).await;
    assert!(removed.status.is_success());
    let gone = post(&sandbox, "/execute", in_other("x")).await;
    assert_eq!(gone.status, StatusCode::NOT_FOUND);
    server.stop().await;
}

#[tokio::test]
async fn restart_interrupts_the_code_that_runs() {
    let server = serve_code().await;
    let sandbox = open(&server).await;
    let body = start(&sandbox, json!({ "code": "import time\ntime.sleep(1000)" })).await;
    let restarted = post(&sandbox, "/contexts/python/restart", json!({})).await;
    assert!(restarted.status.is_success(), "{restarted:?}");
    let rest = timeout(DEADLINE, body.collect()).await.unwrap().unwrap();
    let rest = String::from_utf8(rest.to_bytes().to_vec()).unwrap();
    assert!(rest.contains("KeyboardInterrupt"), "{rest}");
    assert_eq!(texts(&sandbox, "result", json!({ "code": "1" })).await, "1");
    server.stop().await;
}

#[tokio::test]
async fn restart_is_completed_although_the_client_has_disconnected() {
    let server = serve_code().await;
    let sandbox = open(&server).await;
    let code = "import time\nopen('started', 'w').close()\nwhile True:\n  try:\n    time.sleep(1000)\n  \
                except KeyboardInterrupt:\n    open('interrupted', 'w').close()";
    let _running = start(&sandbox, json!({ "code": code })).await;
    let exists = async |name: &str| {
        let path = format!("/files?path={name}");
        sandbox.get(&path).await.status == StatusCode::OK
    };
    eventually("the code runs", async || exists("started").await).await;
    let mut restart = request(&sandbox, Method::POST, "/contexts/python/restart", None);
    let token = sandbox.token.parse().unwrap();
    restart.headers_mut().insert("x-access-token", token);
    tokio::select! {
        _ = server.send(restart) => panic!("the restart waits for the code"),
        () = eventually("the code is interrupted", async || exists("interrupted").await) => {}
    }
    // After the code, which ignores the interrupt, has been killed.
    eventually("the context can be used again", async || {
        let events = execute(&sandbox, json!({ "code": "1" })).await;
        events.iter().any(|event| event["type"] == "result")
    })
    .await;
    server.stop().await;
}

#[tokio::test]
async fn bash_and_javascript_are_processes() {
    let server = serve_code().await;
    let sandbox = open(&server).await;
    let bash = |code: &str| json!({ "code": code, "language": "bash", "env_vars": { "ONE": "1" } });
    let code = "echo $ONE; cat; cd /; pwd; false\necho last >&2; exit 3";
    let events = execute(&sandbox, bash(code)).await;
    let text = |kind: &str| -> String {
        let chosen = events.iter().filter(|event| event["type"] == kind);
        chosen
            .map(|event| event["text"].as_str().unwrap())
            .collect()
    };
    assert_eq!(
        (text("stdout"), text("stderr")),
        ("1\n/\n".into(), "last\n".into())
    );
    let error = events
        .iter()
        .find(|event| event["type"] == "error")
        .unwrap();
    assert_eq!(error["name"], "ProcessFailed");
    assert_eq!(texts(&sandbox, "stdout", bash("pwd")).await, "/home/user\n");
    let latin = bash("printf 'caf\\xe9'");
    assert_eq!(texts(&sandbox, "stdout", latin).await, "caf\u{fffd}");
    let long = format!("x={}; echo ${{#x}}", "y".repeat(1 << 20));
    assert_eq!(texts(&sandbox, "stdout", bash(&long)).await, "1048576\n");

    let (found, _) = sandbox.run("command -v node || true").await;
    let script = json!({ "code": "console.log(6 * 7)", "language": "JS" });
    let events = execute(&sandbox, script).await;
    let expected = if found.is_empty() { "stderr" } else { "stdout" };
    assert_eq!(events[1]["type"], expected, "{events:?}");
    if !found.is_empty() {
        assert_eq!(events[1]["text"], "42\n");
    }
    server.stop().await;
}

#[tokio::test]
async fn variables_of_an_execution_end_with_it() {
    let server = serve_code().await;
    let body = json!({ "templateID": "code-interpreter-v1", "envVars": { "TWO": "2" } });
    let sandbox = server.create(body).await;
    let code = "import os\n(os.environ.get('ONE'), os.environ['TWO'])";
    let with = json!({ "code": code, "env_vars": { "ONE": "1", "TWO": "3" } });
    assert_eq!(texts(&sandbox, "result", with).await, "('1', '3')");
    let without = json!({ "code": code });
    assert_eq!(texts(&sandbox, "result", without).await, "(None, '2')");
    let invalid = json!({ "code": "1", "env_vars": { "A\u{0}B": "1" } });
    assert_eq!(texts(&sandbox, "error", invalid).await, "ValueError");
    server.stop().await;
}

#[tokio::test]
async fn bad_requests_are_refused() {
    let server = serve_code().await;
    let sandbox = open(&server).await;
    for (path, body, status) in [
        ("/execute", json!({}), 400),
        ("/execute", json!({ "code": 1 }), 400),
        ("/execute", json!({ "code": "1", "language": "r" }), 400),
        (
            "/execute",
            json!({ "code": "1", "language": "python", "context_id": "python" }),
            400,
        ),
        (
            "/execute",
            json!({ "code": "1", "context_id": "none" }),
            404,
        ),
        ("/contexts", json!({ "language": "java" }), 400),
        ("/contexts", json!({ "cwd": "x".repeat(5000) }), 400),
        ("/contexts/none/restart", json!({}), 404),
        ("/other", json!({}), 404),
        ("/execute", json!({ "code": "x".repeat(9 << 20) }), 413),
    ] {
        let answer = post(&sandbox, path, body).await;
        assert_eq!(answer.status.as_u16(), status, "{path}: {answer:?}");
        assert!(!answer.json()["message"].as_str().unwrap().is_empty());
    }
    let mut broken = request(&sandbox, Method::POST, "/execute", None);
    *broken.body_mut() = Full::from(&b"{\"code\": \"\xff\"}"[..]);
    let token = sandbox.token.parse().unwrap();
    broken.headers_mut().insert("x-access-token", token);
    assert_eq!(server.ask(broken).await.status, StatusCode::BAD_REQUEST);
    let missing = create_context(&sandbox, json!({ "cwd": "/no/such/directory" })).await;
    let code = json!({ "code": "1", "context_id": missing });
    assert_eq!(
        texts(&sandbox, "error", code).await,
        "InterpreterNotStarted"
    );
    server.stop().await;
}

#[tokio::test]
async fn only_the_token_of_the_sandbox_opens_its_interpreter() {
    let server = serve_code().await;
    let (sandbox, other) = (open(&server).await, open(&server).await);
    let status = async |name: Option<&str>, token: &str, path: &str, port: &str| {
        let mut request = request(&sandbox, Method::GET, path, None);
        let headers = request.headers_mut();
        headers.insert("e2b-sandbox-port", port.parse().unwrap());
        if let Some(name) = name {
            let name: http::HeaderName = name.parse().unwrap();
            headers.insert(name, token.parse().unwrap());
        }
        server.ask(request).await.status.as_u16()
    };
    let (access, traffic) = (Some("x-access-token"), Some("e2b-traffic-access-token"));
    let traffic_tokens = [&sandbox, &other].map(|one| crate::ports::traffic_token(&server, one));
    let [own_traffic, other_traffic] = futures_util::future::join_all(traffic_tokens)
        .await
        .try_into()
        .unwrap();
    assert_eq!(status(None, "", "/contexts", "49999").await, 401);
    assert_eq!(status(None, "", "/health", "49999").await, 200);
    for (header, own, foreign) in [
        (access, &sandbox.token, &other.token),
        (traffic, &own_traffic, &other_traffic),
        (traffic, &own_traffic, &sandbox.token),
    ] {
        assert_eq!(status(header, foreign, "/contexts", "49999").await, 401);
        assert_eq!(status(header, own, "/contexts", "49999").await, 200);
    }
    assert_eq!(status(traffic, &own_traffic, "/envs", "49983").await, 401);
    let executed = request(
        &sandbox,
        Method::POST,
        "/execute",
        Some(json!({ "code": "1" })),
    );
    assert_eq!(server.ask(executed).await.status.as_u16(), 401);
    server.stop().await;
}

#[tokio::test]
async fn server_without_an_interpreter_has_a_closed_port() {
    let server = serve().await;
    let sandbox = server.create_default().await;
    let answer = post(&sandbox, "/execute", json!({ "code": "1" })).await;
    assert_eq!(answer.status, StatusCode::BAD_GATEWAY);
    assert_eq!(answer.json()["port"], 49999);
    server.stop().await;
}

#[tokio::test]
async fn contexts_and_executions_are_limited() {
    let server = serve_code().await;
    let sandbox = open(&server).await;
    for _ in 0..29 {
        create_context(&sandbox, json!({ "language": "bash" })).await;
    }
    let refused = post(&sandbox, "/contexts", json!({})).await;
    assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);

    let mut running = Vec::new();
    for _ in 0..32 {
        let body = json!({ "code": "echo $$; exec sleep 1000", "language": "bash" });
        running.push(start(&sandbox, body).await);
    }
    let refused = post(&sandbox, "/execute", json!({ "code": "1" })).await;
    assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
    drop(running);
    eventually("disconnected clients free their places", async || {
        let answer = post(&sandbox, "/execute", json!({ "code": "1" })).await;
        answer.status == StatusCode::OK
    })
    .await;
    server.stop().await;
}

#[tokio::test]
async fn waiting_executions_end_with_their_clients() {
    let server = serve_code().await;
    let sandbox = open(&server).await;
    let running = json!({ "code": "import time\ntime.sleep(1000)" });
    let _running = start(&sandbox, running).await;
    let mut waiting = Vec::new();
    for _ in 1..32 {
        waiting.push(start(&sandbox, json!({ "code": "1" })).await);
    }
    drop(waiting);
    let bash = json!({ "code": "true", "language": "bash" });
    eventually("they free their places", async || {
        let answer = post(&sandbox, "/execute", bash.clone()).await;
        answer.status == StatusCode::OK
    })
    .await;
    server.stop().await;
}

#[tokio::test]
async fn disconnected_client_interrupts_its_code_and_keeps_the_variables() {
    let server = serve_code().await;
    let sandbox = open(&server).await;
    let code = "import time\nkept = 1\ntry:\n  print('started', flush=True)\n  time.sleep(1000)\n\
                except KeyboardInterrupt:\n  open('interrupted', 'w').close()";
    let mut body = start(&sandbox, json!({ "code": code })).await;
    let started = timeout(DEADLINE, body.frame()).await.unwrap();
    let started = started.unwrap().unwrap().into_data().unwrap();
    assert!(String::from_utf8_lossy(&started).contains("started"));
    drop(body);
    eventually("the code is interrupted", async || {
        sandbox.get("/files?path=interrupted").await.status == StatusCode::OK
    })
    .await;
    let kept = texts(&sandbox, "result", json!({ "code": "kept" })).await;
    assert_eq!(kept, "1");
    server.stop().await;
}

#[tokio::test]
async fn killed_sandbox_breaks_its_executions_off() {
    let server = serve_code().await;
    let sandbox = open(&server).await;
    let body = start(&sandbox, json!({ "code": "import time\ntime.sleep(1000)" })).await;
    assert_eq!(sandbox.kill().await, StatusCode::NO_CONTENT);
    let rest = timeout(DEADLINE, body.collect()).await.unwrap();
    assert!(rest.is_err(), "the response is not complete");
    let next = post(&sandbox, "/execute", json!({ "code": "1" })).await;
    assert_eq!(next.status, StatusCode::BAD_GATEWAY);
    let directory = server.stop().await;
    assert_eq!(crate::support::sandbox_directories(&directory), 0);
}

#[tokio::test]
async fn paused_sandbox_loses_its_variables() {
    let server = serve_code().await;
    let sandbox = open(&server).await;
    execute(&sandbox, json!({ "code": "x = 1" })).await;
    let path = format!("/sandboxes/{}", sandbox.id);
    let pause = format!("{path}/pause");
    let paused = server.control(Method::POST, &pause, None).await;
    assert_eq!(paused.status, StatusCode::NO_CONTENT, "{paused:?}");
    let connect = format!("/v2{path}/connect");
    let resumed = server
        .control(Method::POST, &connect, Some(json!({})))
        .await;
    assert!(resumed.status.is_success(), "{resumed:?}");
    let code = json!({ "code": "x" });
    for is_first in [true, false] {
        let events = execute(&sandbox, code.clone()).await;
        let notes = events.iter().filter(|event| event["type"] == "stderr");
        let notes: Vec<_> = notes.map(|event| event["text"].as_str().unwrap()).collect();
        let is_explained = notes.concat().contains("The sandbox was paused");
        assert_eq!(is_explained, is_first, "{events:?}");
        let error = events.iter().find(|event| event["type"] == "error");
        assert_eq!(error.unwrap()["name"], "NameError");
    }
    server.stop().await;
}

#[tokio::test]
async fn output_beyond_the_memory_of_a_sandbox_ends_the_code() {
    let mut limits = ServerLimits::default();
    limits.memory_bytes_per_sandbox = 4 << 20;
    let interpreter = Interpreter::new(LocalBackend::new());
    let server = serve_with(|builder| builder.interpreter(interpreter).limits(limits)).await;
    let sandbox = open(&server).await;
    let code = json!({ "code": "'x' * 900_000" });
    assert_eq!(texts(&sandbox, "result", code).await.len(), 900_000);
    let large =
        json!({ "code": "class Large:\n  _repr_html_ = lambda self: 'x' * 7_000_000\nLarge()" });
    assert_eq!(texts(&sandbox, "error", large).await, "InterpreterEnded");
    let next = texts(&sandbox, "result", json!({ "code": "1" })).await;
    assert_eq!(next, "1");
    server.stop().await;
}
