//! The Connect protocol with JSON (<https://connectrpc.com/docs/protocol/>): unary calls, and streams of
//! messages in envelopes.

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

use self::envelope::{END, Envelopes};
use super::fault::{Code, Fault};
use crate::body;

/// One message of a caller; what is larger belongs into a file.
pub(crate) const MESSAGE_BYTES: usize = 8 << 20;

const UNARY: &str = "application/json";
const STREAMED: &str = "application/connect+json";

/// What a stream of answers consists of.
pub(crate) enum Answer {
    /// A message, already in its envelope.
    Message(Bytes),
    /// Its end.
    End(Result<(), Fault>),
    /// It breaks off, as if the sandbox had vanished.
    Cut,
}

/// Answers to a call, the last of which is not a message.
pub(crate) type Answers = Pin<Box<dyn Stream<Item = Answer> + Send>>;

/// How a call is made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    Unary,
    Streamed,
}

/// Refuses what is not a call of this shape.
pub(crate) fn check<B>(request: &Request<B>, shape: Shape) -> Result<(), Box<Response>> {
    if request.method() != Method::POST {
        let answer = (StatusCode::METHOD_NOT_ALLOWED, [(header::ALLOW, "POST")]);
        return Err(Box::new(answer.into_response()));
    }
    let kind = request.headers().get(header::CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    let wanted = match shape {
        Shape::Unary => UNARY,
        Shape::Streamed => STREAMED,
    };
    if kind.eq_ignore_ascii_case(wanted) {
        return Ok(());
    }
    let answer = (
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        [(header::HeaderName::from_static("accept-post"), wanted)],
    );
    Err(Box::new(answer.into_response()))
}

/// How long a call may take, where its caller says so.
pub(crate) fn time_limit(headers: &HeaderMap) -> Result<Option<Duration>, Fault> {
    let Some(value) = headers.get("connect-timeout-ms") else {
        return Ok(None);
    };
    let number = value.to_str().ok().filter(|text| text.len() <= 10);
    match number.and_then(|text| text.parse::<u64>().ok()) {
        Some(milliseconds) => Ok(Some(Duration::from_millis(milliseconds))),
        None => Err(Fault::invalid("the header Connect-Timeout-Ms is no number")),
    }
}

/// How often a silent stream is to say that it lives.
pub(crate) fn keepalive(headers: &HeaderMap) -> Duration {
    let asked = headers.get("keepalive-ping-interval");
    let asked = asked.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    Duration::from_secs(asked.unwrap_or(90).clamp(1, 3600))
}

/// The message of a unary call.
pub(crate) async fn message<T: DeserializeOwned>(body: Body, idle: Duration) -> Result<T, Fault> {
    let bytes = body::whole(body, MESSAGE_BYTES, idle).await?;
    read(if bytes.is_empty() { b"{}" } else { &bytes })
}

/// The one message of a call that is answered by a stream.
pub(crate) async fn only_message<T: DeserializeOwned>(
    body: Body,
    idle: Duration,
) -> Result<T, Fault> {
    let mut envelopes = Envelopes::new(body, idle);
    let missing = || Fault::invalid("the call has no message");
    let message = envelopes.next().await?.ok_or_else(missing)?;
    if envelopes.next().await?.is_some() {
        return Err(Fault::invalid("the call has more than one message"));
    }
    read(&message)
}

/// Reads a message.
pub(crate) fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Fault> {
    serde_json::from_slice(bytes)
        .map_err(|error| Fault::invalid(format!("the message can't be read: {error}")))
}

/// The answer of a unary call.
pub(crate) fn answer<T: Serialize>(result: Result<T, Fault>) -> Response {
    match result {
        Ok(message) => Json(message).into_response(),
        Err(fault) => fault.into_rpc(),
    }
}

/// The answer of a call that is a stream.
pub(crate) fn stream(answers: Answers) -> Response {
    let body = answers.map(|answer| match answer {
        Answer::Message(envelope) => Ok(envelope),
        Answer::End(result) => Ok(end(result)),
        Answer::Cut => Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset)),
    });
    ([(header::CONTENT_TYPE, STREAMED)], Body::from_stream(body)).into_response()
}

/// A stream that is over before it began.
pub(crate) fn refused(fault: Fault) -> Response {
    fault.said_by(|fault| ([(header::CONTENT_TYPE, STREAMED)], end(Err(fault))).into_response())
}

/// A stream of one message.
pub(crate) fn single<T: Serialize>(result: Result<T, Fault>) -> Response {
    match result {
        Err(fault) => refused(fault),
        Ok(message) => {
            let mut body = envelope::of(&message).to_vec();
            body.extend_from_slice(&end(Ok(())));
            ([(header::CONTENT_TYPE, STREAMED)], body).into_response()
        }
    }
}

fn end(result: Result<(), Fault>) -> Bytes {
    match result {
        Ok(()) => envelope::wrap(END, b"{}"),
        Err(fault) => {
            let error = serde_json::json!({ "error": fault.to_json() });
            envelope::wrap(END, error.to_string().as_bytes())
        }
    }
}

/// What a deadline says that has passed.
pub(crate) fn too_late() -> Fault {
    Fault::new(Code::DeadlineExceeded, "context deadline exceeded")
}
