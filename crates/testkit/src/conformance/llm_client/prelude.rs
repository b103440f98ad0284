//! The names that most cases use.

pub(super) use std::time::Duration;

pub(super) use cantle_core::llm::{ChatEvent, Completion, LlmClientExt as _, LlmErrorKind};
pub(super) use cantle_core::message::{AssistantBlock, ToolCall as Call};
pub(super) use futures_util::StreamExt as _;
pub(super) use serde_json::{Value, json};

pub(super) use super::super::check::{Checked, Failure, ensure, equal, within};
pub(super) use super::super::suite::cases;
pub(super) use super::Dialect;
pub(super) use super::bench::{
    API_KEY, ClientFactory, MODEL, STREAM_MODES, asks_for_a_stream, of_kind, record_call, request,
    serve,
};
pub(super) use crate::openai::{
    Fault, Reply, Request, Script, ScriptedServer, ToolCall, Turn, Usage,
};
