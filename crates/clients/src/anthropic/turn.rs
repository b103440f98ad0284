//! Assembles a turn from an Anthropic Messages response. Blocks keep their order.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use cantle_core::llm::{ChatEvent, LlmError, StopReason, TurnEnd};
use cantle_core::message::{AssistantBlock, ToolCall};
use cantle_core::usage::TokenUsage;
use reqwest::header::HeaderMap;
use serde_json::Value;

use super::wire::{
    BlockDelta, ContentBlock, MessageResponse, MessageStreamEvent, MessageUsage, ToolUseInput,
};
use crate::http::{ErrorContext, TurnAssembler, filled_window, incomplete_response};
use crate::sse::Event;

/// An incomplete turn.
#[derive(Debug, Default)]
pub struct AnthropicAssembler {
    /// The blocks with their indices in the stream.
    blocks: Vec<(u64, PendingContent)>,
    model: Option<String>,
    stop_reason: Option<String>,
    usage: Option<MessageUsage>,
}

/// The content of an incomplete block.
#[derive(Debug)]
enum PendingContent {
    Text(String),
    Thinking {
        content: String,
        signature: String,
    },
    Redacted(String),
    Call {
        /// Position among the turn's calls.
        position: usize,
        id: String,
        name: String,
        /// Concatenated deltas of the input.
        deltas: String,
        /// Complete input, used if there are no deltas.
        input: String,
    },
    /// A block of unknown type, with the deltas of its input.
    Opaque {
        block: Value,
        deltas: String,
    },
}

impl TurnAssembler for AnthropicAssembler {
    fn read_body(
        &mut self,
        errors: &ErrorContext,
        headers: &HeaderMap,
        body: &[u8],
    ) -> Result<(), LlmError> {
        let invalid = |reason: &str| errors.invalid_body(headers, body, reason);
        let message: MessageResponse<'_> = errors.parse_body(headers, body)?;
        let Some(content) = message.content else {
            return Err(invalid("it has no content"));
        };
        if message.stop_reason.is_none() {
            return Err(invalid("it has no stop reason"));
        }
        for (index, block) in (0..).zip(content) {
            let content = self.start_block(block.get());
            let content = content.map_err(|error| invalid(&error.to_string()))?;
            self.blocks.push((index, content));
        }
        self.model = message.model;
        self.stop_reason = message.stop_reason;
        self.usage = message.usage;
        Ok(())
    }

