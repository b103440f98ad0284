//! A turn, put together from what arrives. Blocks keep the order that the model gave them.

use std::collections::VecDeque;

use cantle_core::llm::{ChatEvent, LlmError, LlmErrorKind, StopReason, TurnEnd};
use cantle_core::message::{AssistantBlock, ToolCall};
use reqwest::header::HeaderMap;
use serde_json::Value;

use super::wire::{Block, Delta, Input, Message, StreamEvent, Usage};
use crate::http::{Diagnosis, Next, Turn, served_by, with_unique_ids};
use crate::sse::Event;

/// A turn on its way.
#[derive(Debug, Default)]
pub struct AnthropicTurn {
    drafts: Vec<Draft>,
    model: Option<String>,
    stop_reason: Option<String>,
    usage: Option<Usage>,
}

/// A block on its way, with the index that it has in its stream.
#[derive(Debug)]
struct Draft {
    index: u64,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Text(String),
    Thinking {
        content: String,
        signature: String,
    },
    Redacted(String),
    Call {
        /// Which call of the turn it is.
        number: usize,
        id: String,
        name: String,
        /// What came in pieces.
        pieces: String,
        /// What came at once, which counts where there were no pieces.
        input: String,
    },
    /// A block of a kind that is not known here, and its input where that came in pieces.
    Opaque {
        block: Value,
        pieces: String,
    },
}

impl Turn for AnthropicTurn {
    fn whole(
        &mut self,
        diagnosis: &Diagnosis,
        headers: &HeaderMap,
        body: &[u8],
    ) -> Result<(), LlmError> {
        if let Some(error) = diagnosis.reported_in(body) {
            return Err(error);
        }
        let no_answer = |why: &str| diagnosis.no_answer(headers, body, why);
        let message: Message<'_> =
            serde_json::from_slice(body).map_err(|error| no_answer(&error.to_string()))?;
        let Some(content) = message.content else {
            return Err(no_answer("it has no content"));
        };
        if message.stop_reason.is_none() {
            return Err(no_answer("it has no reason to stop"));
        }
        for (index, block) in (0..).zip(content) {
            let kind = self.begin(block.get());
            let kind = kind.map_err(|error| no_answer(&error.to_string()))?;
            self.drafts.push(Draft { index, kind });
        }
        self.model = message.model;
        self.stop_reason = message.stop_reason;
        self.usage = message.usage;
        Ok(())
    }

    fn event(
        &mut self,
        diagnosis: &Diagnosis,
        event: &Event<'_>,
        told: &mut VecDeque<ChatEvent>,
    ) -> Result<Next, LlmError> {
        let data = event.data.trim();
        if data.is_empty() || data == "[DONE]" {
            return Ok(Next::More);
        }
        let unreadable = |error| match event.name {
            Some("error") => diagnosis
                .reported_in(data.as_bytes())
                .unwrap_or_else(|| diagnosis.failed_under_way(data)),
            _ => diagnosis.unreadable_event(data, &error),
        };
        match serde_json::from_str(data).map_err(unreadable)? {
            StreamEvent::MessageStart { message } => {
                self.model = message.model;
                self.usage = message.usage;
            }
            StreamEvent::ContentBlockStart {
                index,
                content_block,
            } => {
                let kind = self.begin(&content_block.to_string()).map_err(unreadable)?;
                told.extend(kind.shown());
                self.drafts.push(Draft { index, kind });
            }
            StreamEvent::ContentBlockDelta { index, delta } => {
                let mut drafts = self.drafts.iter_mut().rev();
                let Some(draft) = drafts.find(|draft| draft.index == index) else {
                    let message = "the server sent a piece of a block that it had not begun";
                    return Err(diagnosis.protocol(message));
                };
                told.extend(draft.kind.take(delta));
            }
            StreamEvent::MessageDelta { delta, usage } => {
                self.stop_reason = delta.stop_reason.or(self.stop_reason.take());
                if let Some(usage) = usage {
                    self.usage = Some(self.usage.unwrap_or_default().then(usage));
                }
            }
            StreamEvent::MessageStop {} => return Ok(Next::End),
            StreamEvent::Error {} => {
                let error = diagnosis.reported_in(data.as_bytes());
                return Err(error.unwrap_or_else(|| diagnosis.failed_under_way(data)));
            }
            StreamEvent::ContentBlockStop {} | StreamEvent::Unknown => {
                // A proxy's error, in OpenAI's shape.
                if let Some(error) = diagnosis.reported_in(data.as_bytes()) {
                    return Err(error);
                }
            }
        }
        Ok(Next::More)
    }

