//! Anthropic Messages: Anthropic's own API, and servers that speak it, such as LiteLLM, aimock and
//! llama.cpp's.
//!
//! ```
//! use cantle_clients::anthropic::AnthropicClient;
//! use cantle_core::llm::LlmClient as _;
//!
//! let client = AnthropicClient::builder("claude-sonnet-4-5")
//!     .api_key("sk-ant-…")
//!     .max_output_tokens(16_000)
//!     .thinking_budget(4_000)
//!     .build()?;
//! assert_eq!(client.model().max_output_tokens, Some(16_000));
//! # Ok::<(), cantle_core::llm::LlmError>(())
//! ```
//!
//! What is said of [the endpoint and its key](crate::chat#the-endpoint-and-its-key) holds here too;
//! the key is sent as `x-api-key`.
//!
//! # What goes over the wire
//!
//! - `max_tokens`, which this API wants in every request: what was given, or 32,000. Thinking is part
//!   of it, so a [`thinking_budget`](AnthropicClientBuilder::thinking_budget) must be smaller.
//! - System messages, wherever they stand, as `system`. Neighbours of the same role are one message:
//!   all results of a turn go back together. Empty messages are left out.
//! - A turn's blocks in their order, with signed and redacted thinking as they came. Blocks that are
//!   not known here are carried as they are. Reasoning without a signature, as other dialects have
//!   it, has no place here and fails the request with
//!   [`LlmErrorKind::Unsupported`](cantle_core::llm::LlmErrorKind::Unsupported).
//! - Arguments as the model wrote them. Where they are no JSON object, as `{"INVALID_JSON": "…"}`.
//! - Images as JPEG, PNG, GIF or WebP, in the results of tools too. Other media fail the request.
//! - An id that this API does not take (another dialect's history may hold one) is rewritten, in a
//!   call and in its result alike.
//!
//! # The prompt cache
//!
//! Up to three `cache_control` marks say where a prefix ends that can be read again: behind the
//! system prompt (or the tools, where there is none), behind what the request before this one ended
//! with, and behind what this one ends with. A history that only grows is then read from the cache up
//! to its latest turn, however many blocks that turn has.

mod encode;
mod turn;
mod wire;

use cantle_core::llm::{ChatRequest, LlmError};
use cantle_core::secret::SecretText;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde::Serialize;
use serde_json::{Map, Value};

pub use self::turn::AnthropicTurn;
pub use crate::http::Timeouts;
use crate::http::{Common, Dialect, HttpClient, HttpClientBuilder, invalid};

/// A model behind an endpoint that speaks Anthropic Messages.
pub type AnthropicClient = HttpClient<Anthropic>;

/// Describes an [`AnthropicClient`].
pub type AnthropicClientBuilder = HttpClientBuilder<Anthropic>;

/// <https://docs.claude.com/en/api/versioning>
const VERSION: &str = "2023-06-01";

/// What every current model allows: <https://docs.claude.com/en/docs/about-claude/models/overview>
const MAX_TOKENS: u64 = 32_000;

/// The least that the API takes.
const LEAST_THINKING: u64 = 1024;

/// The dialect: Anthropic Messages.
#[derive(Debug)]
pub struct Anthropic {
    /// The model and the options as the beginning of a request's body.
    head: Vec<u8>,
}

/// What an [`AnthropicClientBuilder`] holds beside what all have.
#[derive(Debug, Default)]
pub struct AnthropicOptions {
    thinking_budget: Option<u64>,
}

impl AnthropicClientBuilder {
    /// Has the model think first, with up to so many tokens of the output limit. At least 1024, and
    /// less than the limit. Models that set their own measure are told by
    /// [`extra`](Self::extra) instead: `{"thinking": {"type": "adaptive"}}`.
    #[must_use]
    pub fn thinking_budget(mut self, tokens: u64) -> Self {
        self.options.thinking_budget = Some(tokens);
        self
    }
}

impl Dialect for Anthropic {
    const CLIENT: &'static str = "AnthropicClient";
    const PATH: &'static str = "/messages";
    const ANSWER: &'static str = "a message";
    const BASE_URL: &'static str = "https://api.anthropic.com/v1";
    const OWNED: &'static [&'static str] = &[
        "max_tokens",
        "messages",
        "model",
        "stream",
        "system",
        "tools",
    ];
    type Options = AnthropicOptions;
    type Turn = AnthropicTurn;

    fn new(options: AnthropicOptions, common: &Common<'_>) -> Result<Self, LlmError> {
        let most = common.context_window.unwrap_or(MAX_TOKENS);
        let max_tokens = common.max_output_tokens.unwrap_or(MAX_TOKENS.min(most));
        let thinking = match options.thinking_budget {
            Some(_) if common.extra.contains_key("thinking") => {
                return Err(invalid(
                    "thinking is set twice: as a budget and as an extra parameter",
                ));
            }
            Some(tokens) if tokens < LEAST_THINKING || tokens >= max_tokens => {
                return Err(invalid(format!(
                    "the budget for thinking ({tokens} tokens) must be at least {LEAST_THINKING} and \
                     less than the output limit ({max_tokens}), which it is a part of"
                )));
            }
            Some(budget_tokens) => Some(Thinking {
                r#type: "enabled",
                budget_tokens,
            }),
            None => None,
        };
        let head = Head {
            model: common.model,
            max_tokens,
            stream: common.stream,
            thinking,
            extra: common.extra,
        };
        let mut head = serde_json::to_vec(&head).map_err(|error| {
            invalid("the parameters can't be written as JSON").with_source(error)
        })?;
        // The messages follow in the same object.
        head.pop();
        Ok(Self { head })
    }

    fn headers(&self) -> HeaderMap {
        let version = HeaderValue::from_static(VERSION);
        HeaderMap::from_iter([(HeaderName::from_static("anthropic-version"), version)])
    }

    fn authorization(&self, key: &SecretText) -> (&'static str, String) {
        ("x-api-key", key.expose().to_owned())
    }

    fn body(&self, request: &ChatRequest) -> Result<Vec<u8>, LlmError> {
        encode::body(&self.head, request)
    }
}

/// The part of a request that is the same for all of a client's calls.
#[derive(Serialize)]
struct Head<'a> {
    model: &'a str,
    max_tokens: u64,
    stream: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    thinking: Option<Thinking>,
    #[serde(flatten)]
    extra: &'a Map<String, Value>,
}

#[derive(Serialize)]
struct Thinking {
    r#type: &'static str,
    budget_tokens: u64,
}
