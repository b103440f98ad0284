//! The model: what a client of one must do.
//!
//! [`LlmClient::stream`] is the one way to call a model; [`LlmClientExt::complete`] folds the
//! stream, so streaming and not streaming are one code path and give identical messages. Retry,
//! rate limit, recording and prices are *wrappers*: each is an [`LlmClient`] around another.

mod error;
mod model;
mod request;

use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use async_trait::async_trait;
use futures_core::Stream;
use futures_util::StreamExt as _;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use self::error::{LlmError, LlmErrorKind};
pub use self::model::{Abilities, ModelInfo, Prices};
pub use self::request::{ChatRequest, ToolSpecs};
use crate::message::{AssistantBlock, AssistantMessage};
use crate::usage::TokenUsage;

/// The events of one model call, in order; see [`ChatEvent`].
pub type ChatStream = Pin<Box<dyn Stream<Item = Result<ChatEvent, LlmError>> + Send + 'static>>;

/// Turns messages and tool specs into the model's next turn.
///
/// A client is configuration: cheap to share, safe to use by a thousand sessions at once, without
/// any state of a conversation (encoded messages are kept [beside the
/// message](crate::message::EncodedForms)).
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a model client",
    note = "implement `LlmClient` from `cantle_core::llm`, or wrap it in an `Arc`"
)]
pub trait LlmClient: fmt::Debug + Send + Sync + 'static {
    /// The model behind this client.
    fn model(&self) -> &ModelInfo;

    /// Starts a call. Nothing happens until the stream is polled, and dropping it ends the call.
    ///
    /// The stream holds what it needs of the request and the client, so that it can outlive both.
    /// Its last item is [`ChatEvent::Finished`] or an error; a stream that ends without either is
    /// a defect that callers report as [`LlmErrorKind::Protocol`].
    fn stream(&self, request: ChatRequest) -> ChatStream;
}

/// What every client can do on top of [`LlmClient::stream`].
#[async_trait]
pub trait LlmClientExt: LlmClient + sealed::Sealed {
    /// Runs a call to its end.
    ///
    /// # Errors
    /// The stream's error, or [`LlmErrorKind::Protocol`] where it ends without saying how.
    async fn complete(&self, request: ChatRequest) -> Result<Completion, LlmError> {
        let mut stream = self.stream(request);
        let mut fold = Fold::default();
        while let Some(event) = stream.next().await {
            if let Some(completion) = fold.push(event?) {
                return Ok(completion);
            }
        }
        Err(LlmError::protocol(
            "the stream ended without saying how the turn ended",
        ))
    }
}

#[async_trait]
impl<C: LlmClient + ?Sized> LlmClientExt for C {}

mod sealed {
    pub trait Sealed {}
    impl<C: super::LlmClient + ?Sized> Sealed for C {}
}

impl<C: LlmClient + ?Sized> LlmClient for std::sync::Arc<C> {
    fn model(&self) -> &ModelInfo {
        (**self).model()
    }

    fn stream(&self, request: ChatRequest) -> ChatStream {
        (**self).stream(request)
    }
}

/// Folds the events of one call into its [`Completion`].
#[derive(Debug, Default)]
pub struct Fold {
    blocks: Vec<AssistantBlock>,
}

impl Fold {
    /// Takes one event; returns the completion when it was the last one.
    pub fn push(&mut self, event: ChatEvent) -> Option<Completion> {
        match event {
            ChatEvent::Block(block) => self.blocks.push(block),
            ChatEvent::Finished(end) => {
                let mut blocks = std::mem::take(&mut self.blocks);
                // The message stays for the whole run; most have one or two blocks.
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
                    served_by: end.served_by,
                });
            }
            ChatEvent::TextDelta(_)
            | ChatEvent::ReasoningDelta(_)
            | ChatEvent::ToolCallDelta { .. }
            | ChatEvent::Retrying { .. } => {}
        }
        None
    }
}

/// One thing that happened in a model call.
///
/// Deltas are for people who watch; the whole blocks follow as [`ChatEvent::Block`] in the order
/// the model produced them, and are all that counts. A client that doesn't stream sends no deltas.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ChatEvent {
    /// A piece of answer text.
    TextDelta(String),
    /// A piece of visible reasoning.
    ReasoningDelta(String),
    /// A piece of a tool call's arguments.
    ToolCallDelta {
        /// Which call of this turn, counted from 0.
        index: usize,
        /// The tool's name, in the first piece.
        name: Option<String>,
        /// A piece of the arguments' JSON text; may be empty.
        arguments: String,
    },
    /// A whole block of the turn.
    Block(AssistantBlock),
    /// The call failed before anything came and is tried again. Only before the first other event.
    Retrying {
        /// Which attempt comes next, counted from 1; the first retry is attempt 2.
        attempt: u32,
        /// How long is waited before it.
        after: Duration,
        /// Why the last attempt failed, for people.
        reason: String,
    },
    /// The turn is complete. Always the last event.
    Finished(TurnEnd),
}

/// How a turn ended.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TurnEnd {
    /// Why the model stopped.
    pub stop: StopReason,
    /// Tokens used; `None` where the provider did not say.
    pub usage: Option<TokenUsage>,
    /// The provider's name for the response, where it can continue from it.
    pub response_id: Option<String>,
    /// What it cost, in US dollars: what the provider said, else what its tokens come to.
    pub cost_usd: Option<f64>,
    /// The model that answered, in the provider's words, or a fall-back's; `None` where nobody said.
    pub served_by: Option<String>,
    /// What was asked for and came with the answer besides, such as `logprobs`, in the provider's
    /// form. It becomes [metadata](AssistantMessage::metadata) of the message.
    pub extra: Map<String, Value>,
}

impl TurnEnd {
    /// An end with this reason and usage.
    #[must_use]
    pub fn new(stop: StopReason, usage: Option<TokenUsage>) -> Self {
        Self {
            stop,
            usage,
            response_id: None,
            cost_usd: None,
            served_by: None,
            extra: Map::new(),
        }
    }
}

/// Why a model stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum StopReason {
    /// It was done.
    EndTurn,
    /// It wants tools to run.
    ToolCalls,
    /// It reached the output limit; the turn is incomplete.
    Length,
    /// A filter of the provider stopped it.
    ContentFilter,
    /// Something else, in the provider's words.
    Other(String),
}

/// A whole model turn.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Completion {
    /// The turn. Its `token_usage` is zero where `usage` is `None`.
    pub message: AssistantMessage,
    /// Why the model stopped.
    pub stop: StopReason,
    /// Tokens used; `None` where the provider did not say.
    pub usage: Option<TokenUsage>,
    /// What it cost, in US dollars: what the provider said, else what its tokens come to.
    pub cost_usd: Option<f64>,
    /// The model that answered, in the provider's words, or a fall-back's; `None` where nobody said.
    pub served_by: Option<String>,
}

#[cfg(test)]
mod tests;
