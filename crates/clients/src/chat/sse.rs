//! An answer in pieces: server-sent events, each with a piece of the message.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cantle_core::llm::{ChatEvent, LlmError, LlmErrorKind};
use futures_util::{Stream, StreamExt as _, stream};
use sse_stream::{Error as SseError, SseByteStream};
use tokio::time::timeout;

use super::endpoint::Endpoint;
use super::turn::Turn;
use super::wire::Answer;

/// How long is waited for the end of a body whose last event has come: only a connection whose
/// response has been read to its end can be used again.
const END_OF_BODY: Duration = Duration::from_millis(100);

/// Reads the events of a streamed answer.
pub(super) fn events<S>(
    pieces: S,
    endpoint: Arc<Endpoint>,
) -> impl Stream<Item = Result<ChatEvent, LlmError>>
where
    S: Stream<Item = Result<Bytes, LlmError>> + Send + Unpin,
{
    let reader = Reader {
        events: SseByteStream::new(pieces),
        endpoint,
        turn: Turn::default(),
        ready: VecDeque::new(),
        over: false,
    };
    stream::unfold(reader, |mut reader| async {
        let event = reader.next().await?;
        Some((event, reader))
    })
}

struct Reader<S: Stream<Item = Result<Bytes, LlmError>>> {
    events: SseByteStream<S>,
    endpoint: Arc<Endpoint>,
    turn: Turn,
    /// What is told before more is read.
    ready: VecDeque<ChatEvent>,
    over: bool,
}

impl<S: Stream<Item = Result<Bytes, LlmError>> + Send + Unpin> Reader<S> {
    async fn next(&mut self) -> Option<Result<ChatEvent, LlmError>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(Ok(event));
            }
            if self.over {
                return None;
            }
            if let Err(error) = self.advance().await {
                self.over = true;
                return Some(Err(error));
            }
        }
    }

    async fn advance(&mut self) -> Result<(), LlmError> {
        match self.events.next().await {
            Some(Ok(event)) => match event.data.as_deref().map(str::trim) {
                Some("[DONE]") => {
                    // The turn is complete, however this goes.
                    let _ = timeout(END_OF_BODY, self.events.next()).await;
                    self.finish()
                }
                None | Some("") => Ok(()),
                Some(data) => self.take(data, event.event.as_deref() == Some("error")),
            },
            // Not every server says `[DONE]`; the reason to stop is what counts.
            None => self.finish(),
            Some(Err(SseError::Body(error))) => match error.downcast::<LlmError>() {
                Ok(error) => Err(*error),
                Err(error) => Err(LlmError::protocol("the stream broke").with_source(error)),
            },
            Some(Err(error)) => {
                let message = "the server sent events that are not valid text";
                Err(LlmError::protocol(message).with_source(error))
            }
        }
    }

    fn take(&mut self, data: &str, named_error: bool) -> Result<(), LlmError> {
        let diagnosis = &self.endpoint.diagnosis;
        let answer: Answer = match serde_json::from_str(data) {
            Ok(answer) => answer,
            Err(_) if named_error => return Err(diagnosis.failed_under_way(data)),
            Err(error) => {
                return Err(diagnosis.reported_in(data.as_bytes()).unwrap_or_else(|| {
                    let message = format!("the server sent an event that can't be read: {error}");
                    diagnosis.protocol(&message)
                }));
            }
        };
        let choices = answer.choices.unwrap_or_default();
        let failed = answer.error.is_some() || choices.iter().any(|choice| choice.error.is_some());
        // An event without either may be vLLM's bare error object, or nothing to us.
        let empty = choices.is_empty() && answer.usage.is_none();
        if (failed || empty || named_error)
            && let Some(error) = diagnosis.reported_in(data.as_bytes())
        {
            return Err(error);
        }
        if named_error {
            return Err(diagnosis.failed_under_way(data));
        }
        for mut choice in choices {
            // Others than the first have not been asked for.
            if choice.index.unwrap_or(0) != 0 {
                continue;
            }
            let reason = choice.finish_reason.take().filter(|r| !r.is_empty());
            if let Some(piece) = choice.piece() {
                self.turn.take(piece, |event| self.ready.push_back(event));
            }
            self.turn.finish_reason = reason.or_else(|| self.turn.finish_reason.take());
        }
        // Some servers report it in every event; the last one is the sum.
        if answer.usage.is_some() {
            self.turn.usage = answer.usage;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), LlmError> {
        self.over = true;
        let turn = std::mem::take(&mut self.turn);
        if turn.finish_reason.is_none() {
            let message = "the answer ended without saying how the turn ended";
            return Err(LlmError::new(LlmErrorKind::Interrupted, message));
        }
        self.ready.extend(turn.finish(None)?);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
