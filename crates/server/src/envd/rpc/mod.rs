//! The Connect protocol with JSON (<https://connectrpc.com/docs/protocol/>): unary calls and streams.

pub(crate) mod envelope;
pub(crate) mod json;

use std::pin::Pin;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, stream};
use http::{HeaderMap, Method, Request, StatusCode, header};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use self::envelope::{END_STREAM, EnvelopeReader};
use super::error::{EnvdError, Result, RpcCode};
use crate::accounts::{Account, MemoryCharge};
use crate::{body, tasks};

/// Maximum size of a client's message; larger data belongs in a file.
pub(crate) const MESSAGE_BYTES: usize = 8 << 20;

/// Bytes charged for each byte of a message: of input, which is text and decoded bytes, and of a command,
/// whose arguments and variables are larger than their text.
const INPUT_WEIGHT: usize = 2;
const START_WEIGHT: usize = 8;

const UNARY_TYPE: &str = "application/json";
const STREAMING_TYPE: &str = "application/connect+json";

/// An item of a response stream.
pub(crate) enum StreamItem {
    /// A message in its envelope.
    Message(Bytes),
    /// The end of the stream.
    End(Result<()>),
    /// An aborted connection.
    Abort,
}

/// A response without fields.
pub(crate) struct Empty;

impl IntoResponse for Empty {
    fn into_response(self) -> Response {
        Json(serde_json::json!({})).into_response()
    }
}

/// A large response, charged until it is sent.
pub(crate) struct LargeMessage(Bytes);

impl LargeMessage {
    /// Serializes a message of about `size_bytes`, for which `charge` grows.
    pub(crate) async fn new<T: Serialize + Send + 'static>(
        message: T,
        size_bytes: usize,
        mut charge: MemoryCharge,
    ) -> Result<Self> {
        charge.grow(size_bytes)?;
        // The charge lasts as long as the computation, also if the client disconnects.
        let message = tasks::compute(size_bytes, move || {
            let json = serde_json::to_vec(&message).unwrap_or_default();
            Self(body::charged(json.into(), charge))
        });
        Ok(message.await?)
    }
}

impl IntoResponse for LargeMessage {
    fn into_response(self) -> Response {
        ([(header::CONTENT_TYPE, UNARY_TYPE)], self.0).into_response()
    }
}

/// Items of a response; the last one is not a message.
pub(crate) type StreamItems = Pin<Box<dyn Stream<Item = StreamItem> + Send>>;

/// Kind of an RPC.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallKind {
    Unary,
    Streaming,
}

/// A call whose head has been checked; its message is still to be read.
pub(crate) struct RpcCall {
    body: Body,
    /// How long the body may make no progress.
    idle: Duration,
    account: Account,
    pub(crate) times: CallTimes,
}

/// Times that the client requests for a call.
#[derive(Clone, Copy)]
pub(crate) struct CallTimes {
    /// Time limit of the call or, for some streams, of what it started.
    pub(crate) limit: Option<Duration>,
    /// Interval of a stream's keep-alive messages.
    pub(crate) keepalive: Duration,
}

impl RpcCall {
    /// Checks the head of a request; fails with the response to an invalid one.
    pub(crate) fn new(
        request: Request<Body>,
        kind: CallKind,
        idle: Duration,
        account: &Account,
    ) -> Result<Self, Box<Response>> {
        check(&request, kind)?;
        let (head, body) = request.into_parts();
        let times = CallTimes {
            limit: time_limit(&head.headers).map_err(|error| match kind {
                CallKind::Unary => error.into_rpc(),
                CallKind::Streaming => stream_error(error),
            })?,
            keepalive: keepalive(&head.headers),
        };
        Ok(Self {
            body,
            idle,
            account: account.clone(),
            times,
        })
    }

    /// Responds to a unary call.
    pub(crate) async fn unary<T, U, F>(self, answer: impl FnOnce(T) -> F) -> Response
    where
        T: DeserializeOwned,
        U: IntoResponse,
        F: Future<Output = Result<U>>,
    {
        let answered = async {
            let mut charge = self.account.charge();
            let read_all = body::read_all(
                self.body,
                MESSAGE_BYTES,
                self.idle,
                &mut charge,
                INPUT_WEIGHT,
            );
            let bytes = read_all.await?;
            answer(read(if bytes.is_empty() { b"{}" } else { &bytes })?).await
        };
        let answered = limited(self.times.limit, answered).await;
        answered.map_or_else(EnvdError::into_rpc, U::into_response)
    }

    /// Responds to a server-streaming call.
    pub(crate) async fn stream<T, F>(self, answer: impl FnOnce(T, CallTimes) -> F) -> Response
    where
        T: DeserializeOwned,
        F: Future<Output = Result<StreamItems>>,
    {
        let answered = async {
            let charge = self.account.charge();
            let mut envelopes = EnvelopeReader::new(self.body, self.idle, charge, START_WEIGHT);
            let missing = || EnvdError::invalid("the call has no message");
            let message = envelopes.next().await?.ok_or_else(missing)?;
            if envelopes.next().await?.is_some() {
                return Err(EnvdError::invalid("the call has more than one message"));
            }
            answer(read(&message)?, self.times).await
        };
        answered.await.map_or_else(stream_error, stream_response)
    }

