//! The Connect protocol with JSON (<https://connectrpc.com/docs/protocol/>): unary calls and streams.

pub(crate) mod envelope;
pub(crate) mod json;

use std::pin::Pin;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use http::{HeaderMap, Method, Request, StatusCode, header};
use serde::Serialize;
use serde::de::DeserializeOwned;

use self::envelope::{END_STREAM, EnvelopeReader};
use super::error::{EnvdError, RpcCode};
use crate::body;

/// Maximum size of a client's message; larger data belongs in a file.
pub(crate) const MESSAGE_BYTES: usize = 8 << 20;

const UNARY_TYPE: &str = "application/json";
const STREAMING_TYPE: &str = "application/connect+json";

/// An item of a response stream.
pub(crate) enum StreamItem {
    /// A message in its envelope.
    Message(Bytes),
    /// The end of the stream.
    End(Result<(), EnvdError>),
    /// An aborted connection.
    Abort,
}

/// A response without fields.
#[derive(Debug, Serialize)]
pub(crate) struct Empty {}

/// Items of a response; the last one is not a message.
pub(crate) type StreamItems = Pin<Box<dyn Stream<Item = StreamItem> + Send>>;

/// Kind of an RPC.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallKind {
    Unary,
    Streaming,
}

/// Checks the method and content type of a call.
pub(crate) fn check<B>(request: &Request<B>, call_kind: CallKind) -> Result<(), Box<Response>> {
    if request.method() != Method::POST {
        let answer = (StatusCode::METHOD_NOT_ALLOWED, [(header::ALLOW, "POST")]);
        return Err(Box::new(answer.into_response()));
    }
    let kind = request.headers().get(header::CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    let expected = match call_kind {
        CallKind::Unary => UNARY_TYPE,
        CallKind::Streaming => STREAMING_TYPE,
    };
    if kind.eq_ignore_ascii_case(expected) {
        return Ok(());
    }
    let answer = (
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        [(header::HeaderName::from_static("accept-post"), expected)],
    );
    Err(Box::new(answer.into_response()))
}

/// Returns the client's time limit for the call, if any.
pub(crate) fn time_limit(headers: &HeaderMap) -> Result<Option<Duration>, EnvdError> {
    let Some(value) = headers.get("connect-timeout-ms") else {
        return Ok(None);
    };
    let number = value.to_str().ok().filter(|text| text.len() <= 10);
    match number.and_then(|text| text.parse::<u64>().ok()) {
        Some(milliseconds) => Ok(Some(Duration::from_millis(milliseconds))),
        None => Err(EnvdError::invalid(
            "the header Connect-Timeout-Ms is not a number",
        )),
    }
}

/// Returns the interval of keep-alive messages.
pub(crate) fn keepalive(headers: &HeaderMap) -> Duration {
    let seconds = headers.get("keepalive-ping-interval");
    let seconds = seconds.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    Duration::from_secs(seconds.unwrap_or(90).clamp(1, 3600))
}

/// Reads the message of a unary call.
pub(crate) async fn message<T: DeserializeOwned>(
    body: Body,
    idle: Duration,
) -> Result<T, EnvdError> {
    let bytes = body::read_all(body, MESSAGE_BYTES, idle).await?;
    read(if bytes.is_empty() { b"{}" } else { &bytes })
}

/// Reads the single message of a server-streaming call.
pub(crate) async fn single_message<T: DeserializeOwned>(
    body: Body,
    idle: Duration,
) -> Result<T, EnvdError> {
    let mut envelopes = EnvelopeReader::new(body, idle);
    let missing = || EnvdError::invalid("the call has no message");
    let message = envelopes.next().await?.ok_or_else(missing)?;
    if envelopes.next().await?.is_some() {
        return Err(EnvdError::invalid("the call has more than one message"));
    }
    read(&message)
}

/// Deserializes a message.
pub(crate) fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, EnvdError> {
    serde_json::from_slice(bytes)
        .map_err(|error| EnvdError::invalid(format!("invalid message: {error}")))
}

/// The response to a unary call.
pub(crate) fn unary<T: Serialize>(result: Result<T, EnvdError>) -> Response {
    match result {
        Ok(message) => Json(message).into_response(),
        Err(error) => error.into_rpc(),
    }
}

/// The response to a streaming call.
pub(crate) fn stream(items: StreamItems) -> Response {
    let body = items.map(|item| match item {
        StreamItem::Message(envelope) => Ok(envelope),
        StreamItem::End(result) => Ok(end(result)),
        StreamItem::Abort => Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset)),
    });
    (
        [(header::CONTENT_TYPE, STREAMING_TYPE)],
        Body::from_stream(body),
    )
        .into_response()
}

/// A streaming response that consists of an error.
pub(crate) fn stream_error(error: EnvdError) -> Response {
    error.respond_with(|error| {
        ([(header::CONTENT_TYPE, STREAMING_TYPE)], end(Err(error))).into_response()
    })
}

/// A streaming response with one message.
pub(crate) fn stream_single<T: Serialize>(result: Result<T, EnvdError>) -> Response {
    match result {
        Err(error) => stream_error(error),
        Ok(message) => {
            let mut body = envelope::encode(&message).to_vec();
            body.extend_from_slice(&end(Ok(())));
            ([(header::CONTENT_TYPE, STREAMING_TYPE)], body).into_response()
        }
    }
}

fn end(result: Result<(), EnvdError>) -> Bytes {
    match result {
        Ok(()) => envelope::wrap(END_STREAM, b"{}"),
        Err(error) => {
            let error = serde_json::json!({ "error": error.to_json() });
            envelope::wrap(END_STREAM, error.to_string().as_bytes())
        }
    }
}

/// The error for an expired time limit.
pub(crate) fn deadline_exceeded() -> EnvdError {
    EnvdError::new(RpcCode::DeadlineExceeded, "context deadline exceeded")
}
