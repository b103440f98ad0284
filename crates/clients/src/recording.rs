//! The format of recordings, which [`record`](crate::record) writes and [`replay`](crate::replay) reads.

use bytes::Bytes;
use cantle_core::content::Content;
use cantle_core::llm::{LlmErrorKind, ToolSpecs, TurnEnd};
use cantle_core::message::{AssistantBlock, EncodingKey, Message, SharedMessage, environment};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Name of the format, in the header.
pub(crate) const FORMAT: &str = "cantle-recording";
/// Version of recordings that consist of turns.
pub(crate) const TURNS_VERSION: u64 = 1;
/// Version of recordings that consist of calls.
pub(crate) const CALLS_VERSION: u64 = 2;

const KEY: EncodingKey = EncodingKey::new("recording", 0);

/// The first line.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RecordingHeader {
    pub(crate) format: String,
    pub(crate) version: u64,
    pub(crate) model: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) context_window: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_output_tokens: Option<u64>,
}

/// A line after the header.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RecordingLine {
    Message(Value),
    Tools(Value),
    Call(Box<CallLine>),
    Result(Box<ResultLine>),
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct CallLine {
    pub(crate) messages: Vec<usize>,
    pub(crate) tools: usize,
    #[serde(flatten)]
    pub(crate) outcome: RecordedOutcome,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RecordedOutcome {
    Answer(RecordedAnswer),
    Error(RecordedError),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RecordedAnswer {
    pub(crate) blocks: Vec<AssistantBlock>,
    #[serde(flatten)]
    pub(crate) end: TurnEnd,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RecordedError {
    pub(crate) kind: LlmErrorKind,
    /// Includes the HTTP status.
    pub(crate) message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) advice: Option<String>,
}

/// A tool result in a recording.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ResultLine {
    pub(crate) id: String,
    pub(crate) tool: String,
    pub(crate) arguments: String,
    pub(crate) content: Content,
    pub(crate) success: bool,
}

/// Encodes a message without the fields that differ between runs.
pub(crate) fn encode_message(message: &SharedMessage) -> serde_json::Result<&Bytes> {
    const VOLATILE: [&str; 9] = [
        "id",
        "metadata",
        "provider_response_id",
        "replaced_ids",
        "request_end_time",
        "request_start_time",
        "token_usage",
        "tool_end_time",
        "tool_start_time",
    ];
    message.forms().get_or_try_encode(KEY, || {
        let mut value = serde_json::to_value(&**message)?;
        if let Value::Object(fields) = &mut value {
            fields.retain(|name, _| !VOLATILE.contains(&name.as_str()));
            if matches!(**message, Message::User(_)) {
                strip_environment(fields.get_mut("content"));
            }
        }
        Ok(value.to_string().into())
    })
}

/// Removes the description of a run's environment, which is not the same for the next run.
fn strip_environment(content: Option<&mut Value>) {
    let first = match content {
        Some(Value::Array(parts)) => parts.first_mut(),
        other => other,
    };
    if let Some(Value::String(text)) = first {
        *text = environment::strip(text).to_owned();
    }
}

/// Encodes a tool list.
pub(crate) fn encode_tools(tools: &ToolSpecs) -> serde_json::Result<&Bytes> {
    tools.forms().get_or_try_encode(KEY, || {
        let tools = tools.iter().map(|tool| {
            let (name, description) = (tool.name(), tool.description());
            json!({"name": name, "description": description, "parameters": tool.parameters()})
        });
        Ok(tools.collect::<Value>().to_string().into())
    })
}

/// Returns the role's name for error messages.
pub(crate) fn role(message: &Message) -> &'static str {
    match message {
        Message::System(_) => "system",
        Message::User(_) => "user",
        Message::Assistant(_) => "assistant",
        Message::Tool(_) => "tool",
    }
}
