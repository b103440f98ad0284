//! Assembles a turn from an OpenAI Responses response. Items keep their order.

use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;

use cantle_core::llm::{ChatEvent, LlmError, StopReason, TurnEnd};
use cantle_core::message::{AssistantBlock, ToolCall};
use cantle_core::usage::TokenUsage;
use reqwest::header::HeaderMap;
use serde_json::{Value, json};

use super::wire::{
    OutputContent, OutputItem, Response, ResponseStreamEvent, ResponseUsage, TextPart,
};
use crate::http::{ErrorContext, TurnAssembler, incomplete_response};
use crate::sse::Event;

/// An incomplete turn.
#[derive(Debug, Default)]
pub struct ResponsesAssembler {
    /// Whether the provider stores the conversation, so that the turn's id can continue it.
    stateful: bool,
    /// Blocks of complete items, by output index.
    items: BTreeMap<u64, Vec<AssistantBlock>>,
    /// Output indices of tool calls, in order of appearance.
    calls: Vec<u64>,
    usage: Option<ResponseUsage>,
    /// The end of the response, once received.
    end: Option<TurnEnd>,
}

impl ResponsesAssembler {
    pub(super) fn new(stateful: bool) -> Self {
        Self {
            stateful,
            ..Self::default()
        }
    }

    /// Reads the end of a response, and its items unless they came before.
    fn read_end(&mut self, errors: &ErrorContext, response: Response) -> Result<(), LlmError> {
        self.usage = response.usage;
        if let Some(error) = response.error.filter(|error| !error.is_null()) {
            return Err(errors.event_error(&json!({ "error": error }).to_string()));
        }
        let reason = response
            .incomplete_details
            .and_then(|details| details.reason);
        let stop = match (response.status.as_deref(), reason.as_deref()) {
            (Some("completed"), _) => None,
            // A missing reason (aimock) means the most common one.
            (Some("incomplete"), Some("max_output_tokens") | None) => Some(StopReason::Length),
            (Some("incomplete"), Some("content_filter")) => Some(StopReason::ContentFilter),
            (Some("incomplete"), Some(other)) => Some(StopReason::Other(other.to_owned())),
            (status, _) => {
                let status = status.unwrap_or("no status");
                return Err(errors.event_error(&format!("the response ended with status {status}")));
            }
        };
        if self.items.is_empty() {
            for (index, item) in (0..).zip(response.output.into_iter().flatten()) {
                self.read_item(errors, index, &item)?;
            }
        }
        let is_call = |block: &AssistantBlock| matches!(block, AssistantBlock::ToolCall(_));
        let default_stop = match self.items.values().flatten().any(is_call) {
            true => StopReason::ToolCalls,
            false => StopReason::EndTurn,
        };
        let mut end = TurnEnd::new(stop.unwrap_or(default_stop), self.usage());
        end.response_id = response.id.filter(|id| self.stateful && !id.is_empty());
        end.cost_usd = self.usage.as_ref().and_then(|usage| usage.cost.usd());
        end.served_by = response.model;
        self.end = Some(end);
        Ok(())
    }

    fn read_item(
        &mut self,
        errors: &ErrorContext,
        index: u64,
        item: &Value,
    ) -> Result<(), LlmError> {
        let parsed = serde::Deserialize::deserialize(item);
        let parsed: OutputItem = parsed.map_err(|error: serde_json::Error| {
            errors.protocol(&format!("failed to parse an item of the server: {error}"))
        })?;
        let blocks = self.blocks(parsed, item);
        self.items.insert(index, blocks);
        Ok(())
    }

