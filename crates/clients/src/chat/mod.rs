//! OpenAI Chat Completions, and the many servers that speak it: vLLM, llama.cpp, Ollama, OpenRouter,
//! LiteLLM, Azure.
//!
//! [`ChatClient`] is one model at one endpoint. It owns the wire: how messages become a request, how
//! a response becomes a turn, what a refusal means. It keeps nothing of a conversation and reads
//! nothing from the environment but where certificates are and which proxy leads to its address.
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
//! A key belongs to the base URL it was given with and goes nowhere else: redirects are not
//! followed, and no error, source or `Debug` text shows it, also where the server repeats it. With
//! an `http` address it crosses the network in the clear; that is for loopback and trusted
//! networks, and is not refused. The proxy that `HTTPS_PROXY`, `HTTP_PROXY` or `ALL_PROXY` names is
//! used, but for this machine and hosts in `NO_PROXY`; an `https` address is reached through it without
//! it seeing what is said.
//!
//! Connections are HTTP/1.1 and kept open between calls. Nothing of TLS is set up for an `http`
//! address.
//!
//! # What goes over the wire
//!
//! Servers that speak this dialect differ in what they want; [`Server`] says who is at the other end,
//! by itself where the address tells. In general:
//!
//! - Text content is sent as one text part, empty content as `""`. Images are data URLs
//!   (`image_url`), sound is `input_audio`, video is what the server takes.
//! - Reasoning is read from `reasoning_content`, `reasoning`, `thinking_blocks` and
//!   `reasoning_details`, and sent back under the name that the server reads. The signature of a tool
//!   call goes both ways as LiteLLM's `provider_specific_fields` or Gemini's `extra_content`.
//! - `reasoning_details` are kept as an
//!   [opaque block](cantle_core::message::AssistantBlock::Opaque) beside the reasoning they repeat.
//! - A tool without parameters has no `parameters`. Schemas are sent as they are, and without
//!   strictness unless it is [asked for](ChatClientBuilder::strict_tools).
//! - A tool call that came without an id is sent back with the one it was given here: in this
//!   dialect the id only joins a call to its result.
//! - A block that the server has no place for fails the request with
//!   [`LlmErrorKind::Unsupported`](cantle_core::llm::LlmErrorKind::Unsupported). Reasoning in plain
//!   sight has nothing to hand back, and is left out where no field is read.
//! - Log probabilities, where extra parameters ask for them, come as the field `logprobs` of what
//!   [the answer has besides](cantle_core::llm::TurnEnd::extra).
//! - Every call asks for the usage; where a server does not tell it, the turn has none.
//! - Models of Anthropic's behind OpenRouter or LiteLLM are told what to cache, as
//!   in Anthropic's own dialect.
//! - Where the server counts the output limit against the window (vLLM), a limit is sent that fits
//!   what the conversation leaves.
//!
//! A server that answers a request for a stream with one whole body is understood.

mod content;
mod encode;
mod server;
mod turn;
mod wire;

use cantle_core::llm::{ChatRequest, LlmError};
use cantle_core::secret::SecretText;
use reqwest::header::HeaderMap;
use serde::Serialize;
use serde_json::{Map, Value};

use self::encode::Encoding;
pub use self::server::Server;
pub use self::turn::ChatTurn;
pub use crate::http::Timeouts;
use crate::http::{Common, Dialect, Fitted, HttpClient, HttpClientBuilder, invalid};

/// A model behind an endpoint that speaks Chat Completions.
pub type ChatClient = HttpClient<Chat>;

/// Describes a [`ChatClient`].
pub type ChatClientBuilder = HttpClientBuilder<Chat>;

/// The dialect: OpenAI's Chat Completions.
#[derive(Debug)]
pub struct Chat {
    /// The model and the options as the beginning of a request's body.
    head: Vec<u8>,
    encoding: Encoding,
    server: Server,
    /// The output limit that each request gets, where the window may leave less.
    fitted: Option<Fitted>,
}

