//! Assembles a turn from an Anthropic Messages response. Blocks keep their order.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use cantle_core::llm::{ChatEvent, LlmError, StopReason, TurnEnd};
use cantle_core::message::{AssistantBlock, ToolCall};
use cantle_core::usage::TokenUsage;
use reqwest::header::HeaderMap;
use serde_json::{Map, Value};

use super::wire::{
    BlockDelta, ContentBlock, MessageResponse, MessageStreamEvent, MessageUsage, ToolUseInput,
};
use crate::http::{ErrorContext, TurnAssembler, filled_window, incomplete_response};
use crate::sse::Event;

/// An incomplete turn.
#[derive(Debug, Default)]
pub struct AnthropicAssembler {
    blocks: Vec<PendingBlock>,
    model: Option<String>,
    stop_reason: Option<String>,
    usage: Option<MessageUsage>,
}

/// An incomplete block.
#[derive(Debug)]
struct PendingBlock {
    /// Index in the stream.
    index: u64,
    /// Number of tool calls before it.
    position: usize,
    /// The block without the deltas of its input. Thinking may lack its signature.
    block: AssistantBlock,
    /// Concatenated deltas of the input, which replace it.
    input: String,
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
            let block = self.start_block(index, block.get());
            let block = block.map_err(|error| invalid(&error.to_string()))?;
            self.blocks.push(block);
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
                let block = self.start_block(index, &content_block.to_string());
                let block = block.map_err(|error| errors.unreadable_event(event, &error))?;
                deltas.extend(block.first_delta());
                self.blocks.push(block);
            }
            MessageStreamEvent::ContentBlockDelta { index, delta } => {
                let mut blocks = self.blocks.iter_mut().rev();
                let Some(block) = blocks.find(|block| block.index == index) else {
                    let message = "the server sent a delta for a block that it did not start";
                    return Err(errors.protocol(message));
                };
                deltas.extend(block.add(delta));
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

    fn into_turn(self) -> Result<(Vec<AssistantBlock>, TurnEnd), LlmError> {
        let stop_reason = self.stop_reason.ok_or_else(incomplete_response)?;
        let usage = self.usage.map(MessageUsage::to_token_usage);
        let blocks = self.blocks.into_iter();
        let blocks = blocks.filter_map(PendingBlock::into_block);
        let mut end = TurnEnd::new(parse_stop_reason(&stop_reason)?, usage);
        end.served_by = self.model;
        Ok((blocks.collect(), end))
    }
}

impl AnthropicAssembler {
    /// Creates a pending block from its JSON.
    fn start_block(&self, index: u64, json: &str) -> Result<PendingBlock, serde_json::Error> {
        let position = self.blocks.last().map_or(0, |last| {
            let is_call = matches!(last.block, AssistantBlock::ToolCall(_));
            last.position + usize::from(is_call)
        });
        Ok(PendingBlock {
            index,
            position,
            block: match serde_json::from_str(json)? {
                ContentBlock::Text { text } => AssistantBlock::text(text),
                ContentBlock::Thinking {
                    thinking: content,
                    signature,
                } => AssistantBlock::SignedReasoning {
                    signature: signature.unwrap_or_default(),
                    content,
                },
                ContentBlock::RedactedThinking { data } => {
                    AssistantBlock::RedactedReasoning { data }
                }
                ContentBlock::ToolUse { id, name } => {
                    let input = serde_json::from_str::<ToolUseInput<'_>>(json)?.text();
                    AssistantBlock::ToolCall(ToolCall::new(Some(id), name, input))
                }
                ContentBlock::Unknown => AssistantBlock::Opaque {
                    data: serde_json::from_str::<Value>(json)?.to_string(),
                },
            },
            input: String::new(),
        })
    }
}

impl PendingBlock {
    /// Returns the first delta of a new block, if any.
    fn first_delta(&self) -> Option<ChatEvent> {
        match &self.block {
            AssistantBlock::Text { text, .. } if !text.is_empty() => {
                Some(ChatEvent::TextDelta(text.clone()))
            }
            AssistantBlock::SignedReasoning { content, .. } if !content.is_empty() => {
                Some(ChatEvent::ReasoningDelta(content.clone()))
            }
            AssistantBlock::ToolCall(call) => Some(ChatEvent::ToolCallDelta {
                index: self.position,
                name: Some(call.name.clone()),
                arguments: String::new(),
            }),
            _ => None,
        }
    }

    /// Appends a delta and returns its event. Deltas of another block type are ignored.
    fn add(&mut self, delta: BlockDelta) -> Option<ChatEvent> {
        match (&mut self.block, delta) {
            (AssistantBlock::Text { text, .. }, BlockDelta::Text { text: delta }) => {
                text.push_str(&delta);
                (!delta.is_empty()).then_some(ChatEvent::TextDelta(delta))
            }
            (
                AssistantBlock::SignedReasoning { content, .. },
                BlockDelta::Thinking { thinking },
            ) => {
                content.push_str(&thinking);
                Some(ChatEvent::ReasoningDelta(thinking))
            }
            (
                AssistantBlock::SignedReasoning { signature, .. },
                BlockDelta::Signature { signature: delta },
            ) => {
                signature.push_str(&delta);
                None
            }
            (block, BlockDelta::InputJson { partial_json }) => {
                self.input.push_str(&partial_json);
                let is_call = matches!(block, AssistantBlock::ToolCall(_));
                is_call.then_some(ChatEvent::ToolCallDelta {
                    index: self.position,
                    name: None,
                    arguments: partial_json,
                })
            }
            _ => None,
        }
    }

    /// Returns the block; `None` for an empty text.
    fn into_block(self) -> Option<AssistantBlock> {
        match self.block {
            AssistantBlock::Text { text, .. } if text.is_empty() => None,
            AssistantBlock::ToolCall(mut call) if !self.input.is_empty() => {
                call.arguments = self.input;
                Some(AssistantBlock::ToolCall(call))
            }
            AssistantBlock::Opaque { data } => Some(AssistantBlock::Opaque {
                data: with_input(&data, &self.input).unwrap_or(data),
            }),
            block => Some(block),
        }
    }
}

/// Returns the JSON of a block with this input; `None` if that is no JSON.
fn with_input(block: &str, input: &str) -> Option<String> {
    let input = serde_json::from_str(input).ok()?;
    let mut fields: Map<String, Value> = serde_json::from_str(block).ok()?;
    fields.insert("input".to_owned(), input);
    Some(Value::Object(fields).to_string())
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
