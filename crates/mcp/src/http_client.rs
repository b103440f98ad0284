//! The HTTP client of the transport. It understands refusals that break the protocol.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use reqwest::header::{HeaderName, HeaderValue};
use rmcp::model::{ClientJsonRpcMessage, ClientRequest, ErrorCode, JsonRpcMessage};
use rmcp::transport::common::client_side_sse::BoxedSseResponse;
use rmcp::transport::streamable_http_client::{
    StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
    StreamableHttpResponseLimits,
};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

/// Time for a server to open the stream of its own requests before a tool is called without it.
const STREAM_TIMEOUT: Duration = Duration::from_secs(3);
/// Time between the openings of two streams. A server may end each at once and ask for the next one without a pause.
const STREAM_INTERVAL: Duration = Duration::from_millis(100);

/// How servers and SDKs say that they don't know a session.
const UNKNOWN_SESSION: [&str; 6] = [
    "no valid session",
    "invalid session",
    "unknown session",
    "session not found",
    "session expired",
    "not initialized",
];

type Headers = HashMap<HeaderName, HeaderValue>;
type HttpResult<T> = Result<T, StreamableHttpError<reqwest::Error>>;

/// An HTTP client that gives each refusal to the request that was refused, and knows a lost session by its text.
///
/// It sends a tool call when the server has opened the stream of its own requests, or has refused to: the official SDK for
/// TypeScript drops what a tool asks before that, so the call would never end.
#[derive(Clone, Debug)]
pub(crate) struct HttpClient {
    client: reqwest::Client,
    /// The latest session in which tools may be called.
    callable: watch::Sender<Option<Arc<str>>>,
    /// The earliest time at which the next stream is opened.
    next_stream: Arc<Mutex<Instant>>,
}

impl HttpClient {
    pub(crate) fn new(client: reqwest::Client) -> Self {
        Self {
            client,
            callable: watch::Sender::new(None),
            next_stream: Arc::new(Mutex::new(Instant::now())),
        }
    }
}

impl StreamableHttpClient for HttpClient {
    type Error = reqwest::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        auth: Option<String>,
        headers: Headers,
    ) -> HttpResult<StreamableHttpPostResponse> {
        let limits = StreamableHttpResponseLimits::default();
        self.post_message_with_response_limits(uri, message, session, auth, headers, limits)
            .await
    }

    async fn post_message_with_response_limits(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        auth: Option<String>,
        headers: Headers,
        limits: StreamableHttpResponseLimits,
    ) -> HttpResult<StreamableHttpPostResponse> {
        let has_session = session.is_some();
        let request = match &message {
            JsonRpcMessage::Request(request) => Some(request.id.clone()),
            _ => None,
        };
        if has_session && is_call(&message) {
            let mut callable = self.callable.subscribe();
            let is_callable = callable.wait_for(|callable| *callable == session);
            if timeout(STREAM_TIMEOUT, is_callable).await.is_err() {
                // Later calls need not wait again.
                self.callable.send_replace(session.clone());
            }
        }
        let mut answer = self
            .client
            .post_message_with_response_limits(uri, message, session, auth, headers, limits)
            .await;
        let Some(request) = request else {
            return answer;
        };
        let refusal = match &mut answer {
            // SDKs refuse with the id null or `server-error` before they read the request. No call would get that error.
            Ok(StreamableHttpPostResponse::Json(JsonRpcMessage::Error(error), _))
                if error.id.as_ref() != Some(&request) =>
            {
                error.id = Some(request);
                match error.error.code {
                    // The server may have begun with the request.
                    ErrorCode::INTERNAL_ERROR => "",
                    _ => &*error.error.message,
                }
            }
            // After 408, the request may have run.
            Err(StreamableHttpError::UnexpectedServerResponse(text))
                if text.starts_with("HTTP 4") && !text.starts_with("HTTP 408") =>
            {
                &**text
            }
            _ => "",
        };
        // Status 404 is for that, but many servers answer with 400 after a restart.
        match has_session && is_about_session(refusal) {
            true => Err(StreamableHttpError::SessionExpired),
            false => answer,
        }
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session: Arc<str>,
        auth: Option<String>,
        headers: Headers,
    ) -> HttpResult<()> {
        self.client
            .delete_session(uri, session, auth, headers)
            .await
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session: Option<Arc<str>>,
        last_event: Option<String>,
        auth: Option<String>,
        headers: Headers,
    ) -> HttpResult<BoxedSseResponse> {
        let max_size = StreamableHttpResponseLimits::default().max_sse_event_size;
        self.get_stream_with_max_sse_event_size(uri, session, last_event, auth, headers, max_size)
            .await
    }

    async fn get_stream_with_max_sse_event_size(
        &self,
        uri: Arc<str>,
        session: Option<Arc<str>>,
        last_event: Option<String>,
        auth: Option<String>,
        headers: Headers,
        max_size: usize,
    ) -> HttpResult<BoxedSseResponse> {
        let opening = {
            let mut next = self.next_stream.lock();
            let opening = Instant::now().max(*next);
            *next = opening + STREAM_INTERVAL;
            opening
        };
        sleep_until(opening).await;
        // The stream of an answer resumes after its latest event.
        let is_of_answer = last_event.is_some();
        let of = session.clone();
        let stream = self
            .client
            .get_stream_with_max_sse_event_size(uri, of, last_event, auth, headers, max_size)
            .await;
        if !is_of_answer {
            self.callable.send_replace(session);
        }
        stream
    }
}

fn is_call(message: &ClientJsonRpcMessage) -> bool {
    match message {
        JsonRpcMessage::Request(request) => {
            matches!(request.request, ClientRequest::CallToolRequest(_))
        }
        _ => false,
    }
}

/// Returns whether a refusal says that the session is not known, so that the request was not run.
fn is_about_session(refusal: &str) -> bool {
    let refusal = refusal.to_lowercase();
    UNKNOWN_SESSION.iter().any(|text| refusal.contains(text))
}

#[cfg(test)]
mod tests {
    use super::is_about_session;

    #[test]
    fn only_an_unknown_session_is_lost() {
        for (refusal, is_lost) in [
            ("HTTP 400: Bad Request: No valid session ID provided", true),
            ("Session not found", true),
            ("Bad Request: Server not initialized", true),
            ("Missing parameter: session_id", false),
            ("session limit reached", false),
            ("Session worker crashed", false),
        ] {
            assert_eq!(is_about_session(refusal), is_lost, "{refusal}");
        }
    }
}
