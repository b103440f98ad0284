//! A turn, put together from what arrives: all at once or in pieces, by the same code, so that
//! streaming and not streaming give the same message.
//!
//! This dialect has channels and no order between them. Blocks are built reasoning, then text, then
//! tool calls.

use std::collections::VecDeque;

use cantle_core::llm::{ChatEvent, LlmError, LlmErrorKind, StopReason, TurnEnd};
use cantle_core::message::{AssistantBlock, ToolCall};
use reqwest::header::HeaderMap;
use serde_json::{Map, Value, json};

use super::wire::{Answer, Call, Message, Thinking, Usage};
use crate::http::{Diagnosis, Next, Turn, served_by, with_unique_ids};
use crate::sse::Event;

/// A turn on its way.
#[derive(Debug, Default)]
pub struct ChatTurn {
    reasoning: String,
    thinking: Vec<AssistantBlock>,
    details: Vec<Map<String, Value>>,
    text: String,
    calls: Vec<Draft>,
    /// Why the model stopped, once the provider has said so.
    finish_reason: Option<String>,
    usage: Option<Usage>,
    model: Option<String>,
    logprobs: Map<String, Value>,
    /// Whether it came all at once, which says that it is complete.
    whole: bool,
}

/// A tool call on its way.
#[derive(Debug, Default)]
struct Draft {
    index: Option<u64>,
    id: String,
    name: String,
    arguments: String,
    signature: Option<String>,
}

impl Turn for ChatTurn {
    fn whole(
        &mut self,
        diagnosis: &Diagnosis,
        headers: &HeaderMap,
        body: &[u8],
    ) -> Result<(), LlmError> {
        let answer: Answer = serde_json::from_slice(body).map_err(|error| {
            diagnosis
                .reported_in(body)
                .unwrap_or_else(|| diagnosis.no_answer(headers, body, &error.to_string()))
        })?;
        let choice = answer.choices.unwrap_or_default().into_iter().next();
        let failed =
            answer.error.is_some() || choice.as_ref().is_none_or(|choice| choice.error.is_some());
        if failed {
            let error = diagnosis.reported_in(body);
            return Err(error.unwrap_or_else(|| {
                let why = "it has no choices";
                diagnosis.no_answer(headers, body, why)
            }));
        }
        self.whole = true;
        self.usage = answer.usage;
        self.model = answer.model;
        if let Some(mut choice) = choice {
            self.finish_reason = choice.finish_reason.take().filter(|r| !r.is_empty());
            self.take_logprobs(choice.logprobs.take());
            if let Some(message) = choice.whole() {
                self.take(message, |_| ());
            }
        }
        Ok(())
    }

    fn event(
        &mut self,
        diagnosis: &Diagnosis,
        event: &Event<'_>,
        told: &mut VecDeque<ChatEvent>,
    ) -> Result<Next, LlmError> {
        let named_error = event.name == Some("error");
        let data = match event.data.trim() {
            "[DONE]" => return Ok(Next::End),
            "" => return Ok(Next::More),
            data => data,
        };
        let answer: Answer = match serde_json::from_str(data) {
            Ok(answer) => answer,
            Err(_) if named_error => return Err(diagnosis.failed_under_way(data)),
            Err(error) => return Err(diagnosis.unreadable_event(data, &error)),
        };
        let choices = answer.choices.unwrap_or_default();
        let failed = answer.error.is_some() || choices.iter().any(|choice| choice.error.is_some());
        // An event without either may be vLLM's bare error object, or nothing to us.
        let empty = choices.is_empty() && answer.usage.is_none();
        if (failed || empty || named_error)
            && let Some(error) = diagnosis.reported_in(data.as_bytes())
        {
            return Err(error);
        }
        if named_error {
            return Err(diagnosis.failed_under_way(data));
        }
        for mut choice in choices {
            // Others than the first have not been asked for.
            if choice.index.unwrap_or(0) != 0 {
                continue;
            }
            let reason = choice.finish_reason.take().filter(|r| !r.is_empty());
            self.take_logprobs(choice.logprobs.take());
            if let Some(piece) = choice.piece() {
                self.take(piece, |event| told.push_back(event));
            }
            self.finish_reason = reason.or_else(|| self.finish_reason.take());
        }
        // Some servers report it in every event; the last one is the sum.
        if answer.usage.is_some() {
            self.usage = answer.usage;
        }
        self.model = answer.model.or_else(|| self.model.take());
        Ok(Next::More)
    }

