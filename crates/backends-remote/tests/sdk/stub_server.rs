//! A server with minimal responses, which records all requests.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

/// Headers that differ from run to run.
const VOLATILE: [&str; 6] = [
    "accept",
    "accept-encoding",
    "content-length",
    "host",
    "transfer-encoding",
    "user-agent",
];

/// Output of the command `echo hello`.
const HELLO: &[u8] = b"hello\n";

type Requests = Arc<Mutex<Vec<Value>>>;

pub(crate) struct StubServer {
    pub(crate) url: String,
    requests: Requests,
    _tasks: JoinSet<()>,
}

impl StubServer {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests = Requests::default();
        let recorded = Arc::clone(&requests);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let recorded = Arc::clone(&recorded);
                let service = service_fn(move |request| respond_to(request, Arc::clone(&recorded)));
                connections.spawn(async move {
                    let connection = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service);
                    // The client may disconnect at any time.
                    let _ = connection.await;
                });
            }
        });
        Self {
            url,
            requests,
            _tasks: tasks,
        }
    }

    /// Returns the last request to a path with this suffix, for this command or path argument.
    pub(crate) fn last(&self, ends_with: &str, command: Option<&str>) -> Option<Value> {
        let requests = self.requests.lock().unwrap();
        let matches = |request: &&Value| {
            let path = request["path"].as_str().unwrap_or_default();
            let last = &request["body"]["envelopes"][0]["process"]["args"];
            let last = last.as_array().and_then(|args| args.last()?.as_str());
            let about = last.or(request["body"]["json"]["path"].as_str());
            path.ends_with(ends_with) && command.is_none_or(|command| about == Some(command))
        };
        requests.iter().rev().find(matches).cloned()
    }

    pub(crate) async fn wait_for(&self, ends_with: &str) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.last(ends_with, None).is_none() {
            assert!(Instant::now() < deadline, "nothing was sent to {ends_with}");
            sleep(Duration::from_millis(5)).await;
        }
    }
}

async fn respond_to(
    request: Request<Incoming>,
    requests: Requests,
) -> Result<Response<BoxBody<Bytes, Infallible>>, Infallible> {
    let (head, body) = request.into_parts();
    let body = body
        .collect()
        .await
        .map(|body| body.to_bytes())
        .unwrap_or_default();
    let header = |name: &str| {
        let value = head.headers.get(name)?.to_str().ok()?;
        Some(value.split(';').next().unwrap_or_default().to_owned())
    };
    let kind = header("content-type").unwrap_or_default();
    let read = match &*kind {
        "application/connect+json" => json!({ "envelopes": envelopes(&body) }),
        "application/json" if !body.is_empty() => {
            json!({ "json": serde_json::from_slice::<Value>(&body).unwrap() })
        }
        _ if body.is_empty() => json!({}),
        _ => json!({ "text": String::from_utf8_lossy(&body) }),
    };
    let headers: BTreeMap<&str, &str> = head
        .headers
        .iter()
        .filter(|(name, _)| !VOLATILE.contains(&name.as_str()))
        .map(|(name, value)| (name.as_str(), value.to_str().unwrap()))
        .collect();
    let query: BTreeMap<String, String> = head
        .uri
        .query()
        .map(|query| {
            url::form_urlencoded::parse(query.as_bytes())
                .into_owned()
                .collect()
        })
        .unwrap_or_default();
    requests.lock().unwrap().push(json!({
        "method": head.method.as_str(),
        "path": head.uri.path(),
        "query": query,
        "headers": headers,
        "body": read,
    }));
    let (status, kind, body) = respond(head.method.as_str(), head.uri.path(), &read);
    let body = Bytes::from(body);
    let body = if is_endless(&read) {
        let first = stream::iter([Ok(Frame::data(body))]);
        BodyExt::boxed(StreamBody::new(first.chain(stream::pending())))
    } else {
        BodyExt::boxed(Full::new(body))
    };
    let response = Response::builder()
        .status(status)
        .header("content-type", kind)
        .body(body)
        .unwrap();
    Ok(response)
}

