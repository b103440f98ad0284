//! Model clients for Cantle: one module per wire dialect, and wrappers around clients.
//!
//! Every client implements [`cantle_core::llm::LlmClient`]. Three modules call a provider over [`http`]:
//! [`chat`] speaks OpenAI's Chat Completions, [`responses`] OpenAI's Responses and [`anthropic`]
//! Anthropic's Messages. [`replay`] answers from a recording. The other modules wrap any client:
//! [`retry`] (with one [rate limit](limit) for all agents of a process), [`fallback`] (substitute models),
//! [`price`] and [`record`]. A client is configuration without conversation state, so any number of
//! sessions may share it.

#![forbid(unsafe_code)]

#[cfg(feature = "anthropic")]
pub mod anthropic;
#[cfg(feature = "chat")]
pub mod chat;
pub mod fallback;
#[cfg(any(feature = "anthropic", feature = "chat", feature = "responses"))]
#[cfg_attr(
    not(all(feature = "anthropic", feature = "chat", feature = "responses")),
    allow(dead_code, unused_imports, reason = "each dialect uses a part")
)]
pub mod http;
#[cfg(feature = "retry")]
pub mod limit;
#[cfg(any(feature = "anthropic", feature = "chat", feature = "responses"))]
pub mod list_prices;
pub mod price;
#[cfg(feature = "replay")]
pub mod record;
#[cfg(feature = "replay")]
mod recording;
#[cfg(feature = "replay")]
pub mod replay;
#[cfg(feature = "responses")]
pub mod responses;
#[cfg(feature = "retry")]
pub mod retry;
#[cfg(test)]
mod scripted;
pub mod sse;
