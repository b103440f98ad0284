//! OpenAI Chat Completions, and the many servers that speak it: vLLM, llama.cpp, Ollama, OpenRouter,
//! LiteLLM, Azure.
//!
//! [`ChatClient`] calls one model at one endpoint. It keeps no conversation state, and reads nothing
//! from the environment except certificate and proxy settings.
//!
//! ```
//! use cantle_clients::chat::ChatClient;
//! use cantle_core::llm::LlmClient as _;
//!
//! let client = ChatClient::builder("qwen3-coder")
//!     .base_url("http://localhost:8000/v1")
//!     .context_window(128_000)
//!     .max_output_tokens(8_000)
//!     .build()?;
//! assert_eq!(client.model().context_window, Some(128_000));
//! # Ok::<(), cantle_core::llm::LlmError>(())
//! ```
//!
//! # The endpoint and its key
//!
//! The key is sent only to the configured base URL: redirects are not followed, and no error, source
//! or `Debug` text contains it, even if the server repeats it. An `http` URL sends it in clear text,
//! which is allowed for loopback and trusted networks. The proxy in `HTTPS_PROXY`, `HTTP_PROXY` or
//! `ALL_PROXY` is used, except for loopback addresses and hosts in `NO_PROXY`; `https` traffic is
//! tunnelled through it.
//!
//! Connections use HTTP/1.1 and are kept open between calls. TLS is not initialized for `http` URLs.
//!
//! # What goes over the wire
//!
//! Servers that speak this dialect differ; [`Server`] selects the variant, and is detected from the base
//! URL if possible. In general:
//!
//! - Text content is sent as one text part, empty content as `""`. Images are data URLs
//!   (`image_url`), audio is `input_audio`, and the format of video depends on the server.
//! - Reasoning is read from `reasoning_content`, `reasoning`, `thinking_blocks` and
//!   `reasoning_details`, and sent back in the field that the server reads. The signature of a tool
//!   call is read and sent as LiteLLM's `provider_specific_fields` or Gemini's `extra_content`.
//!   Calls of other models get the signature that Gemini documents for them.
//! - `reasoning_details` are kept as an
//!   [opaque block](cantle_core::message::AssistantBlock::Opaque) beside the reasoning that they repeat.
//! - A tool without parameters has no `parameters`. Schemas are sent unchanged, and without strict mode
//!   unless it is [enabled](ChatClientBuilder::strict_tools).
//! - The arguments of a tool call are sent back verbatim, or as `{"INVALID_JSON": "…"}` if they are not a JSON
//!   object, because many servers parse them.
//! - The name of a tool call is sent back with `_` for characters that some servers refuse.
//! - A tool call without an id is sent back with a generated one, because here the id only links a call
//!   to its result.
//! - A block that the server does not support fails the request with [`LlmErrorKind::Unsupported`].
//!   Unsigned reasoning is left out if the server has no field for it.
//! - Log probabilities, if requested by extra parameters, are returned as `logprobs` in
//!   [`TurnEnd::extra`](cantle_core::llm::TurnEnd::extra).
//! - Every streamed request asks for usage, except from Mistral, which reports it anyway; if the server does
//!   not report it, the turn has none.
//! - Requests to Mistral have a random `prompt_cache_key` for each client, unless extra parameters set one.
//! - Requests for Anthropic models behind OpenRouter or LiteLLM have cache marks, as in Anthropic's own
//!   dialect.
//! - After an Anthropic model has rejected the signature of earlier thinking, for example because a conversation
//!   continues with other tools, the request is sent again without the reasoning of earlier turns.
//! - If the server counts the output limit against the context window (vLLM), the limit is reduced to
//!   the remaining tokens.
//!
//! A server may answer a request for a stream with a complete body.

mod content;
mod encode;
mod server;
mod turn;
mod wire;

use cantle_core::llm::{ChatRequest, LlmError, LlmErrorKind};
use cantle_core::secret::SecretText;
use serde_json::json;

use self::encode::ChatEncoder;
pub use self::server::Server;
use self::turn::ChatAssembler;
pub use crate::http::Timeouts;
use crate::http::{
    ClientSettings, HttpClient, HttpClientBuilder, OutputLimit, WireProtocol, bearer_token,
};

/// A model behind an endpoint that speaks Chat Completions.
pub type ChatClient = HttpClient<Chat>;

/// Builder of a [`ChatClient`].
pub type ChatClientBuilder = HttpClientBuilder<Chat>;

/// The Chat Completions dialect.
#[derive(Debug)]
pub struct Chat {
    /// Start of every request body: a JSON object without its closing brace.
    params: Vec<u8>,
    encoder: ChatEncoder,
    server: Server,
    /// Output limit that depends on the length of the conversation.
    output_limit: Option<OutputLimit>,
}

