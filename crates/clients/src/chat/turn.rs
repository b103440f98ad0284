//! A turn, put together from what arrives: all at once or in pieces, by the same code, so that
//! streaming and not streaming give the same message.
//!
//! This dialect has channels and no order between them. Blocks are built reasoning, then text, then
//! tool calls.

use cantle_core::llm::{ChatEvent, LlmError, LlmErrorKind, StopReason, TurnEnd};
use cantle_core::message::{AssistantBlock, ToolCall};

use super::wire::{Call, Message, Thinking, Usage};

#[derive(Debug, Default)]
pub(super) struct Turn {
    reasoning: String,
    thinking: Vec<AssistantBlock>,
    text: String,
    calls: Vec<Draft>,
    /// Why the model stopped, once the provider has said so.
    pub(super) finish_reason: Option<String>,
    pub(super) usage: Option<Usage>,
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

impl Turn {
    /// Takes a message or a piece of one, and gives what is new in it to `watch`.
    pub(super) fn take(&mut self, piece: Message, mut watch: impl FnMut(ChatEvent)) {
        let reasoning = piece.reasoning_content.filter(|piece| !piece.is_empty());
        if let Some(reasoning) = reasoning.or(piece.reasoning).filter(|r| !r.is_empty()) {
            self.reasoning.push_str(&reasoning);
            watch(ChatEvent::ReasoningDelta(reasoning));
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
    pub(super) fn finish(self, cost_usd: Option<f64>) -> Result<Vec<ChatEvent>, LlmError> {
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
        if !self.text.is_empty() {
            blocks.push(AssistantBlock::text(self.text));
        }
        let calls = whole_calls(self.calls);
        let stop = stop_reason(self.finish_reason.as_deref(), !calls.is_empty())?;
        blocks.extend(calls.into_iter().map(AssistantBlock::ToolCall));

        let mut end = TurnEnd::new(stop, self.usage.as_ref().map(Usage::disjoint));
        let reported = self.usage.and_then(|usage| usage.cost).or(cost_usd);
        end.cost_usd = reported.filter(|cost| cost.is_finite() && *cost >= 0.0);
        let mut events: Vec<_> = blocks.into_iter().map(ChatEvent::Block).collect();
        events.push(ChatEvent::Finished(end));
        Ok(events)
    }
}

/// Results are matched to calls by id, so an id that comes a second time is replaced by our own.
fn whole_calls(drafts: Vec<Draft>) -> Vec<ToolCall> {
    let mut calls: Vec<ToolCall> = Vec::with_capacity(drafts.len());
    for draft in drafts {
        let taken = calls.iter().any(|call| call.id == draft.id);
        let id = (!taken).then_some(draft.id);
        let mut call = ToolCall::new(id, draft.name, draft.arguments);
        call.signature = draft.signature.filter(|signature| !signature.is_empty());
        calls.push(call);
    }
    calls
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
