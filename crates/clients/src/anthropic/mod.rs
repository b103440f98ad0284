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
//! [The endpoint and its key](crate::chat#the-endpoint-and-its-key) are handled as for Chat Completions;
//! the key is sent as `x-api-key`.
//!
//! # What goes over the wire
//!
//! - `max_tokens`, which this API requires: the configured limit; by default 64,000 for Claude since 4.6, and
//!   32,000 for other models. It includes thinking, so a
//!   [`thinking_budget`](AnthropicClientBuilder::thinking_budget) must be smaller.
//! - All system messages as `system`. Adjacent messages of the same role are merged, so that all results
//!   of a turn are one message. Empty messages are left out.
//! - Assistant blocks in order, with signed and redacted thinking unchanged. Unknown blocks are kept
//!   verbatim. Unsigned reasoning, thinking at the end of a message and blank texts are left out.
//! - Tool call arguments verbatim, or as `{"INVALID_JSON": "…"}` if they are not a JSON object.
//! - Images as JPEG, PNG, GIF or WebP, in tool results too; a failed result with images says in words that the
//!   tool failed, because the API refuses both together. Other media fail the request.
//! - Call ids from other dialects that this API rejects are rewritten, in calls and results alike.
//! - After the API has once rejected thinking because something before it changed, for example the tools
//!   of a resumed session, the client asks the API to drop such thinking.
//!
//! # The prompt cache
//!
//! Up to three `cache_control` marks delimit reusable prefixes: after the system prompt (or the tools, if
//! there is none), after the end of the previous request, and after the end of this one. While the
//! history only grows, it is read from the cache up to its latest turn.

mod encode;
mod turn;
mod wire;

use std::sync::atomic::{AtomicBool, Ordering};

use cantle_core::llm::{ChatRequest, LlmError, LlmErrorKind};
use cantle_core::secret::SecretText;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Map, Value, json};

use self::turn::AnthropicAssembler;
pub use crate::http::Timeouts;
use crate::http::{
    ClientSettings, HttpClient, HttpClientBuilder, WireProtocol, invalid, unencodable,
};

/// A model behind an endpoint that speaks Anthropic Messages.
pub type AnthropicClient = HttpClient<Anthropic>;

/// Builder of an [`AnthropicClient`].
pub type AnthropicClientBuilder = HttpClientBuilder<Anthropic>;

/// <https://docs.claude.com/en/api/versioning>
const VERSION: &str = "2023-06-01";

/// Output limit that every current model supports: <https://docs.claude.com/en/docs/about-claude/models/overview>
pub const DEFAULT_MAX_TOKENS: u32 = 32_000;

/// The same for Claude since 4.6, where it includes the thinking that most of these models always do.
const DEFAULT_MAX_THINKING_TOKENS: u64 = 64_000;

/// Minimum thinking budget of the API.
const MIN_THINKING_TOKENS: u64 = 1024;

/// Beta feature that [`drop_foreign_thinking`] belongs to.
const THINKING_BINDING_BETA: &str = "thinking-binding-controls-2026-08-01";

/// The Anthropic Messages dialect.
#[derive(Debug)]
pub struct Anthropic {
    /// Start of every request body: a JSON object without its closing brace.
    params: Vec<u8>,
    /// Whether the API rejected thinking that is bound to another conversation.
    drops_thinking: AtomicBool,
}

/// Options of an [`AnthropicClientBuilder`].
#[derive(Debug, Default)]
pub struct AnthropicOptions {
    thinking_budget: Option<u64>,
}

impl AnthropicClientBuilder {
    /// Enables thinking with a maximum number of tokens: at least 1024, and less than the output limit.
    ///
    /// For models with adaptive thinking, set the [reasoning effort](Self::reasoning_effort) instead.
    pub fn thinking_budget(mut self, tokens: u64) -> Self {
        self.options.thinking_budget = Some(tokens);
        self
    }
}

