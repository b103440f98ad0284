//! Model clients.
//!
//! [`LlmClient::stream`] is the only method that calls a model; [`LlmClientExt::complete`] folds the
//! stream, so streamed and unstreamed calls give identical messages. Retry, rate limit, recording and
//! prices are wrappers: each is an [`LlmClient`] around another.

mod error;
mod model;
mod request;

use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use async_trait::async_trait;
use auto_impl::auto_impl;
use futures_core::Stream;
use futures_util::StreamExt as _;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use self::error::{LlmError, LlmErrorKind};
pub use self::model::{InputModalities, LongPrompt, ModelInfo, PriceSource, Prices};
pub use self::request::{ChatRequest, ToolSpecs};
use crate::message::{AssistantBlock, AssistantMessage};
use crate::usage::TokenUsage;

/// The events of one model call, in order; see [`ChatEvent`].
pub type ChatStream = Pin<Box<dyn Stream<Item = Result<ChatEvent, LlmError>> + Send + 'static>>;

/// A client of a model provider, which turns messages and tool specs into the model's next turn.
///
/// A client is configuration, shared by all sessions. It holds no state of a conversation: encoded
/// messages are cached [in the message](crate::message::EncodedForms).
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a model client",
    note = "implement `LlmClient` from `cantle_core::llm`"
)]
#[auto_impl(Arc, Box)]
pub trait LlmClient: fmt::Debug + Send + Sync + 'static {
    /// Describes the client's model.
    fn model(&self) -> &ModelInfo;

    /// Starts a model call. The stream is lazy; dropping it cancels the call.
    ///
    /// The stream may outlive the client. Its last item is [`ChatEvent::Finished`] or an error; callers
    /// report a stream that ends without either as [`LlmErrorKind::Protocol`].
    fn stream(&self, request: ChatRequest) -> ChatStream;
}

/// Convenience methods of every [`LlmClient`]. Sealed.
#[async_trait]
pub trait LlmClientExt: LlmClient + sealed::SealedClient {
    /// Runs a model call to its end.
    ///
    /// # Errors
    /// The stream's error; [`LlmErrorKind::Protocol`] if it ends without [`ChatEvent::Finished`].
    async fn complete(&self, request: ChatRequest) -> Result<Completion, LlmError> {
        let mut stream = self.stream(request);
        let mut fold = Fold::default();
        while let Some(event) = stream.next().await {
            if let Some(completion) = fold.push(event?) {
                return Ok(completion);
            }
        }
        Err(LlmError::protocol(
            "the stream ended before the turn was finished",
        ))
    }
}

#[async_trait]
impl<C: LlmClient + ?Sized> LlmClientExt for C {}

mod sealed {
    pub trait SealedClient {}
    impl<C: super::LlmClient + ?Sized> SealedClient for C {}
}

/// Folds the events of one model call into its [`Completion`].
#[derive(Debug, Default)]
pub struct Fold {
    blocks: Vec<AssistantBlock>,
}

impl Fold {
    /// Adds an event; returns the completion after the last one.
    pub fn push(&mut self, event: ChatEvent) -> Option<Completion> {
        match event {
            ChatEvent::Block(block) => self.blocks.push(block),
            ChatEvent::Finished(end) => {
                let mut blocks = std::mem::take(&mut self.blocks);
                // The message is kept for the whole run; most have one or two blocks.
                blocks.shrink_to_fit();
                let mut message = AssistantMessage::new(blocks);
                message.provider_response_id = end.response_id;
                message.metadata = end.extra;
                message.token_usage = end.usage.unwrap_or_default();
                return Some(Completion {
                    message,
                    stop: end.stop,
                    usage: end.usage,
                    cost_usd: end.cost_usd,
                    list_price_date: end.list_price_date,
                    model: end.model,
                    served_by: end.served_by,
                });
            }
            ChatEvent::AttemptFailed(_) => self.blocks.clear(),
            ChatEvent::TextDelta(_)
            | ChatEvent::ReasoningDelta(_)
            | ChatEvent::ToolCallDelta { .. } => {}
        }
        None
    }
}

