//! Histories as JSON, in the format of Stirrup 0.2 with additions.
//!
//! Version 0.1, which can also be read, has flat assistant messages (`content`, `reasoning`,
//! `tool_calls`), and ids of calls and results may be null, paired by their order. Histories are
//! written in the 0.2 format; Stirrup 0.2 ignores the additional fields.

use std::collections::VecDeque;

use serde_json::{Map, Value, json};

use super::{Message, ToolCall, ToolMessage};
use crate::ids::unique_id;

/// The result of a call that a history leaves without one.
const UNANSWERED: &str = "Not run: the conversation was interrupted before this call had a result.";

/// Parses a history, a JSON array of messages of either version.
///
/// Also accepts what Stirrup writes: an array of groups (the last one is the conversation; the others are the parts that
/// summaries replaced), the metadata of a sub-agent (`message_history`) and a cached state (`msgs`).
///
/// ```
/// use cantle_core::message::history;
///
/// let json = r#"[{"role": "user", "kind": "user", "content": "Hello"}]"#;
/// let messages = history::from_json(json.as_bytes())?;
/// assert_eq!(history::from_json(&history::to_json(&messages)?)?, messages);
/// # Ok::<(), cantle_core::message::history::InvalidHistory>(())
/// ```
///
/// # Errors
/// If the text is none of these; the error has the index of the invalid message.
pub fn from_json(json: &[u8]) -> Result<Vec<Message>, InvalidHistory> {
    let value = serde_json::from_slice(json)
        .map_err(|error| InvalidHistory::new(None, error.to_string()))?;
    let mut pending = PendingCalls::default();
    messages(value)?
        .into_iter()
        .enumerate()
        .map(|(index, value)| {
            let invalid = |message: String| InvalidHistory::new(Some(index), message);
            let upgraded = upgrade(value, &mut pending).map_err(invalid)?;
            serde_json::from_value(upgraded).map_err(|error| invalid(error.to_string()))
        })
        .collect()
}

/// Returns the messages of the conversation in one of the forms of a history.
fn messages(value: Value) -> Result<Vec<Value>, InvalidHistory> {
    let (conversation, expected) = match value {
        Value::Object(mut dump) => (
            dump.remove("msgs")
                .or_else(|| dump.remove("message_history")),
            "expected an array of messages, or an object with `msgs` or `message_history`",
        ),
        value => (Some(value), "expected an array of messages"),
    };
    let Some(Value::Array(mut groups)) = conversation else {
        return Err(InvalidHistory::new(None, expected));
    };
    match groups.pop() {
        Some(Value::Array(group)) => Ok(group),
        last => {
            groups.extend(last);
            Ok(groups)
        }
    }
}

/// Adds an unsuccessful result to each tool call without one, because providers refuse a conversation that lacks it.
pub fn answer_open_calls(messages: Vec<Message>) -> Vec<Message> {
    let mut answered = Vec::with_capacity(messages.len());
    let mut open: Vec<ToolCall> = Vec::new();
    for message in messages {
        match &message {
            Message::Tool(result) => open.retain(|call| call.id != result.tool_call_id),
            _ => close(&mut open, &mut answered),
        }
        if let Message::Assistant(message) = &message {
            open.extend(message.tool_calls().cloned());
        }
        answered.push(message);
    }
    close(&mut open, &mut answered);
    answered
}

fn close(open: &mut Vec<ToolCall>, messages: &mut Vec<Message>) {
    let results = open
        .drain(..)
        .map(|call| ToolMessage::new(&call, UNANSWERED));
    messages.extend(results.map(Message::from));
}

/// Serializes a history as a JSON array in the 0.2 format.
///
/// A time that is not a finite number is written as null.
///
/// # Errors
/// If a message can't be serialized, which no known message causes.
pub fn to_json(messages: &[Message]) -> Result<Vec<u8>, InvalidHistory> {
    serde_json::to_vec_pretty(messages)
        .map_err(|error| InvalidHistory::new(None, error.to_string()))
}

/// An error while reading or writing a history.
#[derive(Debug, thiserror::Error)]
#[error("failed to read the history{}: {message}", index.map(|i| format!(" at message {i}")).unwrap_or_default())]
pub struct InvalidHistory {
    index: Option<usize>,
    message: String,
}

impl InvalidHistory {
    fn new(index: Option<usize>, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { index, message }
    }

    /// Returns the index of the invalid message.
    pub fn index(&self) -> Option<usize> {
        self.index
    }
}

/// Calls of the last assistant message without a result: id and name.
type PendingCalls = VecDeque<(String, Option<String>)>;

