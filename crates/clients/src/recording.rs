//! The format of recordings, which [`record`](crate::record) writes and [`replay`](crate::replay) reads.

use bytes::Bytes;
use cantle_core::content::Content;
use cantle_core::llm::{LlmError, LlmErrorKind, StopReason, ToolSpecs};
use cantle_core::message::{AssistantBlock, EncodingKey, Message, SharedMessage};
use cantle_core::usage::TokenUsage;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// Name of the format, in the header.
pub(crate) const FORMAT: &str = "cantle-recording";
/// Version of recordings that consist of turns.
pub(crate) const TURNS_VERSION: u64 = 1;
/// Version of recordings that consist of calls.
pub(crate) const CALLS_VERSION: u64 = 2;

const KEY: EncodingKey = EncodingKey::new("recording", 0);

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
    pub(crate) stop: StopReason,
    pub(crate) usage: Option<TokenUsage>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) response_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cost_usd: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) served_by: Option<String>,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub(crate) extra: Map<String, Value>,
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
pub(crate) fn encode_message(message: &SharedMessage) -> Result<Bytes, LlmError> {
    let bytes = message.forms().get_or_try_encode(KEY, || {
        let mut value = serde_json::to_value(&**message).map_err(write_error)?;
        if let Value::Object(fields) = &mut value {
            for volatile in [
                "id",
                "metadata",
                "provider_response_id",
                "replaced_ids",
                "request_end_time",
                "request_start_time",
                "token_usage",
                "tool_end_time",
                "tool_start_time",
            ] {
                fields.remove(volatile);
            }
        }
        Ok::<_, LlmError>(Bytes::from(value.to_string()))
    });
    bytes.cloned()
}

/// Encodes a tool list.
pub(crate) fn encode_tools(tools: &ToolSpecs) -> Result<Bytes, LlmError> {
    let bytes = tools.forms().get_or_try_encode(KEY, || {
        let tools = tools.iter().map(|tool| {
            let (name, description) = (tool.name(), tool.description());
            json!({"name": name, "description": description, "parameters": tool.parameters()})
        });
        Ok::<_, LlmError>(Bytes::from(tools.collect::<Value>().to_string()))
    });
    bytes.cloned()
}

/// Returns the error for a line that cannot be encoded or written.
pub(crate) fn write_error(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> LlmError {
    let error = error.into();
    LlmError::new(
        LlmErrorKind::InvalidRequest,
        format!("failed to write the recording: {error}"),
    )
    .with_source(error)
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
