//! A turn, put together from what arrives. Items keep the order that the provider gave them.

use std::collections::{BTreeMap, VecDeque};

use cantle_core::llm::{ChatEvent, LlmError, LlmErrorKind, StopReason, TurnEnd};
use cantle_core::message::{AssistantBlock, ToolCall};
use reqwest::header::HeaderMap;
use serde_json::{Value, json};

use super::wire::{Item, Part, Response, StreamEvent, Text, Usage};
use crate::http::{Diagnosis, Next, Turn, served_by, with_unique_ids};
use crate::sse::Event;

/// A turn on its way.
#[derive(Debug, Default)]
pub struct ResponsesTurn {
    /// Whether the provider keeps the conversation, so that it can be continued by the turn's id.
    stateful: bool,
    /// The blocks of whole items, by the items' place in the output.
    items: BTreeMap<u64, Vec<AssistantBlock>>,
    /// Which items are tool calls, in the order in which they were begun.
    calls: Vec<u64>,
    /// How it ended, once the provider has said so.
    end: Option<End>,
}

#[derive(Debug)]
struct End {
    /// `None` where there may be calls: they decide.
    stop: Option<StopReason>,
    id: Option<String>,
    model: Option<String>,
    usage: Option<Usage>,
}

impl ResponsesTurn {
    pub(super) fn new(stateful: bool) -> Self {
        Self {
            stateful,
            ..Self::default()
        }
    }

    /// Takes the end of a response, and its items where they have not come before.
    fn end(&mut self, diagnosis: &Diagnosis, response: Response) -> Result<(), LlmError> {
        if let Some(error) = response.error.filter(|error| !error.is_null()) {
            let error = json!({ "error": error }).to_string();
            let reported = diagnosis.reported_in(error.as_bytes());
            return Err(reported.unwrap_or_else(|| diagnosis.failed_under_way(&error)));
        }
        let reason = response
            .incomplete_details
            .and_then(|details| details.reason);
        let stop = match (response.status.as_deref(), reason.as_deref()) {
            (Some("completed"), _) => None,
            // Without a reason (aimock) it is the usual one.
            (Some("incomplete"), Some("max_output_tokens") | None) => Some(StopReason::Length),
            (Some("incomplete"), Some("content_filter")) => Some(StopReason::ContentFilter),
            (Some("incomplete"), Some(other)) => Some(StopReason::Other(other.to_owned())),
            (status, _) => {
                let status = status.unwrap_or("no status");
                return Err(diagnosis.failed_under_way(&format!("the response ended as {status}")));
            }
        };
        if self.items.is_empty() {
            for (index, item) in (0..).zip(response.output.into_iter().flatten()) {
                self.take(diagnosis, index, &item)?;
            }
        }
        self.end = Some(End {
            stop,
            id: response.id.filter(|id| self.stateful && !id.is_empty()),
            model: response.model,
            usage: response.usage,
        });
        Ok(())
    }

    fn take(&mut self, diagnosis: &Diagnosis, index: u64, item: &Value) -> Result<(), LlmError> {
        let read = serde::Deserialize::deserialize(item);
        let read: Item = read.map_err(|error: serde_json::Error| {
            diagnosis.protocol(&format!(
                "the server sent an item that can't be read: {error}"
            ))
        })?;
        let blocks = self.blocks(read, item);
        self.items.insert(index, blocks);
        Ok(())
    }

