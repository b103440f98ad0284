//! Assembles a turn from a Chat Completions response.
//!
//! Text, reasoning and tool calls arrive in separate fields without a common order. Blocks are ordered
//! reasoning, text, tool calls.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use cantle_core::llm::{ChatEvent, LlmError, LlmErrorKind, StopReason, TurnEnd};
use cantle_core::message::{AssistantBlock, ToolCall};
use cantle_core::usage::TokenUsage;
use reqwest::header::HeaderMap;
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};

use super::wire::{
    ChatCompletion, ChatContent, ChatMessage, ChatThinking, ChatToolCall, ChatUsage,
};
use crate::http::{ErrorContext, TurnAssembler, filled_window, incomplete_response};
use crate::sse::Event;

/// An incomplete turn.
#[derive(Debug, Default)]
pub struct ChatAssembler {
    reasoning: String,
    thinking: Vec<AssistantBlock>,
    details: Vec<Map<String, Value>>,
    text: String,
    calls: Vec<PendingCall>,
    /// The provider's stop reason, once received.
    finish_reason: Option<String>,
    usage: Option<ChatUsage>,
    model: Option<String>,
    logprobs: Map<String, Value>,
    /// Whether the turn came as a complete body, which may lack a stop reason.
    is_complete: bool,
    /// The cost of a complete body from LiteLLM's header. In a streamed response, LiteLLM sends the header before the
    /// cost is known.
    header_cost: Option<f64>,
}

/// An incomplete tool call.
#[derive(Debug, Default)]
struct PendingCall {
    index: Option<i64>,
    id: String,
    name: String,
    arguments: String,
    /// Whether its first arguments were a whole JSON value.
    is_complete: bool,
    signature: Option<String>,
}

impl TurnAssembler for ChatAssembler {
    fn read_body(
        &mut self,
        errors: &ErrorContext,
        headers: &HeaderMap,
        body: &[u8],
    ) -> Result<(), LlmError> {
        let completion: ChatCompletion = errors.parse_body(headers, body)?;
        self.usage = completion.usage;
        let choice = completion.choices.unwrap_or_default().into_iter().next();
        let Some(mut choice) = choice.filter(|choice| choice.error.is_none()) else {
            return Err(errors.invalid_body(headers, body, "it has no choices"));
        };
        if completion.error.is_some()
            && let Some(error) = errors.body_error(body)
        {
            return Err(error);
        }
        self.is_complete = true;
        self.header_cost = litellm_cost(headers);
        self.model = completion.model;
        self.finish_reason = choice.finish_reason.take().filter(|r| !r.is_empty());
        self.add_logprobs(choice.logprobs.take());
        if let Some(message) = choice.into_message() {
            self.add(message, |_| ());
        }
        Ok(())
    }

    fn read_event(
        &mut self,
        errors: &ErrorContext,
        event: &Event<'_>,
        deltas: &mut VecDeque<ChatEvent>,
    ) -> Result<ControlFlow<()>, LlmError> {
        let is_error_event = event.name == Some("error");
        let completion: ChatCompletion = errors.parse_event(event)?;
        let choices = completion.choices.unwrap_or_default();
        let has_error =
            completion.error.is_some() || choices.iter().any(|choice| choice.error.is_some());
        // An event with neither may be vLLM's unwrapped error object.
        let is_empty = choices.is_empty() && completion.usage.is_none();
        // Some servers report the usage in every event; the last one is the total.
        self.usage = completion.usage.or_else(|| self.usage.take());
        if (has_error || is_empty || is_error_event)
            && let Some(error) = errors.body_error(event.data.as_bytes())
        {
            return Err(error);
        }
        if is_error_event {
            return Err(errors.event_error(&event.data));
        }
        for mut choice in choices {
            // Only one choice was requested.
            if choice.index.unwrap_or(0) != 0 {
                continue;
            }
            let reason = choice.finish_reason.take().filter(|r| !r.is_empty());
            self.usage = choice.usage.take().or_else(|| self.usage.take());
            self.add_logprobs(choice.logprobs.take());
            if let Some(delta) = choice.into_delta() {
                self.add(delta, |event| deltas.push_back(event));
            }
            self.finish_reason = reason.or_else(|| self.finish_reason.take());
        }
        self.model = completion.model.or_else(|| self.model.take());
        Ok(ControlFlow::Continue(()))
    }

    fn usage(&self) -> Option<TokenUsage> {
        self.usage.as_ref().map(ChatUsage::to_token_usage)
    }

