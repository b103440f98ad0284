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

use super::dialect::{Dialect, Turn as _};
use super::errors::Diagnosis;
use super::stream::events;
use super::timeouts::Timeouts;
use super::transport::root;

/// What an answer may have in bytes. A model's longest turn is far below it.
const LONGEST_ANSWER: usize = 64 << 20;

/// What is read of an error body.
const LONGEST_REFUSAL: usize = 64 << 10;

/// A model at an address, with the key for it.
pub(super) struct Endpoint<D> {
    pub(super) model: ModelInfo,
    pub(super) dialect: D,
    pub(super) url: Url,
    pub(super) http: reqwest::Client,
    pub(super) streams: bool,
    pub(super) timeouts: Timeouts,
    pub(super) diagnosis: Diagnosis,
}

/// Calls the model once.
pub(super) fn call<D: Dialect>(endpoint: Arc<Endpoint<D>>, request: ChatRequest) -> ChatStream {
    Box::pin(answer(endpoint, request).try_flatten_stream())
}

async fn answer<D: Dialect>(
    endpoint: Arc<Endpoint<D>>,
    request: ChatRequest,
) -> Result<impl Stream<Item = Result<ChatEvent, LlmError>>, LlmError> {
    let response = endpoint.respond(&request).await?;
    // The conversation is not needed while the model answers.
    drop(request);
    let headers = response.headers().clone();
    if endpoint.streams && !is_whole(&headers) {
        let pieces = pieces(response, endpoint.timeouts.idle);
        return Ok(Either::Left(events(pieces, headers, endpoint)));
    }
    let mut body = Vec::new();
    let mut pieces = pieces(response, endpoint.timeouts.idle);
    while let Some(piece) = pieces.next().await {
        body.extend_from_slice(&piece?);
    }
    let mut turn = endpoint.dialect.turn();
    turn.whole(&endpoint.diagnosis, &headers, &body)?;
    let events = turn.finish(&headers)?;
    Ok(Either::Right(stream::iter(events.into_iter().map(Ok))))
}

impl<D: Dialect> Endpoint<D> {
    /// Sends the request, and another one in its place where the dialect has one.
    async fn respond(&self, request: &ChatRequest) -> Result<Response, LlmError> {
        let error = match self.send(self.body(request)?).await {
            Ok(response) => return Ok(response),
            Err(error) => error,
        };
        match self.dialect.instead(request, &error) {
            Some(body) => self.send(body?).await,
            None => Err(error),
        }
    }

    pub(super) fn body(&self, request: &ChatRequest) -> Result<Vec<u8>, LlmError> {
        self.model.takes(&request.messages)?;
        self.dialect.body(request)
    }

    async fn send(&self, body: Vec<u8>) -> Result<Response, LlmError> {
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
