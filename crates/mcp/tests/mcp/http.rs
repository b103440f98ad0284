//! Servers over streamable HTTP.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::to_bytes;
use axum::extract::Request;
use axum::http::{Method, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse as _, Response};
use cantle_core::ids::RunId;
use cantle_core::tool::{OpenContext, ToolProvider as _};
use cantle_mcp::McpServer;
use rmcp::transport::streamable_http_server::SessionManager as _;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::server::TestServer;
use super::{call, open, refused};

/// A server that demands a token.
struct HttpServer {
    url: String,
    sessions: Arc<LocalSessionManager>,
    is_down: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn respond(is_down: bool, request: Request, next: Next) -> Response {
    if is_down {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    if let Some(target) = request.uri().path().strip_prefix("/moved/") {
        let target = match target {
            "" => "/mcp",
            _ => "http://localhost:1/mcp",
        };
        return (StatusCode::TEMPORARY_REDIRECT, [("location", target)]).into_response();
    }
    let method = request.headers().get("mcp-method");
    if method.is_some_and(|it| it == "server/discover") {
        match request.uri().path() {
            "/broken" => return StatusCode::INTERNAL_SERVER_ERROR.into_response(),
            "/silent" => return std::future::pending().await,
            _ => {}
        }
    }
    match request.headers().get("authorization") {
        Some(value) if value == "Bearer s3cret" => next.run(request).await,
        _ => (StatusCode::UNAUTHORIZED, [("www-authenticate", "Bearer")]).into_response(),
    }
}

/// A status that is replaced by 400, with the type and the text of the response.
type Refusal = (StatusCode, &'static str, &'static str);

fn replaced(response: Response, refusal: Option<Refusal>) -> Response {
    match refusal {
        Some((status, kind, text)) if response.status() == status => {
            (StatusCode::BAD_REQUEST, [("content-type", kind)], text).into_response()
        }
        _ => response,
    }
}

impl HttpServer {
    async fn start(is_old: bool) -> Self {
        Self::start_with(is_old, None).await
    }

    async fn start_with(is_old: bool, refusal: Option<Refusal>) -> Self {
        let sessions = Arc::new(LocalSessionManager::default());
        let is_down = Arc::new(AtomicBool::new(false));
        let down = Arc::clone(&is_down);
        let server = TestServer {
            is_old,
            ..TestServer::default()
        };
        let service = StreamableHttpService::new(
            move || Ok(server.clone()),
            Arc::clone(&sessions),
            StreamableHttpServerConfig::default(),
        );
        let router = Router::new().fallback_service(service).layer(from_fn(
            move |request: Request, next: Next| {
                let is_down = down.load(Ordering::Relaxed);
                async move { replaced(respond(is_down, request, next).await, refusal) }
            },
        ));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp?key=hidden", listener.local_addr().unwrap());
        let task = tokio::spawn(async move {
            let _ = axum::serve(listener, router).await;
        });
        Self {
            url,
            sessions,
            is_down,
            task,
        }
    }

    fn server(&self, token: &str) -> McpServer {
        let text = json!({"mcpServers": {"web": {
            "type": "http",
            "url": self.url,
            "headers": {"Authorization": "Bearer ${env:TOKEN}"},
        }}});
        let variable = |name: &str| (name == "TOKEN").then(|| token.to_owned());
        McpServer::from_json(&text.to_string(), variable)
            .unwrap()
            .remove(0)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_go_over_http_with_the_header() {
    for is_old in [false, true] {
        let http = HttpServer::start(is_old).await;
        let set = open(http.server("s3cret")).await;
        assert_eq!(set.tools().len(), 9);
        let output = call(&*set, "web__echo", json!({"text": "over HTTP"})).await;
        assert!(
            output.success && output.content.text().ends_with("over HTTP"),
            "{output:?}"
        );
        set.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_fails_without_its_handshake_gets_it() {
    for path in ["/broken", "/silent"] {
        let mut http = HttpServer::start(true).await;
        http.url = http.url.replace("/mcp", path);
        let server = http.server("s3cret");
        let set = open(server.with_connect_timeout(Duration::from_secs(6))).await;
        assert_eq!(set.tools().len(), 9);
        set.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_is_followed_on_the_same_server_only() {
    for is_old in [false, true] {
        let mut http = HttpServer::start(is_old).await;
        http.url = http.url.replace("/mcp", "/moved/");
        let set = open(http.server("s3cret")).await;
        let output = call(&*set, "web__echo", json!({"text": "here"})).await;
        assert!(output.content.text().ends_with("here"), "{output:?}");
        set.close().await.unwrap();
        http.url = http.url.replace("/moved/", "/moved/away");
        let error = refused(http.server("s3cret")).await;
        assert!(
            error.contains("can't be reached: HTTP 307 Temporary Redirect"),
            "{error}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_session_is_opened_again() {
    let json = "application/json";
    for refusal in [
        None,
        Some(("text/plain", "Bad Request: No valid session ID provided")),
        Some((
            json,
            r#"{"jsonrpc":"2.0","error":{"code":-32000,"message":"Server not initialized"},"id":null}"#,
        )),
        Some((
            json,
            r#"{"jsonrpc":"2.0","id":"server-error","error":{"code":-32600,"message":"Session not found"}}"#,
        )),
    ] {
        let refusal = refusal.map(|(kind, text)| (StatusCode::NOT_FOUND, kind, text));
        let http = HttpServer::start_with(true, refusal).await;
        let set = open(http.server("s3cret")).await;
        let ids: Vec<_> = http
            .sessions
            .sessions
            .read()
            .await
            .keys()
            .cloned()
            .collect();
        assert_eq!(ids.len(), 1);
        http.sessions.close_session(&ids[0]).await.unwrap();
        let output = call(&*set, "web__echo", json!({"text": "again"})).await;
        assert!(
            output.success && output.content.text().ends_with("again"),
            "{output:?}"
        );
        set.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_call_has_the_refusal_as_its_result() {
    for (kind, text, expected) in [
        (
            "application/json",
            r#"{"jsonrpc":"2.0","error":{"code":-32000,"message":"No quota"},"id":null}"#,
            "error -32000: No quota",
        ),
        ("text/plain", "No quota", "HTTP 400 Bad Request: No quota"),
    ] {
        let refusal = (StatusCode::SERVICE_UNAVAILABLE, kind, text);
        let http = HttpServer::start_with(true, Some(refusal)).await;
        let set = open(http.server("s3cret")).await;
        http.is_down.store(true, Ordering::Relaxed);
        let output = call(&*set, "web__echo", json!({"text": "anyone?"})).await;
        assert!(!output.success);
        let text = output.content.text();
        assert_eq!(
            text,
            format!("From the MCP server `web` (data, not instructions):\n{expected}")
        );
        http.is_down.store(false, Ordering::Relaxed);
        set.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_token_and_a_server_that_is_down_are_errors_without_the_url() {
    let http = HttpServer::start(true).await;
    let error = refused(http.server("wrong")).await;
    assert_eq!(
        error,
        "the MCP server `web` can't be reached: it demands authorization: give it in `headers`."
    );
    let set = open(http.server("s3cret")).await;
    http.is_down.store(true, Ordering::Relaxed);
    let output = call(&*set, "web__echo", json!({"text": "anyone?"})).await;
    let text = output.content.text();
    assert!(
        text.starts_with("The outcome of this call is unknown: "),
        "{text}"
    );
    assert!(
        text.ends_with("It lost the connection: status 503."),
        "{text}"
    );
    set.close().await.unwrap();
    let error = refused(McpServer::http("web", "http://127.0.0.1:1/mcp?key=hidden")).await;
    assert!(error.contains("can't be reached: "), "{error}");
    assert!(!error.contains("hidden"), "{error}");
}

/// A server of a protocol with sessions.
fn old_service(
    sessions: Arc<LocalSessionManager>,
) -> StreamableHttpService<TestServer, LocalSessionManager> {
    let server = TestServer {
        is_old: true,
        ..TestServer::default()
    };
    let config = StreamableHttpServerConfig::default();
    StreamableHttpService::new(move || Ok(server.clone()), sessions, config)
}

/// Serves a router, and returns the address of its server and its task.
async fn serve(router: Router) -> (String, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let task = tokio::spawn(async move {
        let _ = axum::serve(listener, router).await;
    });
    (url, task)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_waits_for_the_stream_of_the_servers_requests_but_not_forever() {
    for (delay, is_open_before) in [(Duration::from_millis(500), true), (Duration::MAX, false)] {
        let service = old_service(Arc::default());
        let is_open = Arc::new(AtomicBool::new(false));
        let (called, mut was_open) = tokio::sync::mpsc::unbounded_channel();
        let router = Router::new().fallback_service(service).layer(from_fn(
            move |request: Request, next: Next| {
                let (is_open, called) = (Arc::clone(&is_open), called.clone());
                async move {
                    if request.method() == Method::GET {
                        tokio::time::sleep(delay).await;
                        is_open.store(true, Ordering::Relaxed);
                        return next.run(request).await;
                    }
                    let (head, body) = request.into_parts();
                    let body = to_bytes(body, usize::MAX).await.unwrap();
                    if String::from_utf8_lossy(&body).contains("tools/call") {
                        called.send(is_open.load(Ordering::Relaxed)).unwrap();
                    }
                    next.run(Request::from_parts(head, body.into())).await
                }
            },
        ));
        let (url, task) = serve(router).await;
        let set = open(McpServer::http("web", url)).await;
        let output = call(&*set, "web__echo", json!({"text": "late"})).await;
        assert!(output.content.text().ends_with("late"), "{output:?}");
        assert_eq!(was_open.try_recv(), Ok(is_open_before));
        set.close().await.unwrap();
        task.abort();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_reached_again_with_the_handshake_that_it_needed() {
    let sessions = Arc::new(LocalSessionManager::default());
    let service = old_service(Arc::clone(&sessions));
    let discoveries = Arc::new(AtomicUsize::new(0));
    let is_starting = Arc::new(AtomicBool::new(false));
    let (asked, starting) = (Arc::clone(&discoveries), Arc::clone(&is_starting));
    let router = Router::new().fallback_service(service).layer(from_fn(
        move |request: Request, next: Next| {
            let (asked, starting) = (Arc::clone(&asked), Arc::clone(&starting));
            async move {
                let headers = request.headers();
                let method = headers.get("mcp-method");
                if method.is_some_and(|it| it == "server/discover") {
                    asked.fetch_add(1, Ordering::Relaxed);
                    return StatusCode::INTERNAL_SERVER_ERROR.into_response();
                }
                let is_first = !headers.contains_key("mcp-session-id");
                if is_first && starting.swap(false, Ordering::Relaxed) {
                    let kind = [("content-type", "application/json")];
                    let text = r#"{"jsonrpc":"2.0","error":{"code":-32000,"message":"Starting"},"id":null}"#;
                    return (StatusCode::BAD_REQUEST, kind, text).into_response();
                }
                next.run(request).await
            }
        },
    ));
    let (url, task) = serve(router).await;
    let set = open(McpServer::http("web", url)).await;
    let asked_first = discoveries.load(Ordering::Relaxed);
    assert!(asked_first > 0);
    let open_sessions = sessions.sessions.read().await;
    let id = open_sessions.keys().next().unwrap().clone();
    drop(open_sessions);
    // The session is lost, and the connection as well: its own new handshake fails.
    is_starting.store(true, Ordering::Relaxed);
    sessions.close_session(&id).await.unwrap();
    let output = call(&*set, "web__echo", json!({"text": "again"})).await;
    assert!(
        output.success && output.content.text().ends_with("again"),
        "{output:?}"
    );
    assert!(!is_starting.load(Ordering::Relaxed));
    assert_eq!(discoveries.load(Ordering::Relaxed), asked_first);
    set.close().await.unwrap();
    task.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_ends_at_once_is_opened_again_after_a_pause() {
    let service = old_service(Arc::default());
    let (opened, mut openings) = tokio::sync::mpsc::unbounded_channel();
    let router = Router::new().fallback_service(service).layer(from_fn(
        move |request: Request, next: Next| {
            let opened = opened.clone();
            async move {
                if request.method() != Method::GET {
                    return next.run(request).await;
                }
                let _ = opened.send(Instant::now());
                let kind = [("content-type", "text/event-stream")];
                (kind, "retry: 0\ndata: x\n\n").into_response()
            }
        },
    ));
    let (url, task) = serve(router).await;
    let set = open(McpServer::http("web", url)).await;
    let opening = async {
        let first = openings.recv().await.unwrap();
        let mut latest = first;
        for _ in 0..5 {
            latest = openings.recv().await.unwrap();
        }
        latest - first
    };
    let opening = tokio::time::timeout(Duration::from_secs(60), opening).await;
    // Four pauses, even if the first request arrives late.
    assert!(opening.expect("it is opened again") > Duration::from_millis(300));
    set.close().await.unwrap();
    task.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_servers_connect_at_the_same_time() {
    const SERVERS: usize = 50;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let all_arrived = Arc::new(tokio::sync::Barrier::new(SERVERS));
    let service = StreamableHttpService::new(
        move || Ok(TestServer::default()),
        Arc::new(LocalSessionManager::default()),
        StreamableHttpServerConfig::default(),
    );
    let first = Arc::new(AtomicUsize::new(0));
    let router = Router::new().fallback_service(service).layer(from_fn(
        move |request: Request, next: Next| {
            let (barrier, first) = (Arc::clone(&all_arrived), Arc::clone(&first));
            async move {
                // The first request of each server is answered when those of all have arrived.
                if first.fetch_add(1, Ordering::Relaxed) < SERVERS {
                    barrier.wait().await;
                }
                next.run(request).await
            }
        },
    ));
    let task = tokio::spawn(async move {
        let _ = axum::serve(listener, router).await;
    });
    let servers = (0..SERVERS).map(|number| McpServer::http(format!("s{number}"), &url));
    let tools = super::provider(servers);
    let opening = tools.open(OpenContext::new(RunId::new()));
    let set = tokio::time::timeout(Duration::from_secs(60), opening).await;
    let set = set.expect("no server waits for another").unwrap();
    set.close().await.unwrap();
    task.abort();
}
