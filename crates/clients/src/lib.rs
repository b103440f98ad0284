//! Model clients for Cantle, one module per wire dialect, and wrappers around clients.
//!
//! Everything here is a [`cantle_core::llm::LlmClient`]. Three speak to a provider over [`http`]:
//! [`chat`] OpenAI's Chat Completions, [`responses`] OpenAI's Responses, and [`anthropic`] Anthropic's
//! Messages; [`replay`] answers from a recording. The others wrap any client: [`retry`], [`limit`]
//! (one rate limit for all agents of a process), [`fallback`] (another model in its place),
//! [`price`], and [`record`]. A client is configuration: nothing of a conversation is kept in it, and
//! a thousand sessions may share one.

#![forbid(unsafe_code)]

#[cfg(feature = "anthropic")]
pub mod anthropic;
#[cfg(feature = "chat")]
pub mod chat;
pub mod fallback;
#[cfg(any(feature = "anthropic", feature = "chat", feature = "responses"))]
pub mod http;
#[cfg(feature = "limit")]
pub mod limit;
pub mod price;
#[cfg(feature = "replay")]
pub mod record;
#[cfg(feature = "replay")]
pub mod replay;
#[cfg(feature = "responses")]
pub mod responses;
#[cfg(feature = "retry")]
pub mod retry;
#[cfg(test)]
mod scripted;
pub mod sse;