fn upgrade(value: Value, pending: &mut PendingCalls) -> Result<Value, String> {
    let Value::Object(mut message) = value else {
        return Err("expected an object".to_owned());
    };
    match message.get("role").and_then(Value::as_str) {
        Some("assistant") => {
            flat_to_blocks(&mut message)?;
            *pending = identify_calls(&mut message);
        }
        Some("tool") => identify_result(&mut message, pending)?,
        Some("user") => {
            pending.clear();
            message.entry("kind").or_insert_with(|| "user".into());
        }
        _ => pending.clear(),
    }
    Ok(Value::Object(message))
}

/// Converts the flat fields of version 0.1 into blocks: reasoning, then text, then tool calls.
fn flat_to_blocks(message: &mut Map<String, Value>) -> Result<(), String> {
    let mut take = |key| message.remove(key).filter(|value| !is_blank(value));
    let (content, reasoning, calls) = (take("content"), take("reasoning"), take("tool_calls"));
    if message.contains_key("blocks") {
        if content.is_some() || reasoning.is_some() || calls.is_some() {
            return Err("has both `blocks` and the fields of version 0.1".to_owned());
        }
        return Ok(());
    }

    let mut blocks = Vec::new();
    if let Some(mut reasoning) = reasoning {
        let signed = reasoning.get("signature").is_some_and(Value::is_string);
        let Some(fields) = reasoning.as_object_mut() else {
            return Err("`reasoning` must be an object".to_owned());
        };
        if !signed {
            fields.remove("signature");
        }
        if fields.get("content").is_none_or(Value::is_null) {
            fields.insert("content".to_owned(), "".into());
        }
        let kind = if signed {
            "signed_reasoning"
        } else {
            "reasoning"
        };
        fields.insert("kind".to_owned(), kind.into());
        blocks.push(reasoning);
    }
    match content {
        None => {}
        Some(Value::Array(parts)) => {
            let parts = parts.into_iter().filter(|part| !is_blank(part));
            blocks.extend(parts.map(|part| match part {
                Value::String(_) => text_block(&part),
                other => other,
            }));
        }
        Some(text @ Value::String(_)) => blocks.push(text_block(&text)),
        Some(_) => return Err("`content` must be a string or a list".to_owned()),
    }
    match calls {
        None => {}
        Some(Value::Array(calls)) => blocks.extend(calls.into_iter().map(|mut call| {
            if let Some(fields) = call.as_object_mut() {
                fields.insert("kind".to_owned(), "tool_call".into());
            }
            call
        })),
        Some(_) => return Err("`tool_calls` must be a list".to_owned()),
    }
    message.insert("blocks".to_owned(), Value::Array(blocks));
    Ok(())
}

fn text_block(text: &Value) -> Value {
    json!({"kind": "text", "text": text})
}

fn is_blank(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

/// Assigns an id to every tool call without one, and returns the calls in order.
fn identify_calls(message: &mut Map<String, Value>) -> PendingCalls {
    let blocks = message.get_mut("blocks").and_then(Value::as_array_mut);
    let calls = blocks
        .into_iter()
        .flatten()
        .filter_map(Value::as_object_mut);
    calls
        .filter(|call| call.get("kind").and_then(Value::as_str) == Some("tool_call"))
        .map(|call| {
            let given = given_id(call).map(str::to_owned);
            let id = given.unwrap_or_else(|| {
                let id = unique_id();
                call.insert("tool_call_id".to_owned(), id.clone().into());
                call.insert("has_provider_tool_call_id".to_owned(), false.into());
                id
            });
            let name = call.get("name").and_then(Value::as_str);
            (id, name.map(str::to_owned))
        })
        .collect()
}

/// Returns the id of a call, or of the call that a result answers.
fn given_id(fields: &Map<String, Value>) -> Option<&str> {
    let id = fields.get("tool_call_id").and_then(Value::as_str);
    id.filter(|id| !id.is_empty())
}

/// Assigns the id of the next unanswered call to a result without an id.
fn identify_result(
    message: &mut Map<String, Value>,
    pending: &mut PendingCalls,
) -> Result<(), String> {
    if let Some(given) = given_id(message) {
        pending.retain(|(id, _)| id != given);
        return Ok(());
    }
    let Some((id, call_name)) = pending.pop_front() else {
        return Err("a tool result without an id has no call before it".to_owned());
    };
    let name = message.get("name").and_then(Value::as_str);
    if let (Some(name), Some(call_name)) = (name, call_name.as_deref())
        && name != call_name
    {
        return Err(format!(
            "a tool result of `{name}` without an id follows a call of `{call_name}`"
        ));
    }
    message.insert("tool_call_id".to_owned(), id.into());
    Ok(())
}