/// An event of a model call.
///
/// Deltas are only for display. The complete blocks follow as [`ChatEvent::Block`], in the order the
/// model produced them. A client that doesn't stream sends no deltas.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ChatEvent {
    /// A piece of answer text.
    TextDelta(String),
    /// A piece of visible reasoning.
    ReasoningDelta(String),
    /// A piece of a tool call's arguments.
    ToolCallDelta {
        /// Index of the call in this turn.
        index: usize,
        /// The tool's name, in the first piece.
        name: Option<String>,
        /// A piece of the arguments' JSON text; may be empty.
        arguments: String,
    },
    /// A complete block of the turn.
    Block(AssistantBlock),
    /// An attempt failed, and another one follows. The events before this one are void.
    AttemptFailed(FailedAttempt),
    /// The turn is complete. Always the last event.
    Finished(TurnEnd),
}

/// An attempt at a model call that failed, and is followed by another one.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct FailedAttempt {
    /// Number of the attempt, counted from 1.
    pub attempt: u32,
    /// The kind of its error.
    pub kind: LlmErrorKind,
    /// Its error, for display.
    pub reason: String,
    /// Delay before the next attempt.
    pub delay: Duration,
    /// Usage that the provider reported before the failure, which may lack the output.
    pub usage: Option<TokenUsage>,
    /// The model that the next attempt calls, unless it is the client's own.
    pub next_model: Option<String>,
}

impl FailedAttempt {
    /// Describes the failure of an attempt with this error.
    pub fn new(attempt: u32, error: &LlmError, delay: Duration) -> Self {
        Self {
            attempt,
            kind: error.kind(),
            reason: error.to_string(),
            delay,
            usage: error.usage(),
            next_model: None,
        }
    }
}

/// The end of a turn, which recordings contain as JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TurnEnd {
    /// The stop reason.
    pub stop: StopReason,
    /// Token usage; `None` if the provider reported none.
    pub usage: Option<TokenUsage>,
    /// The provider's id of the response, if requests can refer to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_id: Option<String>,
    /// Cost in US dollars, as reported by the provider or computed from its prices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
    /// Date of the price list that `cost_usd` was computed from, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub list_price_date: Option<String>,
    /// The model that was called, unless it is the client's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The model that answered, as named by the provider or by a fallback client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub served_by: Option<String>,
    /// Additional data that was requested, such as `logprobs`, in the provider's format. It becomes
    /// [metadata](AssistantMessage::metadata) of the message.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub extra: Map<String, Value>,
}

impl TurnEnd {
    /// Creates the end of a turn.
    pub fn new(stop: StopReason, usage: Option<TokenUsage>) -> Self {
        Self {
            stop,
            usage,
            response_id: None,
            cost_usd: None,
            list_price_date: None,
            model: None,
            served_by: None,
            extra: Map::new(),
        }
    }
}

/// The reason for which a model stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum StopReason {
    /// The turn is complete.
    EndTurn,
    /// The turn calls tools.
    ToolCalls,
    /// The output limit was reached; the turn is incomplete.
    Length,
    /// A filter of the provider stopped the model.
    ContentFilter,
    /// Another reason, as named by the provider.
    Other(String),
}

/// A complete model turn.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Completion {
    /// The message. Its `token_usage` is zero if `usage` is `None`.
    pub message: AssistantMessage,
    /// The stop reason.
    pub stop: StopReason,
    /// Token usage; `None` if the provider reported none.
    pub usage: Option<TokenUsage>,
    /// Cost in US dollars, as reported by the provider or computed from its prices.
    pub cost_usd: Option<f64>,
    /// Date of the price list that `cost_usd` was computed from, if it was.
    pub list_price_date: Option<String>,
    /// The model that was called, unless it is the client's own.
    pub model: Option<String>,
    /// The model that answered, as named by the provider or by a fallback client.
    pub served_by: Option<String>,
}

#[cfg(test)]
mod tests;