    fn into_turn(mut self) -> Result<(Vec<AssistantBlock>, TurnEnd), LlmError> {
        if self.finish_reason.is_none() && !self.is_complete {
            return Err(incomplete_response());
        }
        let stop = stop_reason(self.finish_reason.as_deref(), !self.calls.is_empty())?;
        let mut end = TurnEnd::new(stop, self.usage());
        let cost = self.usage.as_ref().and_then(|usage| usage.cost.usd());
        end.cost_usd = cost.or(self.header_cost);
        if !self.logprobs.is_empty() {
            let logprobs = std::mem::take(&mut self.logprobs).into();
            end.extra.insert("logprobs".to_owned(), logprobs);
        }
        end.served_by = self.model.take();
        Ok((self.into_blocks(), end))
    }
}

/// Returns the cost from LiteLLM's header.
fn litellm_cost(headers: &HeaderMap) -> Option<f64> {
    let cost = headers.get("x-litellm-response-cost")?;
    let cost: f64 = cost.to_str().ok()?.trim().parse().ok()?;
    (cost.is_finite() && cost >= 0.0).then_some(cost)
}

impl ChatAssembler {
    /// Adds a message or a delta, and passes its deltas to `emit`.
    pub(super) fn add(&mut self, delta: ChatMessage, mut emit: impl FnMut(ChatEvent)) {
        let (thinking, content) = delta.content.map(ChatContent::split).unwrap_or_default();
        // Some servers send the same reasoning in several fields.
        let fields = [delta.reasoning_content, delta.reasoning, Some(thinking)];
        let reasoning = fields.into_iter().flatten().find(|text| !text.is_empty());
        if let Some(reasoning) = reasoning {
            self.reasoning.push_str(&reasoning);
            emit(ChatEvent::ReasoningDelta(reasoning));
        }
        for detail in delta.reasoning_details.into_iter().flatten() {
            self.add_detail(detail);
        }
        for thinking in delta.thinking_blocks.into_iter().flatten() {
            self.add_thinking(thinking);
        }
        for text in [content, delta.refusal.unwrap_or_default()] {
            if !text.is_empty() {
                self.text.push_str(&text);
                emit(ChatEvent::TextDelta(text));
            }
        }
        for call in delta.tool_calls.into_iter().flatten() {
            emit(self.add_call(call));
        }
    }

    /// Adds a thinking delta. LiteLLM sends a block's text in deltas and then its signature alone, so a
    /// block is complete once it has a signature.
    fn add_thinking(&mut self, delta: ChatThinking) {
        if delta.kind.as_deref() == Some("redacted_thinking") {
            let data = delta.data.unwrap_or_default();
            self.thinking
                .push(AssistantBlock::RedactedReasoning { data });
            return;
        }
        let text = delta.thinking.unwrap_or_default();
        let new_signature = delta.signature.unwrap_or_default();
        if text.is_empty() && new_signature.is_empty() {
            return;
        }
        match self.thinking.last_mut() {
            Some(AssistantBlock::SignedReasoning { content, signature })
                if signature.is_empty() =>
            {
                content.push_str(&text);
                *signature = new_signature;
            }
            _ => self.thinking.push(AssistantBlock::SignedReasoning {
                signature: new_signature,
                content: text,
            }),
        }
    }

    /// Adds a reasoning detail. OpenRouter sends its text in deltas of the same index and type.
    /// <https://openrouter.ai/docs/use-cases/reasoning-tokens#preserving-reasoning>
    fn add_detail(&mut self, delta: Map<String, Value>) {
        let previous = self.details.last_mut().filter(|previous| {
            let is_same = |field| previous.get(field) == delta.get(field);
            delta.contains_key("index") && is_same("index") && is_same("type")
        });
        let Some(previous) = previous else {
            self.details.push(delta);
            return;
        };
        for (name, value) in delta {
            let is_appended = matches!(&*name, "text" | "summary" | "data");
            match (previous.get_mut(&name), value) {
                (Some(Value::String(text)), Value::String(more)) if is_appended => {
                    text.push_str(&more);
                }
                (Some(_), Value::Null) => {}
                (_, value) => drop(previous.insert(name, value)),
            }
        }
    }

    /// Appends lists of log probabilities; null counts as missing.
    fn add_logprobs(&mut self, delta: Option<Map<String, Value>>) {
        for (name, value) in delta.into_iter().flatten() {
            match (self.logprobs.get_mut(&name), value) {
                (_, Value::Null) => {}
                (Some(Value::Array(list)), Value::Array(more)) => list.extend(more),
                (_, value) => drop(self.logprobs.insert(name, value)),
            }
        }
    }

