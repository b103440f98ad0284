//! Servers over streamable HTTP.

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse as _, Response};
use cantle_mcp::McpServer;
use rmcp::transport::streamable_http_server::SessionManager as _;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
use serde_json::json;
use tokio::net::TcpListener;

use super::server::TestServer;
use super::{call, open, refused};

/// A server that demands a token.
struct HttpServer {
    url: String,
    sessions: Arc<LocalSessionManager>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn authorized(request: Request, next: Next) -> Response {
    match request.headers().get("authorization") {
        Some(value) if value == "Bearer s3cret" => next.run(request).await,
        _ => (StatusCode::UNAUTHORIZED, [("www-authenticate", "Bearer")]).into_response(),
    }
}

impl HttpServer {
    async fn start(is_old: bool) -> Self {
        let sessions = Arc::new(LocalSessionManager::default());
        let server = TestServer {
            is_old,
            ..TestServer::default()
        };
        let service = StreamableHttpService::new(
            move || Ok(server.clone()),
            Arc::clone(&sessions),
            StreamableHttpServerConfig::default(),
        );
        let router = Router::new()
            .fallback_service(service)
            .layer(from_fn(authorized));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp?key=hidden", listener.local_addr().unwrap());
        let task = tokio::spawn(async move {
            let _ = axum::serve(listener, router).await;
        });
        Self {
            url,
            sessions,
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
async fn a_lost_session_is_opened_again() {
    let http = HttpServer::start(true).await;
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

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_token_and_a_dead_server_are_errors_without_the_url() {
    let http = HttpServer::start(true).await;
    let error = refused(http.server("wrong")).await;
    assert_eq!(
        error,
        "the MCP server `web` can't be reached: it demands authorization: give it in `headers`."
    );
    let set = open(http.server("s3cret")).await;
    drop(http);
    let output = call(&*set, "web__echo", json!({"text": "anyone?"})).await;
    let text = output.content.text();
    assert!(
        !output.success && !text.contains("hidden") && !text.contains("s3cret"),
        "{text}"
    );
    set.close().await.unwrap();
    let error = refused(McpServer::http("web", "http://127.0.0.1:1/mcp?key=hidden")).await;
    assert!(error.contains("can't be reached: "), "{error}");
    assert!(!error.contains("hidden"), "{error}");
}