    fn finish(self, headers: &HeaderMap) -> Result<Vec<ChatEvent>, LlmError> {
        if self.finish_reason.is_none() && !self.whole {
            let message = "the answer ended without saying how the turn ended";
            return Err(LlmError::new(LlmErrorKind::Interrupted, message));
        }
        // On a stream LiteLLM's header stands before the cost is known.
        let cost_usd = if self.whole {
            litellm_cost(headers)
        } else {
            None
        };
        let model = served_by(headers, self.model.clone());
        self.told(cost_usd, model)
    }
}

/// What LiteLLM charges.
fn litellm_cost(headers: &HeaderMap) -> Option<f64> {
    let cost = headers.get("x-litellm-response-cost")?;
    cost.to_str().ok()?.trim().parse().ok()
}

impl ChatTurn {
    /// Takes a message or a piece of one, and gives what is new in it to `watch`.
    pub(super) fn take(&mut self, piece: Message, mut watch: impl FnMut(ChatEvent)) {
        let reasoning = piece.reasoning_content.filter(|piece| !piece.is_empty());
        if let Some(reasoning) = reasoning.or(piece.reasoning).filter(|r| !r.is_empty()) {
            self.reasoning.push_str(&reasoning);
            watch(ChatEvent::ReasoningDelta(reasoning));
        }
        for detail in piece.reasoning_details.into_iter().flatten() {
            self.take_detail(detail);
        }
        for thinking in piece.thinking_blocks.into_iter().flatten() {
            self.take_thinking(thinking);
        }
        for text in [piece.content, piece.refusal].into_iter().flatten() {
            if !text.is_empty() {
                self.text.push_str(&text);
                watch(ChatEvent::TextDelta(text));
            }
        }
        for call in piece.tool_calls.into_iter().flatten() {
            watch(self.take_call(call));
        }
    }

    /// LiteLLM sends a block's text in pieces and then its signature, alone. A block is open until
    /// it has one.
    fn take_thinking(&mut self, piece: Thinking) {
        if piece.kind.as_deref() == Some("redacted_thinking") {
            let data = piece.data.unwrap_or_default();
            self.thinking
                .push(AssistantBlock::RedactedReasoning { data });
            return;
        }
        let text = piece.thinking.unwrap_or_default();
        let signed = piece.signature.unwrap_or_default();
        if text.is_empty() && signed.is_empty() {
            return;
        }
        match self.thinking.last_mut() {
            Some(AssistantBlock::SignedReasoning { content, signature })
                if signature.is_empty() =>
            {
                content.push_str(&text);
                *signature = signed;
            }
            _ => self.thinking.push(AssistantBlock::SignedReasoning {
                signature: signed,
                content: text,
            }),
        }
    }

    /// OpenRouter sends a detail's text in pieces: those of one index and type are one.
    /// <https://openrouter.ai/docs/use-cases/reasoning-tokens#preserving-reasoning>
    fn take_detail(&mut self, piece: Map<String, Value>) {
        let before = self.details.last_mut().filter(|before| {
            let same = |field| before.get(field) == piece.get(field);
            piece.contains_key("index") && same("index") && same("type")
        });
        let Some(before) = before else {
            self.details.push(piece);
            return;
        };
        for (name, value) in piece {
            let grows = matches!(&*name, "text" | "summary" | "data");
            match (before.get_mut(&name), value) {
                (Some(Value::String(text)), Value::String(more)) if grows => text.push_str(&more),
                (Some(_), Value::Null) => {}
                (_, value) => drop(before.insert(name, value)),
            }
        }
    }

    /// Lists grow, and what is null is not there.
    fn take_logprobs(&mut self, piece: Option<Map<String, Value>>) {
        for (name, value) in piece.into_iter().flatten() {
            match (self.logprobs.get_mut(&name), value) {
                (_, Value::Null) => {}
                (Some(Value::Array(list)), Value::Array(more)) => list.extend(more),
                (_, value) => drop(self.logprobs.insert(name, value)),
            }
        }
    }

