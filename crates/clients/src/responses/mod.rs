//! OpenAI Responses, and servers that speak it, such as LiteLLM, vLLM and llama.cpp's.
//!
//! ```
//! use cantle_clients::responses::ResponsesClient;
//! use cantle_core::llm::LlmClient as _;
//!
//! let client = ResponsesClient::builder("gpt-5")
//!     .api_key("sk-…")
//!     .reasoning_effort("high")
//!     .build()?;
//! assert_eq!(client.model().slug, "gpt-5");
//! # Ok::<(), cantle_core::llm::LlmError>(())
//! ```
//!
//! [The endpoint and its key](crate::chat#the-endpoint-and-its-key) are handled as for Chat Completions.
//!
//! # Conversation state
//!
//! **Stateless**, the default: every request contains the whole conversation, and the provider stores
//! nothing (`store: false`). Encrypted reasoning is requested and sent back unchanged; after a model
//! rejects this once, it is not requested again.
//!
//! **[Stateful](ResponsesClientBuilder::stateful)**: the provider stores the conversation. A request
//! contains the latest
//! [`provider_response_id`](cantle_core::message::AssistantMessage::provider_response_id) and the messages
//! after that turn. If the provider no longer knows the id (it keeps them for 30 days), the whole
//! conversation is sent instead, once; this fails if it contains reasoning that only the provider has.
//!
//! # What goes over the wire
//!
//! - Items in order, each block as the item that it came from. Adjacent texts are one message. Unknown
//!   items are kept verbatim.
//! - Tool call arguments verbatim, or as `{"INVALID_JSON": "…"}` if they are not a JSON object.
//! - The phase of an OpenAI message (`commentary`, `final_answer`) is kept as the
//!   [signature](cantle_core::message::AssistantBlock::Text) of its text.
//! - Tool schemas unchanged, and without strict mode unless it is
//!   [enabled](ResponsesClientBuilder::strict_tools).
//! - Images, in tool results too. Other media and signed reasoning of other dialects fail the request.
//!   Unsigned reasoning, and reasoning at the end of a turn, is not sent.

mod encode;
mod turn;
mod wire;

use std::sync::atomic::{AtomicBool, Ordering};

use cantle_core::llm::{ChatRequest, LlmError, LlmErrorKind};
use serde_json::json;

use self::encode::ConversationMode;
use self::turn::ResponsesAssembler;
pub use crate::http::Timeouts;
use crate::http::{ClientSettings, HttpClient, HttpClientBuilder, WireProtocol};

/// A model behind an endpoint that speaks Responses.
pub type ResponsesClient = HttpClient<Responses>;

/// Builder of a [`ResponsesClient`].
pub type ResponsesClientBuilder = HttpClientBuilder<Responses>;

/// The OpenAI Responses dialect.
#[derive(Debug)]
pub struct Responses {
    /// Start of every request body: a JSON object without its closing brace.
    params: Vec<u8>,
    stateful: bool,
    strict_tools: bool,
    /// Whether the model rejected encrypted reasoning.
    unencrypted: AtomicBool,
}

/// Options of a [`ResponsesClientBuilder`].
#[derive(Debug, Default)]
pub struct ResponsesOptions {
    stateful: bool,
    strict_tools: bool,
}

impl ResponsesClientBuilder {
    /// Sets whether to use strict mode for tools; off by default.
    ///
    /// It applies to schemas that qualify: every object must be closed and require all of its
    /// properties. Schemas are never changed.
    pub fn strict_tools(mut self, strict: bool) -> Self {
        self.options.strict_tools = strict;
        self
    }

    /// Sets whether the provider stores the conversation; off by default.
    pub fn stateful(mut self, stateful: bool) -> Self {
        self.options.stateful = stateful;
        self
    }
}

impl WireProtocol for Responses {
    const CLIENT: &'static str = "ResponsesClient";
    const PATH: &'static str = "/responses";
    const RESPONSE: &'static str = "a response";
    const BASE_URL: &'static str = "https://api.openai.com/v1";
    const RESERVED: &'static [&'static str] = &[
        "background",
        "conversation",
        "include",
        "input",
        "instructions",
        "max_output_tokens",
        "model",
        "previous_response_id",
        "store",
        "stream",
        "tools",
    ];
    type Options = ResponsesOptions;
    type Assembler = ResponsesAssembler;

    fn new(options: ResponsesOptions, settings: &ClientSettings) -> Result<Self, LlmError> {
        let effort = settings.reasoning_effort.as_deref();
        let effort = effort.map(|it| ("reasoning effort", "reasoning", json!({"effort": it})));
        let store = Some(("store", options.stateful.into()));
        let limit = settings.max_output_tokens;
        let limit = limit.map(|tokens| ("max_output_tokens", tokens.into()));
        Ok(Self {
            params: settings.encode([store, limit], [effort])?,
            stateful: options.stateful,
            strict_tools: options.strict_tools,
            unencrypted: AtomicBool::new(false),
        })
    }

    fn assembler(&self) -> ResponsesAssembler {
        ResponsesAssembler::new(self.stateful)
    }

    fn body(&self, request: &ChatRequest) -> Result<Vec<u8>, LlmError> {
        let mode = if self.stateful {
            ConversationMode::Stateful
        } else {
            ConversationMode::Stateless
        };
        self.encode(request, mode)
    }

    fn fallback_body(
        &self,
        request: &ChatRequest,
        error: &LlmError,
    ) -> Option<Result<Vec<u8>, LlmError>> {
        if error.kind() != LlmErrorKind::InvalidRequest && error.kind() != LlmErrorKind::NotFound {
            return None;
        }
        let message = error.to_string().to_ascii_lowercase();
        if message.contains("previous response") && message.contains("not found") {
            let is_continuation =
                self.stateful && encode::stored_prefix(&request.messages).is_some();
            return is_continuation.then(|| self.encode(request, ConversationMode::Stateless));
        }
        if !message.contains("encrypted content is not supported") {
            return None;
        }
        // Another session may have set it already, after this request was encoded.
        self.unencrypted.store(true, Ordering::Relaxed);
        Some(self.body(request))
    }
}

impl Responses {
    fn encode(&self, request: &ChatRequest, mode: ConversationMode) -> Result<Vec<u8>, LlmError> {
        let encrypted = !self.unencrypted.load(Ordering::Relaxed);
        encode::body(&self.params, request, mode, encrypted, self.strict_tools)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use cantle_core::llm::{ChatRequest, LlmError, LlmErrorKind, ToolSpecs};
    use cantle_core::message::Message;
    use serde_json::Value;

    use super::Responses;
    use crate::http::WireProtocol as _;

    #[test]
    fn every_session_falls_back_to_unencrypted_reasoning() {
        let dialect = Responses {
            params: br#"{"model":"m""#.to_vec(),
            stateful: false,
            strict_tools: false,
            unencrypted: AtomicBool::new(false),
        };
        let request = ChatRequest::new(vec![Message::user("Hi").into()], ToolSpecs::default());
        let message = "Encrypted content is not supported with this model.";
        let error = LlmError::new(LlmErrorKind::InvalidRequest, message);
        // The first requests of both sessions were sent before either was rejected.
        for session in 0..2 {
            let body = dialect.fallback_body(&request, &error);
            let body = body.expect("a fallback").unwrap();
            let body: Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(body.get("include"), None, "session {session}");
        }
    }
}
