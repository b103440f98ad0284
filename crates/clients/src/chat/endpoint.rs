//! One call over HTTP: the request goes out, and a whole body or a stream of events comes back.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cantle_core::llm::{ChatEvent, ChatRequest, ChatStream, LlmError, LlmErrorKind, ModelInfo};
use futures_util::future::Either;
use futures_util::{Stream, StreamExt as _, TryFutureExt as _, stream};
use reqwest::header::{CONTENT_TYPE, HeaderMap};
use reqwest::{Response, Url};
use tokio::time::timeout;

use super::errors::Diagnosis;
use super::timeouts::Timeouts;
use super::transport::root;
use super::turn::Turn;
use super::wire::Answer;
use super::{encode, sse};

/// What an answer may have in bytes. A model's longest turn is far below it.
const LONGEST_ANSWER: usize = 64 << 20;

/// What is read of an error body.
const LONGEST_REFUSAL: usize = 64 << 10;

/// A model at an address, with the key for it.
pub(super) struct Endpoint {
    pub(super) model: ModelInfo,
    pub(super) url: Url,
    pub(super) http: reqwest::Client,
    /// The model and the options as the beginning of a request's body.
    pub(super) head: Vec<u8>,
    pub(super) streams: bool,
    pub(super) timeouts: Timeouts,
    pub(super) diagnosis: Diagnosis,
}

/// Calls the model once.
pub(super) fn call(endpoint: Arc<Endpoint>, request: ChatRequest) -> ChatStream {
    Box::pin(answer(endpoint, request).try_flatten_stream())
}

async fn answer(
    endpoint: Arc<Endpoint>,
    request: ChatRequest,
) -> Result<impl Stream<Item = Result<ChatEvent, LlmError>>, LlmError> {
    let response = endpoint.send(&request).await?;
    // The conversation is not needed while the model answers.
    drop(request);
    if endpoint.streams && !is_whole(response.headers()) {
        let pieces = pieces(response, endpoint.timeouts.idle);
        return Ok(Either::Left(sse::events(pieces, endpoint)));
    }
    let headers = response.headers().clone();
    let mut body = Vec::new();
    let mut pieces = pieces(response, endpoint.timeouts.idle);
    while let Some(piece) = pieces.next().await {
        body.extend_from_slice(&piece?);
    }
    let events = endpoint.whole(&headers, &body)?;
    Ok(Either::Right(stream::iter(events.into_iter().map(Ok))))
}

impl Endpoint {
    async fn send(&self, request: &ChatRequest) -> Result<Response, LlmError> {
        let body = encode::body(&self.head, request)?;
        let request = self.http.post(self.url.clone()).body(body).send();
        let Ok(response) = timeout(self.timeouts.first_byte, request).await else {
            let message = format!(
                "no answer from {} within {}",
                self.diagnosis.base_url,
                seconds(self.timeouts.first_byte)
            );
            return Err(LlmError::new(LlmErrorKind::Timeout, message));
        };
        let response = response.map_err(|error| self.diagnosis.no_response(error))?;
        if response.status().is_success() {
            return Ok(response);
        }
        Err(self.refusal(response).await)
    }

    async fn refusal(&self, mut response: Response) -> LlmError {
        let mut body = Vec::new();
        // What can't be read of the reason is left out of it.
        while let Ok(Ok(Some(piece))) = timeout(self.timeouts.idle, response.chunk()).await {
            let room = LONGEST_REFUSAL - body.len();
            body.extend(piece.into_iter().take(room));
            if body.len() == LONGEST_REFUSAL {
                break;
            }
        }
        let status = response.status().as_u16();
        self.diagnosis.refused(status, response.headers(), &body)
    }

    /// The events of an answer that came all at once.
    fn whole(&self, headers: &HeaderMap, body: &[u8]) -> Result<Vec<ChatEvent>, LlmError> {
        let answer: Answer = serde_json::from_slice(body).map_err(|error| {
            self.diagnosis
                .reported_in(body)
                .unwrap_or_else(|| self.diagnosis.no_answer(headers, body, &error.to_string()))
        })?;
        let choice = answer.choices.unwrap_or_default().into_iter().next();
        let failed =
            answer.error.is_some() || choice.as_ref().is_none_or(|choice| choice.error.is_some());
        if failed {
            let error = self.diagnosis.reported_in(body);
            return Err(error.unwrap_or_else(|| {
                let why = "it has no choices";
                self.diagnosis.no_answer(headers, body, why)
            }));
        }
        let mut turn = Turn::default();
        turn.usage = answer.usage;
        if let Some(mut choice) = choice {
            turn.finish_reason = choice.finish_reason.take().filter(|r| !r.is_empty());
            if let Some(message) = choice.whole() {
                turn.take(message, |_| ());
            }
        }
        turn.finish(cost(headers))
    }
}

/// What LiteLLM charges. On a stream its header stands before the cost is known.
fn cost(headers: &HeaderMap) -> Option<f64> {
    let cost = headers.get("x-litellm-response-cost")?;
    cost.to_str().ok()?.trim().parse().ok()
}

/// Whether one JSON body comes, or a proxy's page, where a stream was asked for.
fn is_whole(headers: &HeaderMap) -> bool {
    let kind = headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    kind.is_some_and(|kind| kind.starts_with("application/json") || kind.starts_with("text/html"))
}

/// A response's bytes as they come: as much as an answer may have, and never a long silence.
fn pieces(
    response: Response,
    idle: Duration,
) -> impl Stream<Item = Result<Bytes, LlmError>> + Send + Unpin {
    let interrupted = |message| LlmError::new(LlmErrorKind::Interrupted, message);
    let state = Some((response, LONGEST_ANSWER));
    Box::pin(stream::unfold(state, move |state| async move {
        let (mut response, room) = state?;
        let failure = match timeout(idle, response.chunk()).await {
            Ok(Ok(None)) => return None,
            Ok(Ok(Some(piece))) => match room.checked_sub(piece.len()) {
                Some(room) => return Some((Ok(piece), Some((response, room)))),
                None => {
                    let most = LONGEST_ANSWER >> 20;
                    LlmError::protocol(format!("the answer is longer than {most} MiB"))
                }
            },
            Ok(Err(error)) => {
                let error = error.without_url();
                let why = root(&error);
                interrupted(format!("the connection broke within the answer: {why}"))
                    .with_source(error)
            }
            Err(_) => {
                let idle = seconds(idle);
                interrupted(format!("the answer stopped: nothing came for {idle}"))
            }
        };
        Some((Err(failure), None))
    }))
}

fn seconds(duration: Duration) -> String {
    format!("{} s", duration.as_secs_f64())
}