/// What a [`ChatClientBuilder`] holds beside what all have.
#[derive(Debug, Default)]
pub struct ChatOptions {
    reasoning_effort: Option<String>,
    server: Option<Server>,
    strict_tools: bool,
}

impl ChatClientBuilder {
    /// Who is at the other end, where its address does not say so; see [`Server::at`].
    #[must_use]
    pub fn server(mut self, server: Server) -> Self {
        self.options.server = Some(server);
        self
    }

    /// Whether the model is held to the schemas of tools strictly, where the server can do that and the
    /// schema allows it: every object closed, and all of its properties required. It is not by
    /// default. Schemas are never changed for it.
    #[must_use]
    pub fn strict_tools(mut self, strict: bool) -> Self {
        self.options.strict_tools = strict;
        self
    }

    /// How hard a reasoning model thinks, in the provider's words, e.g. `high`.
    #[must_use]
    pub fn reasoning_effort(mut self, effort: impl Into<String>) -> Self {
        self.options.reasoning_effort = Some(effort.into());
        self
    }
}

impl Dialect for Chat {
    const CLIENT: &'static str = "ChatClient";
    const PATH: &'static str = "/chat/completions";
    const ANSWER: &'static str = "a chat completion";
    const BASE_URL: &'static str = "https://api.openai.com/v1";
    /// `n` would ask for answers that nobody reads.
    const OWNED: &'static [&'static str] = &[
        "max_completion_tokens",
        "messages",
        "model",
        "n",
        "reasoning_effort",
        "stream",
        "stream_options",
        "tool_choice",
        "tools",
    ];
    type Options = ChatOptions;
    type Turn = ChatTurn;

    fn new(options: ChatOptions, common: &Common<'_>) -> Result<Self, LlmError> {
        let server = options
            .server
            .unwrap_or_else(|| Server::at(common.base_url));
        let habits = server.habits();
        let fitted = Fitted::new(common).filter(|_| habits.counts_the_limit);
        let mut limits = Map::new();
        if let Some(tokens) = common.max_output_tokens.filter(|_| fitted.is_none()) {
            if common.extra.contains_key(habits.token_limit) {
                return Err(invalid(format!(
                    "the output limit is set twice: as such and as the extra parameter `{}`",
                    habits.token_limit
                )));
            }
            limits.insert(habits.token_limit.to_owned(), tokens.into());
        }
        let head = Head {
            model: common.model,
            stream: common.stream,
            stream_options: common.stream.then_some(StreamOptions {
                include_usage: true,
            }),
            limits,
            reasoning_effort: options.reasoning_effort.as_deref(),
            extra: common.extra,
        };
        let mut head = serde_json::to_vec(&head).map_err(|error| {
            invalid("the parameters can't be written as JSON").with_source(error)
        })?;
        // The messages follow in the same object.
        head.pop();
        Ok(Self {
            head,
            encoding: Encoding::new(server, common.model).strict_tools(options.strict_tools),
            server,
            fitted,
        })
    }

    fn headers(&self) -> HeaderMap {
        HeaderMap::new()
    }

    fn authorization(&self, key: &SecretText) -> (&'static str, String) {
        let (name, before) = self.server.key_header();
        (name, format!("{before}{}", key.expose()))
    }

    fn reports_cost(&self) -> Option<bool> {
        match self.server {
            Server::OpenRouter => Some(true),
            Server::Unknown | Server::LiteLlm => None,
            _ => Some(false),
        }
    }

    fn body(&self, request: &ChatRequest) -> Result<Vec<u8>, LlmError> {
        let limit = self.fitted.map(|fitted| fitted.limit(&request.messages));
        self.encoding.body(&self.head, request, limit)
    }
}

/// The part of a request that is the same for all of a client's calls.
#[derive(Serialize)]
struct Head<'a> {
    model: &'a str,
    stream: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream_options: Option<StreamOptions>,
    #[serde(flatten)]
    limits: Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_effort: Option<&'a str>,
    #[serde(flatten)]
    extra: &'a Map<String, Value>,
}

#[derive(Serialize)]
struct StreamOptions {
    include_usage: bool,
}
