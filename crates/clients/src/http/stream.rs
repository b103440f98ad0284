//! Streamed responses: reads server-sent events and emits chat events.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use cantle_core::llm::{ChatEvent, LlmError};
use futures_util::{Stream, TryStreamExt as _, stream};
use reqwest::header::HeaderMap;
use tokio::time::timeout;

use super::body::BodyChunks;
use super::dialect::{Dialect, TurnAssembler as _};
use super::endpoint::Endpoint;
use super::surrogates::SplitPairs;
use crate::sse::EventParser;

/// How long to wait for the end of the body after its last event. A connection can be reused only
/// after its response has been read to the end.
const END_OF_BODY_TIMEOUT: Duration = Duration::from_millis(100);

/// Reads the events of a streamed response.
pub(super) fn event_stream<D: Dialect>(
    body: BodyChunks,
    headers: HeaderMap,
    endpoint: Arc<Endpoint<D>>,
) -> impl Stream<Item = Result<ChatEvent, LlmError>> {
    let reader = EventReader {
        body,
        parser: EventParser::default(),
        pairs: SplitPairs::default(),
        headers,
        assembler: Some(endpoint.dialect.assembler()),
        endpoint,
        ready: VecDeque::new(),
    };
    stream::try_unfold(reader, |mut reader| async {
        let event = reader.next().await?;
        Ok(event.map(|event| (event, reader)))
    })
}

struct EventReader<D: Dialect> {
    body: BodyChunks,
    parser: EventParser,
    pairs: SplitPairs,
    headers: HeaderMap,
    endpoint: Arc<Endpoint<D>>,
    /// `None` after the end.
    assembler: Option<D::Assembler>,
    /// Events to emit before more of the body is read.
    ready: VecDeque<ChatEvent>,
}

impl<D: Dialect> EventReader<D> {
    async fn next(&mut self) -> Result<Option<ChatEvent>, LlmError> {
        while self.ready.is_empty() {
            let Some(mut assembler) = self.assembler.take() else {
                return Ok(None);
            };
            let advanced = self.advance(&mut assembler).await;
            match advanced.map_err(|error| error.with_usage(assembler.usage()))? {
                ControlFlow::Continue(()) => self.assembler = Some(assembler),
                ControlFlow::Break(()) => self.ready.extend(assembler.finish(&self.headers)?),
            }
        }
        Ok(self.ready.pop_front())
    }

    /// Reads up to the next event with deltas, or one chunk. Breaks at the end of the response.
    async fn advance(&mut self, assembler: &mut D::Assembler) -> Result<ControlFlow<()>, LlmError> {
        while let Some(event) = self.parser.next_event() {
            let mut event = event.map_err(|error| {
                LlmError::protocol("the server sent an event that is not UTF-8").with_source(error)
            })?;
            event.data = self.pairs.join(event.data);
            let is_last = match event.data.trim() {
                "" => continue,
                // OpenAI's last event, which proxies add to other dialects.
                "[DONE]" => true,
                _ => assembler
                    .read_event(&self.endpoint.errors, &event, &mut self.ready)?
                    .is_break(),
            };
            if is_last {
                // The turn is complete even if this fails.
                let _ = timeout(END_OF_BODY_TIMEOUT, self.body.try_next()).await;
                return Ok(ControlFlow::Break(()));
            }
            if !self.ready.is_empty() {
                return Ok(ControlFlow::Continue(()));
            }
        }
        match self.body.try_next().await? {
            Some(chunk) => {
                self.parser.push(&chunk);
                Ok(ControlFlow::Continue(()))
            }
            // Some servers send no final event; the stop reason decides whether the turn is complete.
            None => Ok(ControlFlow::Break(())),
        }
    }
}

// The tests use Chat Completions as the dialect.
#[cfg(feature = "chat")]
#[cfg(test)]
mod tests;