    /// Responds to a client-streaming call, whose response has no fields.
    pub(crate) async fn client_stream<F>(self, answer: impl FnOnce(EnvelopeReader) -> F) -> Response
    where
        F: Future<Output = Result<()>>,
    {
        let charge = self.account.charge();
        let messages = EnvelopeReader::new(self.body, self.idle, charge, INPUT_WEIGHT);
        match limited(self.times.limit, answer(messages)).await {
            Err(error) => stream_error(error),
            Ok(()) => {
                let body = [envelope::wrap(0, b"{}"), end(Ok(()))].concat();
                ([(header::CONTENT_TYPE, STREAMING_TYPE)], body).into_response()
            }
        }
    }
}

/// Awaits a result within a time limit.
async fn limited<T>(limit: Option<Duration>, result: impl Future<Output = Result<T>>) -> Result<T> {
    match limit {
        Some(limit) => {
            let result = timeout(limit, result).await;
            result.unwrap_or_else(|_| Err(deadline_exceeded()))
        }
        None => result.await,
    }
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

/// Returns the client's time limit for the call, if any. E2B's Python SDK sends fractions, which are rounded up.
fn time_limit(headers: &HeaderMap) -> Result<Option<Duration>> {
    let Some(value) = headers.get("connect-timeout-ms") else {
        return Ok(None);
    };
    let number = value.to_str().ok().and_then(|text| text.parse().ok());
    // At most ten digits, as the protocol has it.
    let number = number.filter(|number: &f64| (0.0..1e10).contains(number));
    let invalid = || EnvdError::invalid("the header Connect-Timeout-Ms is not a number");
    let milliseconds = number.ok_or_else(invalid)?.ceil() as u64;
    Ok(Some(Duration::from_millis(milliseconds)))
}

/// Returns the interval of keep-alive messages.
fn keepalive(headers: &HeaderMap) -> Duration {
    let seconds = headers.get("keepalive-ping-interval");
    let seconds = seconds.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    Duration::from_secs(seconds.unwrap_or(90).clamp(1, 3600))
}

/// Deserializes a message.
pub(crate) fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    serde_json::from_slice(bytes)
        .map_err(|error| EnvdError::invalid(format!("invalid message: {error}")))
}

/// Streams `start`, then `items` up to the call's time limit, with a `keepalive` after each silence.
pub(crate) fn timed(
    start: Bytes,
    keepalive: Bytes,
    times: CallTimes,
    items: impl Stream<Item = StreamItem> + Send + 'static,
) -> StreamItems {
    let deadline = times.limit.map(|limit| Instant::now() + limit);
    let rest = stream::unfold(Some(Box::pin(items)), move |items| {
        let keepalive = keepalive.clone();
        async move {
            let mut items = items?;
            tokio::select! {
                biased;
                item = items.next() => {
                    let item = item?;
                    let goes_on = matches!(item, StreamItem::Message(_));
                    Some((item, goes_on.then_some(items)))
                }
                () = reach(deadline) => Some((StreamItem::End(Err(deadline_exceeded())), None)),
                () = sleep(times.keepalive) => Some((StreamItem::Message(keepalive), Some(items))),
            }
        }
    });
    Box::pin(stream::iter([StreamItem::Message(start)]).chain(rest))
}

async fn reach(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// The response to a streaming call.
fn stream_response(items: StreamItems) -> Response {
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

/// Whether a response is a stream of messages.
pub(crate) fn is_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind == STREAMING_TYPE)
}

/// The end of a stream whose sandbox has ended. The message is what SDKs look for.
pub(crate) fn sandbox_ended() -> Bytes {
    let message = "The sandbox was not found: the sandbox was killed or reached its end of life";
    end(Err(EnvdError::new(RpcCode::Unavailable, message)))
}

fn end(result: Result<()>) -> Bytes {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_limits_are_whole_milliseconds_or_more() {
        let limit = |text: &str| {
            let headers = HeaderMap::from_iter([(
                header::HeaderName::from_static("connect-timeout-ms"),
                text.parse().unwrap(),
            )]);
            let limit = time_limit(&headers).map_err(|error| error.code);
            limit.map(|limit| limit.map(|limit| limit.as_millis()))
        };
        for (text, milliseconds) in [
            ("0", 0),
            ("60000", 60_000),
            ("1500.0", 1500),
            ("2500.0000000000005", 2501),
            ("0.1", 1),
            ("9999999999", 9_999_999_999),
        ] {
            assert_eq!(limit(text), Ok(Some(milliseconds)), "{text}");
        }
        for text in ["", "-1", "x", "NaN", "inf", "10000000000"] {
            assert_eq!(limit(text), Err(RpcCode::InvalidArgument), "{text}");
        }
        assert!(time_limit(&HeaderMap::new()).unwrap().is_none());
    }
}