/// Options of a [`ChatClientBuilder`].
#[derive(Debug, Default)]
pub struct ChatOptions {
    server: Option<Server>,
    strict_tools: bool,
}

impl ChatClientBuilder {
    /// Sets the server type, if the base URL does not reveal it; see [`Server::at`].
    pub fn server(mut self, server: Server) -> Self {
        self.options.server = Some(server);
        self
    }

    /// Sets whether to use strict mode for tools; off by default.
    ///
    /// It applies if the server supports it and the schema qualifies: every object must be closed and
    /// require all of its properties. Schemas are never changed.
    pub fn strict_tools(mut self, strict: bool) -> Self {
        self.options.strict_tools = strict;
        self
    }
}

impl WireProtocol for Chat {
    const CLIENT: &'static str = "ChatClient";
    const PATH: &'static str = "/chat/completions";
    const RESPONSE: &'static str = "a chat completion";
    const BASE_URL: &'static str = "https://api.openai.com/v1";
    const RESERVED: &'static [&'static str] = &[
        "max_completion_tokens",
        "messages",
        "model",
        "n",
        "stream",
        "stream_options",
        "tool_choice",
        "tools",
    ];
    type Options = ChatOptions;
    type Assembler = ChatAssembler;

    fn new(options: ChatOptions, settings: &ClientSettings) -> Result<Self, LlmError> {
        let server = options
            .server
            .unwrap_or_else(|| Server::at(&settings.base_url));
        let quirks = server.quirks();
        let output_limit =
            OutputLimit::new(settings).filter(|_| quirks.limit_counts_against_window);
        let limit = settings
            .max_output_tokens
            .filter(|_| output_limit.is_none());
        let limit = limit.map(|tokens| ("output limit", quirks.token_limit, tokens.into()));
        let effort = settings.reasoning_effort.as_deref().map(|effort| {
            let (name, value) = match server {
                // https://openrouter.ai/docs/use-cases/reasoning-tokens
                Server::OpenRouter => ("reasoning", json!({"effort": effort})),
                _ => ("reasoning_effort", effort.into()),
            };
            ("reasoning effort", name, value)
        });
        // Mistral refuses `stream_options` and reports usage without them. It caches prompts only with a key.
        // https://docs.mistral.ai/studio-api/conversations/advanced/prompt-caching
        let is_mistral = server == Server::Mistral;
        let stream_options = || ("stream_options", json!({"include_usage": true}));
        let stream_options = (settings.stream && !is_mistral).then(stream_options);
        let cache_key = || {
            let key = format!("cantle-{:016x}", fastrand::u64(..));
            ("prompt_cache_key", key.into())
        };
        let cache_key = is_mistral.then(cache_key);
        Ok(Self {
            params: settings.encode([stream_options, cache_key], [limit, effort])?,
            encoder: ChatEncoder::new(server, &settings.model, options.strict_tools),
            server,
            output_limit,
        })
    }

    fn authorization(&self, key: &SecretText) -> (&'static str, String) {
        match self.server {
            Server::Azure => ("api-key", key.expose().to_owned()),
            _ => bearer_token(key),
        }
    }

    fn reports_cost(&self) -> Option<bool> {
        match self.server {
            Server::OpenRouter | Server::LiteLlm => Some(true),
            Server::Unknown => None,
            _ => Some(false),
        }
    }

    fn body(&self, request: &ChatRequest) -> Result<Vec<u8>, LlmError> {
        self.encode(self.encoder, request)
    }

    fn fallback_body(
        &self,
        request: &ChatRequest,
        error: &LlmError,
    ) -> Option<Result<Vec<u8>, LlmError>> {
        is_thinking_rejected(error).then(|| self.encode(self.encoder.without_reasoning(), request))
    }
}

impl Chat {
    fn encode(&self, encoder: ChatEncoder, request: &ChatRequest) -> Result<Vec<u8>, LlmError> {
        let limit = self
            .output_limit
            .map(|limit| limit.for_messages(&request.messages));
        encoder.body(&self.params, request, limit)
    }
}

/// Returns whether an Anthropic model rejected the signature of earlier thinking: something before it has changed, or
/// a router sent the request to a provider that cannot verify it. All thinking must then be left out, because each
/// block also depends on those before it.
/// <https://platform.claude.com/docs/en/build-with-claude/preserved-thinking/prefix-checks>
fn is_thinking_rejected(error: &LlmError) -> bool {
    let message = error.to_string();
    let is_in_message = |word: &str| message.contains(word);
    error.kind() == LlmErrorKind::InvalidRequest
        && ["Invalid", "signature", "thinking"]
            .into_iter()
            .all(is_in_message)
}
