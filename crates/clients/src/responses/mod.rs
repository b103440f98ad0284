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
//! What is said of [the endpoint and its key](crate::chat#the-endpoint-and-its-key) holds here too.
//!
//! # Two ways to keep a conversation
//!
//! **Stateless**, the default: every request holds the whole conversation, and the provider is told
//! to store nothing (`store: false`). Reasoning comes encrypted and goes back as it came. A model that
//! has no encrypted reasoning says so once and is not asked for it again.
//!
//! **[Stateful](ResponsesClientBuilder::stateful)**: the provider keeps the conversation, and a request
//! holds what came after the latest turn that has a
//! [`provider_response_id`](cantle_core::message::AssistantMessage::provider_response_id), and that
//! id. Where the provider says that it does not know the id (it keeps them for 30 days), the whole
//! conversation is sent instead, once, if it can be without loss: reasoning that only the provider has
//! makes that an error.
//!
//! # What goes over the wire
//!
//! - A turn's items in their order, and each block as the item that it came as. Neighbouring texts are
//!   one message. Items that are not known here are carried as they are.
//! - The phase that OpenAI gives a message (`commentary`, `final_answer`) is the
//!   [signature](cantle_core::message::AssistantBlock::Text) of its text, and goes back.
//! - Schemas of tools as they are, and without strictness unless it is
//!   [asked for](ResponsesClientBuilder::strict_tools).
//! - Images, in the results of tools too. Other media fail the request, as does reasoning of another
//!   dialect that carries a signature. Reasoning in plain sight has nothing to hand back and stays here.

mod encode;
mod turn;
mod wire;

use std::sync::atomic::{AtomicBool, Ordering};

use cantle_core::llm::{ChatRequest, LlmError, LlmErrorKind};
use cantle_core::secret::SecretText;
use reqwest::header::HeaderMap;
use serde::Serialize;
use serde_json::{Map, Value};

use self::encode::Mode;
pub use self::turn::ResponsesTurn;
pub use crate::http::Timeouts;
use crate::http::{Common, Dialect, HttpClient, HttpClientBuilder, invalid};

/// A model behind an endpoint that speaks Responses.
pub type ResponsesClient = HttpClient<Responses>;

/// Describes a [`ResponsesClient`].
pub type ResponsesClientBuilder = HttpClientBuilder<Responses>;

/// The dialect: OpenAI Responses.
#[derive(Debug)]
pub struct Responses {
    /// The model and the options as the beginning of a request's body.
    head: Vec<u8>,
    stateful: bool,
    strict_tools: bool,
    /// The model was seen to have no encrypted reasoning.
    unencrypted: AtomicBool,
}

/// What a [`ResponsesClientBuilder`] holds beside what all have.
#[derive(Debug, Default)]
pub struct ResponsesOptions {
    reasoning_effort: Option<String>,
    stateful: bool,
    strict_tools: bool,
}

impl ResponsesClientBuilder {
    /// How hard a reasoning model thinks, in the provider's words, e.g. `high`. Other settings of
    /// reasoning are given as [`extra`](Self::extra) `reasoning`, in place of this one.
    #[must_use]
    pub fn reasoning_effort(mut self, effort: impl Into<String>) -> Self {
        self.options.reasoning_effort = Some(effort.into());
        self
    }

    /// Whether the model is held to the schemas of tools strictly, where a schema allows it: every
    /// object closed, and all of its properties required. It is not by default. Schemas are never
    /// changed for it.
    #[must_use]
    pub fn strict_tools(mut self, strict: bool) -> Self {
        self.options.strict_tools = strict;
        self
    }

    /// Whether the provider keeps the conversation. It does not by default.
    #[must_use]
    pub fn stateful(mut self, stateful: bool) -> Self {
        self.options.stateful = stateful;
        self
    }
}

impl Dialect for Responses {
    const CLIENT: &'static str = "ResponsesClient";
    const PATH: &'static str = "/responses";
    const ANSWER: &'static str = "a response";
    const BASE_URL: &'static str = "https://api.openai.com/v1";
    const OWNED: &'static [&'static str] = &[
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
    type Turn = ResponsesTurn;

    fn new(options: ResponsesOptions, common: &Common<'_>) -> Result<Self, LlmError> {
        if options.reasoning_effort.is_some() && common.extra.contains_key("reasoning") {
            return Err(invalid(
                "reasoning is set twice: as an effort and as an extra parameter",
            ));
        }
        let head = Head {
            model: common.model,
            stream: common.stream,
            store: options.stateful,
            max_output_tokens: common.max_output_tokens,
            reasoning: options
                .reasoning_effort
                .as_deref()
                .map(|effort| Reasoning { effort }),
            extra: common.extra,
        };
        let mut head = serde_json::to_vec(&head).map_err(|error| {
            invalid("the parameters can't be written as JSON").with_source(error)
        })?;
        // The conversation follows in the same object.
        head.pop();
        Ok(Self {
            head,
            stateful: options.stateful,
            strict_tools: options.strict_tools,
            unencrypted: AtomicBool::new(false),
        })
    }

    fn headers(&self) -> HeaderMap {
        HeaderMap::new()
    }

    fn authorization(&self, key: &SecretText) -> (&'static str, String) {
        ("authorization", format!("Bearer {}", key.expose()))
    }

    fn turn(&self) -> ResponsesTurn {
        ResponsesTurn::new(self.stateful)
    }

    fn body(&self, request: &ChatRequest) -> Result<Vec<u8>, LlmError> {
        let mode = if self.stateful {
            Mode::Stateful
        } else {
            Mode::Stateless
        };
        self.written(request, mode)
    }

    fn instead(
        &self,
        request: &ChatRequest,
        error: &LlmError,
    ) -> Option<Result<Vec<u8>, LlmError>> {
        if error.kind() != LlmErrorKind::InvalidRequest && error.kind() != LlmErrorKind::NotFound {
            return None;
        }
        let said = error.to_string().to_ascii_lowercase();
        if said.contains("previous response") && said.contains("not found") {
            let continues = self.stateful && encode::continued(&request.messages).is_some();
            return continues.then(|| self.written(request, Mode::Stateless));
        }
        let first = said.contains("encrypted content is not supported")
            && !self.unencrypted.swap(true, Ordering::Relaxed);
        first.then(|| self.body(request))
    }
}

impl Responses {
    fn written(&self, request: &ChatRequest, mode: Mode) -> Result<Vec<u8>, LlmError> {
        let encrypted = !self.unencrypted.load(Ordering::Relaxed);
        encode::body(&self.head, request, mode, encrypted, self.strict_tools)
    }
}

/// The part of a request that is the same for all of a client's calls.
#[derive(Serialize)]
struct Head<'a> {
    model: &'a str,
    stream: bool,
    store: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_output_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning: Option<Reasoning<'a>>,
    #[serde(flatten)]
    extra: &'a Map<String, Value>,
}

#[derive(Serialize)]
struct Reasoning<'a> {
    effort: &'a str,
}
