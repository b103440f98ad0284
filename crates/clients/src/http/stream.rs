//! Streamed responses: reads server-sent events and emits chat events.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use cantle_core::llm::{ChatEvent, LlmError};
use futures_util::{Stream, stream};
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
    body: impl BodyChunks,
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
    stream::unfold(reader, |mut reader| async {
        let event = reader.next().await?;
        Some((event, reader))
    })
}

struct EventReader<D: Dialect, B> {
    body: B,
    parser: EventParser,
    pairs: SplitPairs,
    headers: HeaderMap,
    endpoint: Arc<Endpoint<D>>,
    /// `None` after the end or an error.
    assembler: Option<D::Assembler>,
    /// Events to emit before more of the body is read.
    ready: VecDeque<ChatEvent>,
}

impl<D: Dialect, B: BodyChunks> EventReader<D, B> {
    async fn next(&mut self) -> Option<Result<ChatEvent, LlmError>> {
        while self.ready.is_empty() {
            let mut assembler = self.assembler.take()?;
            match self.advance(&mut assembler).await {
                Ok(ControlFlow::Continue(())) => self.assembler = Some(assembler),
                Ok(ControlFlow::Break(())) => {
                    let usage = assembler.usage();
                    match assembler.finish(&self.headers) {
                        Ok(events) => self.ready.extend(events),
                        Err(error) => return Some(Err(error.with_usage(usage))),
                    }
                }
                Err(error) => return Some(Err(error.with_usage(assembler.usage()))),
            }
        }
        self.ready.pop_front().map(Ok)
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
                let _ = timeout(END_OF_BODY_TIMEOUT, self.body.chunk()).await;
                return Ok(ControlFlow::Break(()));
            }
            if !self.ready.is_empty() {
                return Ok(ControlFlow::Continue(()));
            }
        }
        match self.body.chunk().await? {
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