    fn read_event(
        &mut self,
        errors: &ErrorContext,
        event: &Event<'_>,
        deltas: &mut VecDeque<ChatEvent>,
    ) -> Result<ControlFlow<()>, LlmError> {
        match errors.parse_event(event)? {
            MessageStreamEvent::MessageStart { message } => {
                self.model = message.model;
                self.usage = message.usage;
            }
            MessageStreamEvent::ContentBlockStart {
                index,
                content_block,
            } => {
                let content = self.start_block(&content_block.to_string());
                let content = content.map_err(|error| errors.unreadable_event(event, &error))?;
                deltas.extend(content.first_delta());
                self.blocks.push((index, content));
            }
            MessageStreamEvent::ContentBlockDelta { index, delta } => {
                let mut blocks = self.blocks.iter_mut().rev();
                let Some((_, content)) = blocks.find(|(at, _)| *at == index) else {
                    let message = "the server sent a delta for a block that it did not start";
                    return Err(errors.protocol(message));
                };
                deltas.extend(content.add(delta));
            }
            MessageStreamEvent::MessageDelta { delta, usage } => {
                self.stop_reason = delta.stop_reason.or(self.stop_reason.take());
                if let Some(usage) = usage {
                    self.usage.get_or_insert_default().update(usage);
                }
            }
            MessageStreamEvent::MessageStop {} => return Ok(ControlFlow::Break(())),
            MessageStreamEvent::Error {} => {
                return Err(errors.event_error(&event.data));
            }
            MessageStreamEvent::ContentBlockStop {} | MessageStreamEvent::Unknown => {
                // An error of a proxy in OpenAI's format.
                errors
                    .body_error(event.data.as_bytes())
                    .map_or(Ok(()), Err)?;
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn usage(&self) -> Option<TokenUsage> {
        self.usage.map(MessageUsage::to_token_usage)
    }

    fn into_turn(self, _: &HeaderMap) -> Result<(Vec<AssistantBlock>, TurnEnd), LlmError> {
        let stop_reason = self.stop_reason.ok_or_else(incomplete_response)?;
        let usage = self.usage.map(MessageUsage::to_token_usage);
        let blocks = self.blocks.into_iter();
        let blocks = blocks.filter_map(|(_, content)| content.into_block());
        let mut end = TurnEnd::new(parse_stop_reason(&stop_reason)?, usage);
        end.served_by = self.model;
        Ok((blocks.collect(), end))
    }
}

impl AnthropicAssembler {
    /// Creates a pending block from its JSON.
    fn start_block(&self, block: &str) -> Result<PendingContent, serde_json::Error> {
        Ok(match serde_json::from_str(block)? {
            ContentBlock::Text { text } => PendingContent::Text(text),
            ContentBlock::Thinking {
                thinking,
                signature,
            } => PendingContent::Thinking {
                content: thinking,
                signature: signature.unwrap_or_default(),
            },
            ContentBlock::RedactedThinking { data } => PendingContent::Redacted(data),
            ContentBlock::ToolUse { id, name } => PendingContent::Call {
                position: self.call_count(),
                id,
                name,
                deltas: String::new(),
                input: serde_json::from_str::<ToolUseInput<'_>>(block)?.text(),
            },
            ContentBlock::Unknown => PendingContent::Opaque {
                block: serde_json::from_str(block)?,
                deltas: String::new(),
            },
        })
    }

    fn call_count(&self) -> usize {
        let contents = self.blocks.iter().map(|(_, content)| content);
        let is_call = |content: &&PendingContent| matches!(content, PendingContent::Call { .. });
        contents.filter(is_call).count()
    }
}

impl PendingContent {
    /// Returns the first delta of a new block, if any.
    fn first_delta(&self) -> Option<ChatEvent> {
        match self {
            Self::Text(text) if !text.is_empty() => Some(ChatEvent::TextDelta(text.clone())),
            Self::Thinking { content, .. } if !content.is_empty() => {
                Some(ChatEvent::ReasoningDelta(content.clone()))
            }
            Self::Call { position, name, .. } => Some(ChatEvent::ToolCallDelta {
                index: *position,
                name: Some(name.clone()),
                arguments: String::new(),
            }),
            _ => None,
        }
    }

    /// Appends a delta and returns its event. Deltas of another block type are ignored.
    fn add(&mut self, delta: BlockDelta) -> Option<ChatEvent> {
        match (self, delta) {
            (Self::Text(text), BlockDelta::Text { text: delta }) => {
                text.push_str(&delta);
                (!delta.is_empty()).then_some(ChatEvent::TextDelta(delta))
            }
            (Self::Thinking { content, .. }, BlockDelta::Thinking { thinking }) => {
                content.push_str(&thinking);
                Some(ChatEvent::ReasoningDelta(thinking))
            }
            (Self::Thinking { signature, .. }, BlockDelta::Signature { signature: delta }) => {
                signature.push_str(&delta);
                None
            }
            (
                Self::Call {
                    position, deltas, ..
                },
                BlockDelta::InputJson { partial_json },
            ) => {
                deltas.push_str(&partial_json);
                Some(ChatEvent::ToolCallDelta {
                    index: *position,
                    name: None,
                    arguments: partial_json,
                })
            }
            (Self::Opaque { deltas, .. }, BlockDelta::InputJson { partial_json }) => {
                deltas.push_str(&partial_json);
                None
            }
            _ => None,
        }
    }

    /// Returns the block; `None` for an empty text.
    fn into_block(self) -> Option<AssistantBlock> {
        Some(match self {
            Self::Text(text) if text.is_empty() => return None,
            Self::Text(text) => AssistantBlock::text(text),
            // Reasoning without a signature cannot be sent back.
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
                deltas,
                input,
                ..
            } => {
                let arguments = if deltas.is_empty() { input } else { deltas };
                AssistantBlock::ToolCall(ToolCall::new(Some(id), name, arguments))
            }
            Self::Opaque { mut block, deltas } => {
                if let (Ok(input), Some(fields)) = (
                    serde_json::from_str::<Value>(&deltas),
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

fn parse_stop_reason(reason: &str) -> Result<StopReason, LlmError> {
    Ok(match reason {
        "end_turn" | "stop_sequence" => StopReason::EndTurn,
        "tool_use" => StopReason::ToolCalls,
        "max_tokens" => StopReason::Length,
        // Neither a higher output limit nor a continuation helps; only a shorter conversation does.
        "model_context_window_exceeded" => return Err(filled_window()),
        "refusal" => StopReason::ContentFilter,
        other => StopReason::Other(other.to_owned()),
    })
}

#[cfg(test)]
mod tests;