    fn finish(self, headers: &HeaderMap) -> Result<Vec<ChatEvent>, LlmError> {
        let Some(stop_reason) = self.stop_reason else {
            let message = "the answer ended without saying how the turn ended";
            return Err(LlmError::new(LlmErrorKind::Interrupted, message));
        };
        let mut blocks: Vec<_> = self
            .drafts
            .into_iter()
            .filter_map(|draft| draft.kind.whole())
            .collect();
        with_unique_ids(&mut blocks);
        let usage = self.usage.as_ref().map(Usage::counted);
        let mut end = TurnEnd::new(stop(&stop_reason), usage);
        end.served_by = served_by(headers, self.model);
        let mut events: Vec<_> = blocks.into_iter().map(ChatEvent::Block).collect();
        events.push(ChatEvent::Finished(end));
        Ok(events)
    }
}

impl AnthropicTurn {
    /// Begins a block, from its JSON.
    fn begin(&self, block: &str) -> Result<Kind, serde_json::Error> {
        Ok(match serde_json::from_str(block)? {
            Block::Text { text } => Kind::Text(text),
            Block::Thinking {
                thinking,
                signature,
            } => Kind::Thinking {
                content: thinking,
                signature,
            },
            Block::RedactedThinking { data } => Kind::Redacted(data),
            Block::ToolUse { id, name } => Kind::Call {
                number: self.calls(),
                id,
                name,
                pieces: String::new(),
                input: serde_json::from_str::<Input<'_>>(block)?.text(),
            },
            Block::Unknown => Kind::Opaque {
                block: serde_json::from_str(block)?,
                pieces: String::new(),
            },
        })
    }

    fn calls(&self) -> usize {
        let call = |draft: &&Draft| matches!(draft.kind, Kind::Call { .. });
        self.drafts.iter().filter(call).count()
    }
}

impl Kind {
    /// What there is to tell of a block that begins.
    fn shown(&self) -> Option<ChatEvent> {
        match self {
            Self::Text(text) if !text.is_empty() => Some(ChatEvent::TextDelta(text.clone())),
            Self::Thinking { content, .. } if !content.is_empty() => {
                Some(ChatEvent::ReasoningDelta(content.clone()))
            }
            Self::Call { number, name, .. } => Some(ChatEvent::ToolCallDelta {
                index: *number,
                name: Some(name.clone()),
                arguments: String::new(),
            }),
            _ => None,
        }
    }

    /// Takes a piece, and tells what is new in it. A piece of another kind of block is passed over.
    fn take(&mut self, delta: Delta) -> Option<ChatEvent> {
        match (self, delta) {
            (Self::Text(text), Delta::Text { text: piece }) => {
                text.push_str(&piece);
                (!piece.is_empty()).then_some(ChatEvent::TextDelta(piece))
            }
            (Self::Thinking { content, .. }, Delta::Thinking { thinking }) => {
                content.push_str(&thinking);
                Some(ChatEvent::ReasoningDelta(thinking))
            }
            (Self::Thinking { signature, .. }, Delta::Signature { signature: piece }) => {
                signature.push_str(&piece);
                None
            }
            (Self::Call { number, pieces, .. }, Delta::InputJson { partial_json }) => {
                pieces.push_str(&partial_json);
                Some(ChatEvent::ToolCallDelta {
                    index: *number,
                    name: None,
                    arguments: partial_json,
                })
            }
            (Self::Opaque { pieces, .. }, Delta::InputJson { partial_json }) => {
                pieces.push_str(&partial_json);
                None
            }
            _ => None,
        }
    }

    /// The block; `None` for an empty text.
    fn whole(self) -> Option<AssistantBlock> {
        Some(match self {
            Self::Text(text) if text.is_empty() => return None,
            Self::Text(text) => AssistantBlock::text(text),
            // Without a signature there is nothing to hand back.
            Self::Thinking { content, signature } if signature.is_empty() => {
                AssistantBlock::Reasoning { content }
            }
            Self::Thinking { content, signature } => {
                AssistantBlock::SignedReasoning { signature, content }
            }
            Self::Redacted(data) => AssistantBlock::RedactedReasoning { data },
            Self::Call {
                id,
                name,
                pieces,
                input,
                ..
            } => {
                let arguments = if pieces.is_empty() { input } else { pieces };
                AssistantBlock::ToolCall(ToolCall::new(Some(id), name, arguments))
            }
            Self::Opaque { mut block, pieces } => {
                if let (Ok(input), Some(fields)) = (
                    serde_json::from_str::<Value>(&pieces),
                    block.as_object_mut(),
                ) {
                    fields.insert("input".to_owned(), input);
                }
                AssistantBlock::Opaque {
                    data: block.to_string(),
                }
            }
        })
    }
}

fn stop(reason: &str) -> StopReason {
    match reason {
        "end_turn" | "stop_sequence" => StopReason::EndTurn,
        "tool_use" => StopReason::ToolCalls,
        "max_tokens" | "model_context_window_exceeded" => StopReason::Length,
        "refusal" => StopReason::ContentFilter,
        other => StopReason::Other(other.to_owned()),
    }
}

#[cfg(test)]
mod tests;