    /// Returns the blocks of an item; `raw` is its JSON.
    fn blocks(&self, item: OutputItem, raw: &Value) -> Vec<AssistantBlock> {
        match item {
            OutputItem::Message { content, phase } => content
                .into_iter()
                .flatten()
                .filter_map(|part| match part {
                    OutputContent::OutputText { text }
                    | OutputContent::Refusal { refusal: text } => text,
                    OutputContent::Unknown => None,
                })
                .filter(|text| !text.is_empty())
                .map(|text| AssistantBlock::Text {
                    text,
                    signature: phase.clone(),
                })
                .collect(),
            OutputItem::Reasoning {
                id,
                summary,
                content,
                encrypted_content,
            } => {
                let summary = texts(summary);
                let content = Some(texts(content).concat()).filter(|text| !text.is_empty());
                vec![match encrypted_content.filter(|text| !text.is_empty()) {
                    Some(encrypted_content) => AssistantBlock::EncryptedReasoning {
                        id,
                        encrypted_content,
                        content,
                        summary,
                    },
                    // The provider did not store it, so it cannot be referenced.
                    None if content.is_none() && !self.stateful => AssistantBlock::Reasoning {
                        content: summary.concat(),
                    },
                    None => AssistantBlock::ReasoningRef {
                        id,
                        content,
                        summary,
                    },
                }]
            }
            OutputItem::FunctionCall {
                call_id,
                name,
                arguments,
            } => {
                let call = ToolCall::new(call_id, name, arguments.unwrap_or_default());
                vec![AssistantBlock::ToolCall(call)]
            }
            OutputItem::Unknown => vec![AssistantBlock::Opaque {
                data: raw.to_string(),
            }],
        }
    }

    /// Returns the position of the call at an output index among the turn's calls.
    fn call_position(&mut self, output_index: u64) -> usize {
        let known = self.calls.iter().position(|&call| call == output_index);
        known.unwrap_or_else(|| {
            self.calls.push(output_index);
            self.calls.len() - 1
        })
    }
}

impl TurnAssembler for ResponsesAssembler {
    fn read_body(
        &mut self,
        errors: &ErrorContext,
        headers: &HeaderMap,
        body: &[u8],
    ) -> Result<(), LlmError> {
        let response: Response = errors.parse_body(headers, body)?;
        if response.output.is_none() {
            return Err(errors.invalid_body(headers, body, "it has no output"));
        }
        self.read_end(errors, response)
    }

    fn read_event(
        &mut self,
        errors: &ErrorContext,
        event: &Event<'_>,
        deltas: &mut VecDeque<ChatEvent>,
    ) -> Result<ControlFlow<()>, LlmError> {
        match errors.parse_event(event)? {
            ResponseStreamEvent::Added { output_index, item } => {
                if item.get("type").and_then(Value::as_str) == Some("function_call") {
                    let name = item.get("name").and_then(Value::as_str);
                    deltas.push_back(ChatEvent::ToolCallDelta {
                        index: self.call_position(output_index),
                        name: name.map(str::to_owned),
                        arguments: String::new(),
                    });
                }
            }
            ResponseStreamEvent::Arguments {
                output_index,
                delta,
            } => {
                deltas.push_back(ChatEvent::ToolCallDelta {
                    index: self.call_position(output_index),
                    name: None,
                    arguments: delta,
                });
            }
            ResponseStreamEvent::Text { delta } => deltas.push_back(ChatEvent::TextDelta(delta)),
            ResponseStreamEvent::Reasoning { delta } => {
                deltas.push_back(ChatEvent::ReasoningDelta(delta));
            }
            ResponseStreamEvent::Done { output_index, item } => {
                self.read_item(errors, output_index, &item)?;
            }
            ResponseStreamEvent::Ended { response } => {
                self.read_end(errors, *response)?;
                return Ok(ControlFlow::Break(()));
            }
            ResponseStreamEvent::Error {} => {
                return Err(errors.event_error(&event.data));
            }
            ResponseStreamEvent::Unknown => {}
        }
        Ok(ControlFlow::Continue(()))
    }

    fn usage(&self) -> Option<TokenUsage> {
        self.usage.as_ref().map(ResponseUsage::to_token_usage)
    }

    fn into_turn(self) -> Result<(Vec<AssistantBlock>, TurnEnd), LlmError> {
        let end = self.end.ok_or_else(incomplete_response)?;
        Ok((self.items.into_values().flatten().collect(), end))
    }
}

fn texts(parts: Option<Vec<TextPart>>) -> Vec<String> {
    parts.into_iter().flatten().map(|part| part.text).collect()
}

#[cfg(test)]
mod tests;
