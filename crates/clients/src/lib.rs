//! Model clients for Cantle, one module per wire dialect, and wrappers around clients.
//!
//! Everything here is a [`cantle_core::llm::LlmClient`]: [`chat`] speaks OpenAI's Chat Completions
//! over HTTP, [`replay`] answers from a recording, and [`retry`] wraps any other client. A client is
//! configuration: nothing of a conversation is kept in it, and a thousand sessions may share one.

#![forbid(unsafe_code)]

#[cfg(feature = "chat")]
pub mod chat;
#[cfg(feature = "replay")]
pub mod replay;
#[cfg(feature = "retry")]
pub mod retry;