    fn take_call(&mut self, mut piece: Call) -> ChatEvent {
        let signature = piece.signature();
        let id = piece.id.unwrap_or_default();
        let function = piece.function.unwrap_or_default();
        let name = function.name.unwrap_or_default();
        let arguments = function.arguments.unwrap_or_default();

        let place = self.place_of(piece.index, &id, &name);
        if place == self.calls.len() {
            self.calls.push(Draft {
                index: piece.index,
                ..Draft::default()
            });
        }
        let mut shown = None;
        if let Some(draft) = self.calls.get_mut(place) {
            if draft.id.is_empty() {
                draft.id = id;
            }
            if draft.name.is_empty() && !name.is_empty() {
                draft.name.clone_from(&name);
                shown = Some(name);
            }
            draft.arguments.push_str(&arguments);
            draft.signature = signature.or_else(|| draft.signature.take());
        }
        ChatEvent::ToolCallDelta {
            index: place,
            name: shown,
            arguments,
        }
    }

    /// Which call a piece belongs to; the number of calls where it begins a new one.
    fn place_of(&self, index: Option<u64>, id: &str, name: &str) -> usize {
        let begins = self.calls.len();
        let found = match index {
            Some(_) => self.calls.iter().rposition(|draft| draft.index == index),
            None if !id.is_empty() => self.calls.iter().rposition(|draft| draft.id == id),
            None if !name.is_empty() => None,
            None => begins.checked_sub(1),
        };
        let Some(place) = found else {
            return begins;
        };
        // Some servers send every parallel call with index 0, each whole and with an id of its own.
        let other = |draft: &Draft| {
            !id.is_empty() && !name.is_empty() && !draft.id.is_empty() && draft.id != id
        };
        if self.calls.get(place).is_some_and(other) {
            return begins;
        }
        place
    }

    /// The whole blocks and the end, in the order in which they are told.
    ///
    /// # Errors
    /// Where the provider gave an error as its reason to stop.
    fn told(
        self,
        cost_usd: Option<f64>,
        served_by: Option<String>,
    ) -> Result<Vec<ChatEvent>, LlmError> {
        let mut blocks = self.thinking;
        for block in &mut blocks {
            // Without a signature there is nothing to hand back.
            if let AssistantBlock::SignedReasoning { signature, content } = block
                && signature.is_empty()
            {
                let content = std::mem::take(content);
                *block = AssistantBlock::Reasoning { content };
            }
        }
        // Beside thinking blocks with text it is the same text once more.
        let withheld = |block| matches!(block, &AssistantBlock::RedactedReasoning { .. });
        if !self.reasoning.is_empty() && blocks.iter().all(withheld) {
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
        let stop = stop_reason(self.finish_reason.as_deref(), !self.calls.is_empty())?;
        let calls = self.calls.into_iter().map(ToolCall::from);
        blocks.extend(calls.map(AssistantBlock::ToolCall));
        with_unique_ids(&mut blocks);

        let mut end = TurnEnd::new(stop, self.usage.as_ref().map(Usage::disjoint));
        let reported = self.usage.and_then(|usage| usage.cost).or(cost_usd);
        end.cost_usd = reported.filter(|cost| cost.is_finite() && *cost >= 0.0);
        end.served_by = served_by;
        if !self.logprobs.is_empty() {
            let logprobs = self.logprobs.into();
            end.extra.insert("logprobs".to_owned(), logprobs);
        }
        let mut events: Vec<_> = blocks.into_iter().map(ChatEvent::Block).collect();
        events.push(ChatEvent::Finished(end));
        Ok(events)
    }
}

impl From<Draft> for ToolCall {
    fn from(draft: Draft) -> Self {
        let mut call = Self::new(Some(draft.id), draft.name, draft.arguments);
        call.signature = draft.signature.filter(|signature| !signature.is_empty());
        call
    }
}

fn stop_reason(reason: Option<&str>, calls: bool) -> Result<StopReason, LlmError> {
    Ok(match reason {
        // LiteLLM says `stop` for some turns that call tools.
        None | Some("stop") if !calls => StopReason::EndTurn,
        None | Some("stop" | "tool_calls" | "function_call") => StopReason::ToolCalls,
        Some("length" | "max_tokens") => StopReason::Length,
        Some("content_filter") => StopReason::ContentFilter,
        // OpenRouter, where the model behind it failed under way.
        Some("error") => {
            let message = "the provider failed while it answered, and did not say why";
            return Err(LlmError::new(LlmErrorKind::Server, message));
        }
        Some(other) => StopReason::Other(other.to_owned()),
    })
}

#[cfg(test)]
mod tests;