impl WireProtocol for Anthropic {
    const CLIENT: &'static str = "AnthropicClient";
    const PATH: &'static str = "/messages";
    const RESPONSE: &'static str = "a message";
    const BASE_URL: &'static str = "https://api.anthropic.com/v1";
    const RESERVED: &'static [&'static str] = &[
        "max_tokens",
        "messages",
        "model",
        "stream",
        "system",
        "tools",
    ];
    type Options = AnthropicOptions;
    type Assembler = AnthropicAssembler;

    fn new(options: AnthropicOptions, settings: &ClientSettings) -> Result<Self, LlmError> {
        let is_adaptive = has_adaptive_thinking(&settings.model);
        let default_limit = match is_adaptive && settings.model.contains("claude") {
            true => DEFAULT_MAX_THINKING_TOKENS,
            false => DEFAULT_MAX_TOKENS.into(),
        };
        let window = settings.context_window.unwrap_or(default_limit);
        let max_tokens = settings
            .max_output_tokens
            .unwrap_or(default_limit.min(window));
        let budget = match options.thinking_budget {
            Some(tokens) if tokens < MIN_THINKING_TOKENS || tokens >= max_tokens => {
                return Err(invalid(format!(
                    "the thinking budget ({tokens} tokens) must be at least {MIN_THINKING_TOKENS} and less \
                     than the output limit ({max_tokens}), which includes it"
                )));
            }
            budget => budget,
        };
        let mut thinking = budget.map(|tokens| json!({"type": "enabled", "budget_tokens": tokens}));
        let mut effort = None;
        if let Some(level) = &settings.reasoning_effort {
            let value = || {
                (
                    "reasoning effort",
                    "output_config",
                    json!({"effort": level}),
                )
            };
            effort = is_adaptive.then(value);
            let is_set = thinking.is_some() || settings.extra.contains_key("thinking");
            if !is_adaptive {
                thinking = thinking.or(Some(thinking_for_effort(level, max_tokens)?));
            } else if !is_set {
                thinking = Some(json!({"type": "adaptive"}));
            }
        }
        let thinking = thinking.map(|value| ("thinking", "thinking", value));
        let max_tokens = Some(("max_tokens", max_tokens.into()));
        Ok(Self {
            params: settings.encode([max_tokens], [thinking, effort])?,
            drops_thinking: AtomicBool::new(false),
        })
    }

    fn headers(&self) -> HeaderMap {
        let header = |name, value| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )
        };
        let version = header("anthropic-version", VERSION);
        let drops_thinking = self.drops_thinking.load(Ordering::Relaxed);
        let beta = drops_thinking.then(|| header("anthropic-beta", THINKING_BINDING_BETA));
        HeaderMap::from_iter([version].into_iter().chain(beta))
    }

    fn authorization(&self, key: &SecretText) -> (&'static str, String) {
        ("x-api-key", key.expose().to_owned())
    }

    fn body(&self, request: &ChatRequest) -> Result<Vec<u8>, LlmError> {
        if self.drops_thinking.load(Ordering::Relaxed) {
            return encode::body(&drop_foreign_thinking(&self.params)?, request);
        }
        encode::body(&self.params, request)
    }

    fn fallback_body(
        &self,
        request: &ChatRequest,
        error: &LlmError,
    ) -> Option<Result<Vec<u8>, LlmError>> {
        let is_foreign = error.kind() == LlmErrorKind::InvalidRequest
            && error
                .to_string()
                .contains("bound to a different conversation");
        is_foreign.then(|| {
            self.drops_thinking.store(true, Ordering::Relaxed);
            self.body(request)
        })
    }
}

/// Adds to `params` that the API drops thinking before which the conversation has changed. By default, it
/// rejects the request. A conversation changes if old images are removed from it, or if it continues with other
/// tools or another system prompt.
/// <https://platform.claude.com/docs/en/build-with-claude/preserved-thinking/fix-bound-to-a-different-conversation>
fn drop_foreign_thinking(params: &[u8]) -> Result<Vec<u8>, LlmError> {
    let object = [params, &b"}"[..]].concat();
    let mut params: Map<String, Value> = serde_json::from_slice(&object).map_err(unencodable)?;
    let thinking = params
        .entry("thinking")
        .or_insert_with(|| json!({"type": "adaptive"}));
    if let Some(thinking) = thinking.as_object_mut() {
        let behavior = json!({"prefix_mismatch_behavior": "drop_block"});
        thinking.insert("block_binding".to_owned(), behavior);
    }
    let mut encoded = Value::Object(params).to_string().into_bytes();
    encoded.pop();
    Ok(encoded)
}

/// Returns whether a model decides itself how much it thinks, which an effort controls. Models up to 4.5
/// have a thinking budget instead:
/// <https://platform.claude.com/docs/en/build-with-claude/adaptive-thinking>
fn has_adaptive_thinking(model: &str) -> bool {
    let is_older = |name: &str| {
        let version = name.split_once("-4").map(|(_, rest)| rest);
        name.contains("claude-3")
            // `claude-opus-4-1`, `claude-haiku-4-5-20251001`, `claude-sonnet-4-20250514`; on Vertex AI
            // `claude-opus-4-5@20251101`, behind OpenRouter `claude-opus-4.5`
            || version.is_some_and(|rest| {
                let minor = rest.trim_start_matches(['-', '.']).split(['-', '@', ':']).next();
                let minor = minor.and_then(|minor| minor.parse::<u32>().ok());
                minor.is_none_or(|minor| minor <= 5 || minor > 1000)
            })
    };
    !is_older(model)
}

/// Returns the thinking budget of a model without adaptive thinking.
fn thinking_for_effort(effort: &str, max_tokens: u64) -> Result<Value, LlmError> {
    let percent = match effort {
        "low" => 20,
        "medium" => 50,
        "high" => 80,
        _ => {
            return Err(invalid(format!(
                "the reasoning effort of this model is low, medium or high, not `{effort}`"
            )));
        }
    };
    let tokens = max_tokens.saturating_mul(percent) / 100;
    Ok(json!({"type": "enabled", "budget_tokens": tokens.max(MIN_THINKING_TOKENS)}))
}
