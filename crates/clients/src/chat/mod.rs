//! OpenAI Chat Completions, and the many servers that speak it: vLLM, llama.cpp, Ollama, OpenRouter,
//! LiteLLM, Azure.
//!
//! [`ChatClient`] is one model at one endpoint. It owns the wire: how messages become a request, how
//! a response becomes a turn, what a refusal means. It keeps nothing of a conversation and reads
//! nothing from the environment but where certificates are.
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
//! networks, and is not refused. Proxies named in the environment are not used.
//!
//! Connections are HTTP/1.1 and kept open between calls. Nothing of TLS is set up for an `http`
//! address.
//!
//! # What goes over the wire
//!
//! - Text content is sent as one text part, empty content as `""`. Images and videos are data URLs
//!   (`image_url`, `file`), sound is `input_audio`.
//! - Reasoning is read from `reasoning_content` or `reasoning` and sent back as
//!   `reasoning_content`; signed and redacted reasoning as LiteLLM's `thinking_blocks`, too. The
//!   signature of a tool call goes both ways as LiteLLM's `provider_specific_fields`.
//! - A tool without parameters has no `parameters`.
//! - A tool call that came without an id is sent back with the one it was given here: in this
//!   dialect the id only joins a call to its result.
//! - A block that has no place in this dialect fails the request with
//!   [`LlmErrorKind::Unsupported`](cantle_core::llm::LlmErrorKind::Unsupported).
//! - Every call asks for the usage; where a server does not tell it, the turn has none.
//!
//! A server that answers a request for a stream with one whole body is understood.

mod builder;
mod content;
mod encode;
mod endpoint;
mod errors;
mod overflow;
mod retry_after;
mod sse;
mod timeouts;
mod tls;
mod transport;
mod turn;
mod wire;

use std::fmt;
use std::sync::Arc;

use cantle_core::llm::{ChatRequest, ChatStream, LlmClient, ModelInfo};

pub use self::builder::ChatClientBuilder;
use self::endpoint::Endpoint;
pub use self::timeouts::Timeouts;
use crate::retry::{RetryPolicy, retrying};

/// A model behind an endpoint that speaks Chat Completions.
///
/// Cloning it is cheap, and clones share their connections. It needs a tokio runtime with time and
/// I/O.
#[derive(Clone)]
pub struct ChatClient {
    endpoint: Arc<Endpoint>,
    retries: RetryPolicy,
}

impl ChatClient {
    /// Starts a client for `model`, the provider's name for it.
    pub fn builder(model: impl Into<String>) -> ChatClientBuilder {
        ChatClientBuilder::new(model.into())
    }
}

impl LlmClient for ChatClient {
    fn model(&self) -> &ModelInfo {
        &self.endpoint.model
    }

    fn stream(&self, request: ChatRequest) -> ChatStream {
        let endpoint = Arc::clone(&self.endpoint);
        retrying(self.retries.clone(), move || {
            endpoint::call(Arc::clone(&endpoint), request.clone())
        })
    }
}

impl fmt::Debug for ChatClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatClient")
            .field("model", &self.endpoint.model)
            .field("base_url", &self.endpoint.diagnosis.base_url)
            .field("retries", &self.retries.max_retries)
            .finish_non_exhaustive()
    }
}
