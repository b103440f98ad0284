//! Tools for MCP clients over HTTP (streamable HTTP).

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cantle_core::tool::DynTool;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full};
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::limits::MAX_SERVED_SESSIONS;
use crate::server::{SESSION, ToolServer};

/// The time without messages after which a session ends. Calls have to end before.
const IDLE: Duration = Duration::from_secs(2 * 60 * 60);

/// Time limit for a request that may begin a session, its body included.
const BEGIN_TIMEOUT: Duration = Duration::from_mins(1);

/// Tools for the MCP clients of one principal over HTTP.
///
/// A client of a protocol with sessions has tools of its own in each session, from the handshake to the end of the session, or
/// until it was silent for two hours. Later protocols have no sessions: all their calls have the same tools, which can tell
/// one user's state from another's by a handle among the arguments. Calls of tools that are not for guests are refused, since
/// calls have no principal. Requests of any path are answered, and those from web pages (`Origin`) are refused. Host and
/// authentication are to be checked before.
pub struct HttpToolServer {
    service: StreamableHttpService<ToolServer, LocalSessionManager>,
    sessions: Arc<LocalSessionManager>,
    /// Requests in progress that may begin a session.
    beginning: Semaphore,
}

impl HttpToolServer {
    /// Creates a server. `tools` returns the tools of a new session, and `shared` are those of clients without sessions.
    /// Cancelling `cancellation` ends all sessions.
    pub fn new(
        tools: impl Fn() -> Vec<DynTool> + Send + Sync + 'static,
        shared: Vec<DynTool>,
        cancellation: CancellationToken,
    ) -> Self {
        let mut sessions = LocalSessionManager::default();
        sessions.session_config.keep_alive = Some(IDLE);
        let sessions = Arc::new(sessions);
        let config = StreamableHttpServerConfig::default()
            .disable_allowed_hosts()
            .enforce_origin_validation()
            .with_cancellation_token(cancellation);
        let shared: Arc<[DynTool]> = shared.into();
        let server =
            move || Ok::<_, io::Error>(ToolServer::new(tools(), Some(Arc::clone(&shared))));
        Self {
            service: StreamableHttpService::new(server, Arc::clone(&sessions), config),
            sessions,
            beginning: Semaphore::new(MAX_SERVED_SESSIONS),
        }
    }

    /// Answers a request.
    pub async fn answer<B>(&self, request: Request<B>) -> Response<BoxBody<Bytes, Infallible>>
    where
        B: http_body::Body<Error: fmt::Display, Data: Send> + Send + 'static,
    {
        if may_begin_session(&request) {
            let Some(_permit) = self.reserve_session().await else {
                let message = format!(
                    "you have {MAX_SERVED_SESSIONS} sessions, with those that begin: end some (DELETE)\n"
                );
                return refusal(StatusCode::TOO_MANY_REQUESTS, message);
            };
            let answering = timeout(BEGIN_TIMEOUT, self.service.handle(request));
            return answering.await.unwrap_or_else(|_| {
                let message = "the request was not complete in time\n".to_owned();
                refusal(StatusCode::REQUEST_TIMEOUT, message)
            });
        }
        let is_end = request.method() == Method::DELETE;
        let mut response = self.service.handle(request).await;
        // MCP's SDKs take every other status for a failure.
        if is_end && response.status() == StatusCode::ACCEPTED {
            *response.status_mut() = StatusCode::NO_CONTENT;
        }
        response
    }

    /// Returns a permit to hold until a session has begun; `None` if there are too many. A session counts twice between its
    /// beginning and the release of its permit.
    async fn reserve_session(&self) -> Option<SemaphorePermit<'_>> {
        let permit = self.beginning.try_acquire().ok()?;
        // Read before the sessions: a permit that is released in between belongs to a session that is counted there.
        let free = self.beginning.available_permits();
        let sessions = self.sessions.sessions.read().await.len();
        (sessions <= free).then_some(permit)
    }
}

fn refusal(status: StatusCode, message: String) -> Response<BoxBody<Bytes, Infallible>> {
    let body = Full::from(message).map_err(|never| match never {});
    let mut response = Response::new(BoxBody::new(body));
    *response.status_mut() = status;
    response
}

/// Returns whether a request may begin a session. One of a protocol without sessions names its method in a header, and is
/// refused if that is not the method of its body.
fn may_begin_session<B>(request: &Request<B>) -> bool {
    let header = |name| request.headers().get(name).map(HeaderValue::as_bytes);
    let is_sessionless = header("mcp-protocol-version").is_some_and(|it| it >= &b"2026-07-28"[..])
        && header("mcp-method").is_some_and(|method| method != b"initialize");
    request.method() == Method::POST && header(SESSION).is_none() && !is_sessionless
}

impl fmt::Debug for HttpToolServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpToolServer").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt as _, stream};
    use http_body::Frame;
    use http_body_util::StreamBody;

    use super::*;

    const INITIALIZE: &str = r#"{"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}}"#;

    fn request<B>(body: B) -> Request<B> {
        Request::post("/")
            .header("host", "example.com")
            .header("accept", "application/json, text/event-stream")
            .header("content-type", "application/json")
            .body(body)
            .unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn requests_in_progress_count_as_sessions() {
        let server = HttpToolServer::new(Vec::new, Vec::new(), CancellationToken::new());
        let stalled = || StreamBody::new(stream::pending::<Result<Frame<Bytes>, Infallible>>());
        let mut beginning: Vec<_> = (0..MAX_SERVED_SESSIONS)
            .map(|_| Box::pin(server.answer(request(stalled()))))
            .collect();
        for answer in &mut beginning {
            assert!(answer.now_or_never().is_none());
        }
        let begin = || server.answer(request(Full::<Bytes>::from(INITIALIZE)));
        assert_eq!(begin().await.status(), StatusCode::TOO_MANY_REQUESTS);
        for stalled in beginning {
            assert_eq!(stalled.await.status(), StatusCode::REQUEST_TIMEOUT);
        }
        for _ in 0..MAX_SERVED_SESSIONS {
            assert_eq!(begin().await.status(), StatusCode::OK);
        }
        assert_eq!(begin().await.status(), StatusCode::TOO_MANY_REQUESTS);
    }
}