fn respond(method: &str, path: &str, read: &Value) -> (u16, &'static str, Vec<u8>) {
    const JSON: &str = "application/json";
    let text = |status, value: Value| (status, JSON, value.to_string().into_bytes());
    let path_argument = &read["json"]["path"];
    let entry =
        |name: &str, kind: &str| json!({ "name": name, "type": kind, "size": "4", "mode": 420 });
    let made = json!({
        "templateID": "base", "sandboxID": "isandbox", "clientID": "client",
        "envdVersion": "0.6.13", "envdAccessToken": "sandbox-token",
    });
    match (method, path) {
        ("POST", "/sandboxes" | "/v2/sandboxes") => text(201, made),
        ("POST", path) if path.contains("sandboxes") && path.ends_with("/connect") => {
            text(200, made)
        }
        ("DELETE", _) => (204, JSON, Vec::new()),
        (_, path) if path.starts_with("/sandboxes") => (204, JSON, Vec::new()),
        (_, "/health") => (204, JSON, Vec::new()),
        (_, path) if path.ends_with("/Start") => (
            200,
            "application/connect+json",
            process(&read["envelopes"][0]),
        ),
        ("GET", "/files") => (200, "application/octet-stream", b"text".to_vec()),
        ("POST", "/files") => text(200, json!([])),
        (_, path) if path.ends_with("/ListDir") => {
            text(200, json!({ "entries": [entry("file", "FILE_TYPE_FILE")] }))
        }
        (_, path) if path.ends_with("/Stat") => match path_argument.as_str().unwrap_or_default() {
            "/home/user" => text(
                200,
                json!({ "entry": entry("user", "FILE_TYPE_DIRECTORY") }),
            ),
            "/home/user/file" => text(200, json!({ "entry": entry("file", "FILE_TYPE_FILE") })),
            _ => text(
                404,
                json!({ "code": "not_found", "message": "file not found" }),
            ),
        },
        _ => text(200, json!({})),
    }
}

/// Returns the events of a process: the probe, a command with its marks, or a helper script, which fails.
fn process(start: &Value) -> Vec<u8> {
    let args: Vec<&str> = start["process"]["args"]
        .as_array()
        .unwrap()
        .iter()
        .map(|arg| arg.as_str().unwrap())
        .collect();
    let (script, token) = (args[2], args.get(4).copied().unwrap_or_default());
    let out = |bytes: &[u8]| {
        use base64::Engine as _;
        let text = base64::engine::general_purpose::STANDARD.encode(bytes);
        json!({ "event": { "data": { "stdout": text } } })
    };
    let err = |bytes: &[u8]| {
        use base64::Engine as _;
        let text = base64::engine::general_purpose::STANDARD.encode(bytes);
        json!({ "event": { "data": { "stderr": text } } })
    };
    let mark = |words: &str| format!("\u{1e}{token}{words}\u{1e}").into_bytes();
    let end = json!({ "event": { "end": { "exited": true, "status": "exit status 0" } } });
    let mut events = vec![json!({ "event": { "start": { "pid": 7 } } })];
    let last = args.last().copied().unwrap_or_default();
    let is_command = script.contains("ulimit");
    match last {
        _ if script.contains("$EUID") => events.extend([out(b"/home/user\n1000\n"), end]),
        "silent" if is_command => return Vec::new(),
        // Its end was received, but not all of its output.
        "half" if is_command => {
            events.extend([out(&mark("S8")), out(b"half"), err(&mark("Ecode 0 5000\n"))]);
            return events.iter().flat_map(|event| enclose(0, event)).collect();
        }
        // The stream of one ends early; the others keep running.
        "cat" | "-i" | "break" if is_command => {
            events.push(out(&mark("S8")));
            return events.iter().flat_map(|event| enclose(0, event)).collect();
        }
        _ if is_command => events.extend([
            out(&mark("S8")),
            out(HELLO),
            out(&mark("E")),
            err(&mark("Ecode 0 5000\n")),
            end,
        ]),
        _ => events.push(json!({ "event": { "end": {
            "exitCode": 1, "exited": true, "status": "exit status 1" } } })),
    }
    let mut all: Vec<u8> = events.iter().flat_map(|event| enclose(0, event)).collect();
    all.extend(enclose(2, &json!({})));
    all
}

/// Returns whether the response is endless, because the command keeps running.
fn is_endless(read: &Value) -> bool {
    let args = read["envelopes"][0]["process"]["args"].as_array();
    let last = args.and_then(|args| args.last()?.as_str());
    matches!(last, Some("cat" | "-i"))
}

fn enclose(flags: u8, message: &Value) -> Vec<u8> {
    let message = message.to_string().into_bytes();
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[flags], &length[..], &message].concat()
}

fn envelopes(mut body: &[u8]) -> Vec<Value> {
    let mut messages = Vec::new();
    while body.len() >= 5 {
        let length = u32::from_be_bytes([body[1], body[2], body[3], body[4]]) as usize;
        messages.push(serde_json::from_slice(&body[5..5 + length]).unwrap());
        body = &body[5 + length..];
    }
    messages
}
