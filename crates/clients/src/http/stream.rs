//! An answer in pieces: server-sent events, each with a piece of the message.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cantle_core::llm::{ChatEvent, LlmError};
use futures_util::{Stream, StreamExt as _, stream};
use reqwest::header::HeaderMap;
use tokio::time::timeout;

use super::dialect::{Dialect, Next, Turn as _};
use super::endpoint::Endpoint;
use crate::sse::Events;

/// How long is waited for the end of a body whose last event has come: only a connection whose
/// response has been read to its end can be used again.
const END_OF_BODY: Duration = Duration::from_millis(100);

/// Reads the events of a streamed answer.
pub(super) fn events<D, S>(
    pieces: S,
    headers: HeaderMap,
    endpoint: Arc<Endpoint<D>>,
) -> impl Stream<Item = Result<ChatEvent, LlmError>>
where
    D: Dialect,
    S: Stream<Item = Result<Bytes, LlmError>> + Send + Unpin,
{
    let turn = endpoint.dialect.turn();
    let reader = Reader {
        pieces,
        events: Events::default(),
        headers,
        endpoint,
        turn,
        ready: VecDeque::new(),
        over: false,
    };
    stream::unfold(reader, |mut reader| async {
        let event = reader.next().await?;
        Some((event, reader))
    })
}

struct Reader<D: Dialect, S> {
    pieces: S,
    events: Events,
    headers: HeaderMap,
    endpoint: Arc<Endpoint<D>>,
    turn: D::Turn,
    /// What is told before more is read.
    ready: VecDeque<ChatEvent>,
    over: bool,
}

impl<D: Dialect, S: Stream<Item = Result<Bytes, LlmError>> + Send + Unpin> Reader<D, S> {
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
        while let Some(event) = self.events.next_event() {
            let event = event.map_err(|error| {
                let message = "the server sent events that are not valid text";
                LlmError::protocol(message).with_source(error)
            })?;
            let diagnosis = &self.endpoint.diagnosis;
            match self.turn.event(diagnosis, &event, &mut self.ready)? {
                Next::End => {
                    // The turn is complete, however this goes.
                    let _ = timeout(END_OF_BODY, self.pieces.next()).await;
                    return self.finish();
                }
                Next::More if !self.ready.is_empty() => return Ok(()),
                Next::More => {}
            }
        }
        match self.pieces.next().await {
            Some(piece) => {
                self.events.push(&piece?);
                Ok(())
            }
            // Not every server says that it is done; the reason to stop is what counts.
            None => self.finish(),
        }
    }

    fn finish(&mut self) -> Result<(), LlmError> {
        self.over = true;
        let turn = std::mem::take(&mut self.turn);
        self.ready.extend(turn.finish(&self.headers)?);
        Ok(())
    }
}

// They need a dialect, so they read Chat Completions.
#[cfg(feature = "chat")]
#[cfg(test)]
mod tests;