    fn add_call(&mut self, mut delta: ChatToolCall) -> ChatEvent {
        let signature = delta.signature();
        let id = delta.id.unwrap_or_default();
        let mut function = delta.function.unwrap_or_default();
        let arguments = function.arguments();
        let name = function.name.unwrap_or_default();

        let position = self.call_position(delta.index, &id, &name, &arguments);
        if position == self.calls.len() {
            self.calls.push(PendingCall {
                index: delta.index,
                ..PendingCall::default()
            });
        }
        let mut new_name = None;
        if let Some(call) = self.calls.get_mut(position) {
            if call.id.is_empty() {
                call.id = id;
            }
            if call.name.is_empty() && !name.is_empty() {
                call.name.clone_from(&name);
                new_name = Some(name);
            }
            if call.arguments.is_empty() {
                call.is_complete = is_json(&arguments);
            }
            call.arguments.push_str(&arguments);
            call.signature = signature.or_else(|| call.signature.take());
        }
        ChatEvent::ToolCallDelta {
            index: position,
            name: new_name,
            arguments,
        }
    }

    /// Returns the position of the call that a delta belongs to; the number of calls for a new one.
    fn call_position(&self, index: Option<i64>, id: &str, name: &str, arguments: &str) -> usize {
        let end = self.calls.len();
        let position = match index {
            Some(_) => self.calls.iter().rposition(|call| call.index == index),
            None if !id.is_empty() => self.calls.iter().rposition(|call| call.id == id),
            None if !name.is_empty() => None,
            None => end.checked_sub(1),
        };
        // Some servers send every parallel call with index 0, each complete and with its own id or without one.
        // Others repeat the name in every delta of a call.
        let is_other = |call: &PendingCall| {
            if name.is_empty() || call.name.is_empty() {
                return false;
            }
            if !id.is_empty() {
                return !call.id.is_empty() && call.id != id;
            }
            !call.arguments.is_empty() && call.name != name
                || arguments.starts_with('{') && call.is_complete
        };
        position
            .filter(|&position| !self.calls.get(position).is_some_and(is_other))
            .unwrap_or(end)
    }

    fn into_blocks(self) -> Vec<AssistantBlock> {
        let mut blocks = self.thinking;
        // Thinking blocks repeat the reasoning, unless all are redacted.
        let is_redacted = |block| matches!(block, &AssistantBlock::RedactedReasoning { .. });
        if !self.reasoning.is_empty() && blocks.iter().all(is_redacted) {
            let content = self.reasoning;
            blocks.insert(0, AssistantBlock::Reasoning { content });
        }
        if !self.details.is_empty() {
            let data = json!({"reasoning_details": self.details}).to_string();
            blocks.push(AssistantBlock::Opaque { data });
        }
        if !self.text.is_empty() {
            blocks.push(AssistantBlock::text(self.text));
        }
        let calls = self.calls.into_iter().map(ToolCall::from);
        blocks.extend(calls.map(AssistantBlock::ToolCall));
        blocks
    }
}

impl From<PendingCall> for ToolCall {
    fn from(pending: PendingCall) -> Self {
        let mut call = Self::new(Some(pending.id), pending.name, pending.arguments);
        call.signature = pending.signature.filter(|signature| !signature.is_empty());
        call
    }
}

fn is_json(text: &str) -> bool {
    serde_json::from_str::<IgnoredAny>(text).is_ok()
}

fn stop_reason(reason: Option<&str>, has_calls: bool) -> Result<StopReason, LlmError> {
    Ok(match reason {
        // LiteLLM sends `stop` for some turns with tool calls; Together has `eos`, too.
        None | Some("stop" | "eos") if !has_calls => StopReason::EndTurn,
        None | Some("stop" | "eos" | "tool_calls" | "function_call") => StopReason::ToolCalls,
        Some("length" | "max_tokens") => StopReason::Length,
        // Mistral, and Z.AI.
        Some("model_length" | "model_context_window_exceeded") => return Err(filled_window()),
        Some("content_filter") => StopReason::ContentFilter,
        // OpenRouter and vLLM, vLLM and SGLang, and DeepSeek, if they failed during the response.
        Some("error" | "abort" | "insufficient_system_resource") => {
            let message = "the provider failed during the response without a reason";
            return Err(LlmError::new(LlmErrorKind::Server, message));
        }
        Some(other) => StopReason::Other(other.to_owned()),
    })
}

#[cfg(test)]
mod tests;