    /// The blocks of an item. `raw` is what it was read from.
    fn blocks(&self, item: Item, raw: &Value) -> Vec<AssistantBlock> {
        match item {
            Item::Message { content, phase } => content
                .into_iter()
                .map(|part| match part {
                    Part::OutputText { text } | Part::Refusal { refusal: text } => text,
                })
                .filter(|text| !text.is_empty())
                .map(|text| AssistantBlock::Text {
                    text,
                    signature: phase.clone(),
                })
                .collect(),
            Item::Reasoning {
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
                    // Nobody has the rest of it, so there is nothing to name.
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
            Item::FunctionCall {
                call_id,
                name,
                arguments,
            } => vec![AssistantBlock::ToolCall(ToolCall::new(
                call_id, name, arguments,
            ))],
            Item::Unknown => vec![AssistantBlock::Opaque {
                data: raw.to_string(),
            }],
        }
    }

    /// Which call of the turn the item at this place of the output is.
    fn call(&mut self, output_index: u64) -> usize {
        let known = self.calls.iter().position(|&call| call == output_index);
        known.unwrap_or_else(|| {
            self.calls.push(output_index);
            self.calls.len() - 1
        })
    }
}

impl Turn for ResponsesTurn {
    fn whole(
        &mut self,
        diagnosis: &Diagnosis,
        headers: &HeaderMap,
        body: &[u8],
    ) -> Result<(), LlmError> {
        let response: Response = serde_json::from_slice(body).map_err(|error| {
            diagnosis
                .reported_in(body)
                .unwrap_or_else(|| diagnosis.no_answer(headers, body, &error.to_string()))
        })?;
        if response.output.is_none() {
            let error = diagnosis.reported_in(body);
            return Err(
                error.unwrap_or_else(|| diagnosis.no_answer(headers, body, "it has no output"))
            );
        }
        self.end(diagnosis, response)
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
        let reported = || diagnosis.reported_in(data.as_bytes());
        let read = serde_json::from_str(data).map_err(|error| match event.name {
            Some("error") => reported().unwrap_or_else(|| diagnosis.failed_under_way(data)),
            _ => diagnosis.unreadable_event(data, &error),
        });
        match read? {
            StreamEvent::Added { output_index, item } => {
                if item.get("type").and_then(Value::as_str) == Some("function_call") {
                    let name = item.get("name").and_then(Value::as_str);
                    told.push_back(ChatEvent::ToolCallDelta {
                        index: self.call(output_index),
                        name: name.map(str::to_owned),
                        arguments: String::new(),
                    });
                }
            }
            StreamEvent::Arguments {
                output_index,
                delta,
            } => {
                told.push_back(ChatEvent::ToolCallDelta {
                    index: self.call(output_index),
                    name: None,
                    arguments: delta,
                });
            }
            StreamEvent::Text { delta } => told.push_back(ChatEvent::TextDelta(delta)),
            StreamEvent::Reasoning { delta } => told.push_back(ChatEvent::ReasoningDelta(delta)),
            StreamEvent::Done { output_index, item } => {
                self.take(diagnosis, output_index, &item)?;
            }
            StreamEvent::Ended { response } => {
                self.end(diagnosis, *response)?;
                return Ok(Next::End);
            }
            StreamEvent::Error {} => {
                return Err(reported().unwrap_or_else(|| diagnosis.failed_under_way(data)));
            }
            StreamEvent::Unknown => {}
        }
        Ok(Next::More)
    }

    fn finish(self, headers: &HeaderMap) -> Result<Vec<ChatEvent>, LlmError> {
        let Some(end) = self.end else {
            let message = "the answer ended without saying how the turn ended";
            return Err(LlmError::new(LlmErrorKind::Interrupted, message));
        };
        let mut blocks: Vec<_> = self.items.into_values().flatten().collect();
        with_unique_ids(&mut blocks);
        let calls = blocks
            .iter()
            .any(|block| matches!(block, AssistantBlock::ToolCall(_)));
        let usual = if calls {
            StopReason::ToolCalls
        } else {
            StopReason::EndTurn
        };
        let usage = end.usage.as_ref().map(Usage::disjoint);
        let mut turn_end = TurnEnd::new(end.stop.unwrap_or(usual), usage);
        turn_end.response_id = end.id;
        turn_end.served_by = served_by(headers, end.model);
        let mut events: Vec<_> = blocks.into_iter().map(ChatEvent::Block).collect();
        events.push(ChatEvent::Finished(turn_end));
        Ok(events)
    }
}

fn texts(pieces: Option<Vec<Text>>) -> Vec<String> {
    pieces
        .into_iter()
        .flatten()
        .map(|piece| piece.text)
        .collect()
}

#[cfg(test)]
mod tests;
