//! The interface between the HTTP client and the dialects.

use std::collections::VecDeque;
use std::fmt;
use std::ops::ControlFlow;

use cantle_core::llm::{ChatEvent, ChatRequest, LlmError, LlmErrorKind, TurnEnd};
use cantle_core::message::{AssistantBlock, ToolCallIds};
use cantle_core::secret::SecretText;
use cantle_core::usage::TokenUsage;
use reqwest::header::HeaderMap;

use super::errors::ErrorContext;
use super::settings::{ClientSettings, invalid};
use crate::sse::Event;

/// A wire dialect of a model provider.
///
/// This trait is sealed: the dialects are [`Chat`](crate::chat::Chat),
/// [`Responses`](crate::responses::Responses) and [`Anthropic`](crate::anthropic::Anthropic). A client
/// for another protocol implements [`LlmClient`](cantle_core::llm::LlmClient).
pub trait Dialect: WireProtocol {}

impl<P: WireProtocol> Dialect for P {}

/// Endpoint, request format and response format of a dialect.
pub trait WireProtocol: fmt::Debug + Send + Sync + Sized + 'static {
    /// Name of the client type, for `Debug`.
    const CLIENT: &'static str;
    /// Path that is appended to the base URL, with a leading slash.
    const PATH: &'static str;
    /// Name of a response with its article, for error messages.
    const RESPONSE: &'static str;
    /// Default base URL.
    const BASE_URL: &'static str;
    /// Request parameters that the client sets itself.
    const RESERVED: &'static [&'static str];
    /// Dialect-specific builder options.
    type Options: Default + Send;
    /// Parser of one response.
    type Assembler: TurnAssembler;

    /// Validates the options.
    fn new(options: Self::Options, settings: &ClientSettings) -> Result<Self, LlmError>;

    /// Returns the dialect's headers of the next request, except authorization.
    fn headers(&self) -> HeaderMap {
        HeaderMap::new()
    }

    /// Returns the name and the value of the authorization header.
    fn authorization(&self, key: &SecretText) -> (&'static str, String) {
        bearer_token(key)
    }

    /// Returns whether responses contain their cost, if known.
    fn reports_cost(&self) -> Option<bool> {
        None
    }

    /// Creates the parser of one response.
    fn assembler(&self) -> Self::Assembler {
        Self::Assembler::default()
    }

    /// Encodes a request.
    ///
    /// Fails with [`LlmErrorKind::Unsupported`] if the dialect cannot represent a message.
    fn body(&self, request: &ChatRequest) -> Result<Vec<u8>, LlmError>;

    /// Encodes an alternative request if the first one failed because of an optional feature.
    fn fallback_body(
        &self,
        request: &ChatRequest,
        error: &LlmError,
    ) -> Option<Result<Vec<u8>, LlmError>>;
}

/// Assembles an assistant turn from a complete response body or from a stream of events.
///
/// Both ways give the same turn.
pub trait TurnAssembler: Default + Send {
    /// Reads a complete response body.
    fn read_body(
        &mut self,
        errors: &ErrorContext,
        headers: &HeaderMap,
        body: &[u8],
    ) -> Result<(), LlmError>;

    /// Reads one event with data, appends its deltas to `deltas` and breaks after the last event.
    fn read_event(
        &mut self,
        errors: &ErrorContext,
        event: &Event<'_>,
        deltas: &mut VecDeque<ChatEvent>,
    ) -> Result<ControlFlow<()>, LlmError>;

    /// Returns the usage that was reported so far.
    fn usage(&self) -> Option<TokenUsage>;

    /// Returns the blocks of the turn and its end, in which the model is that of the body.
    ///
    /// Fails with [`LlmErrorKind::Interrupted`] if the response is incomplete.
    fn into_turn(self) -> Result<(Vec<AssistantBlock>, TurnEnd), LlmError>;

    /// Returns the complete blocks, followed by [`ChatEvent::Finished`].
    ///
    /// Fails with [`LlmErrorKind::Interrupted`] and the usage so far if the response is incomplete.
    fn finish(self, headers: &HeaderMap) -> Result<Vec<ChatEvent>, LlmError> {
        let usage = self.usage();
        let turn = self.into_turn();
        let (mut blocks, mut end) = turn.map_err(|error| error.with_usage(usage))?;
        let mut ids = ToolCallIds::default();
        for block in &mut blocks {
            match block {
                AssistantBlock::ToolCall(call) => ids.make_unique(call),
                // Reasoning without a signature cannot be sent back.
                AssistantBlock::SignedReasoning { signature, content } if signature.is_empty() => {
                    let content = std::mem::take(content);
                    *block = AssistantBlock::Reasoning { content };
                }
                _ => {}
            }
        }
        // LiteLLM's body repeats the requested name; its header has that of the model that answered.
        let header = headers.get("x-litellm-model-name");
        let header = header.and_then(|name| Some(name.to_str().ok()?.to_owned()));
        end.served_by = header.or(end.served_by).filter(|model| !model.is_empty());
        let blocks = blocks.into_iter().map(ChatEvent::Block);
        Ok(blocks.chain([ChatEvent::Finished(end)]).collect())
    }
}

/// Returns the name and the value of the authorization header of most providers.
pub(crate) fn bearer_token(key: &SecretText) -> (&'static str, String) {
    ("authorization", format!("Bearer {}", key.expose()))
}

/// Wraps the error of encoding a message, which only a non-finite number or a non-string key causes.
pub(crate) fn unencodable(error: serde_json::Error) -> LlmError {
    invalid("failed to encode a message as JSON").with_source(error)
}

/// Returns the error for a response that ended before its last event.
pub(crate) fn incomplete_response() -> LlmError {
    let message = "the response ended without a stop reason";
    LlmError::new(LlmErrorKind::Interrupted, message)
}
