//! Requests as bytes.
//!
//! A conversation is sent again and again, a little longer each time. So a message is encoded once
//! and its bytes stay [with it](cantle_core::message::EncodedForms); a body is those bytes, put one
//! behind the other. The messages come last in it: as long as the history only grows, every request
//! begins with all of the one before, byte for byte.

use bytes::Bytes;
use cantle_core::llm::{ChatRequest, LlmError, LlmErrorKind, ToolSpecs};
use cantle_core::message::{
    AssistantBlock, AssistantMessage, EncodingKey, Message, SharedMessage, ToolCall,
};
use serde::Serialize;
use serde_json::Value;

use super::content::{WirePart, add_text, media_part, parts};

/// No option of a client changes how a message or a tool is encoded.
const KEY: EncodingKey = EncodingKey::new("chat", 0);

const BEFORE_MESSAGES: &[u8] = b",\"messages\":[";
const END: &[u8] = b"]}";

/// The body of a request. `head` is an object without its closing brace: the model and the options.
///
/// # Errors
/// [`LlmErrorKind::Unsupported`] where a message holds what this dialect can't carry.
pub(super) fn body(head: &[u8], request: &ChatRequest) -> Result<Vec<u8>, LlmError> {
    let tools: &[u8] = if request.tools.is_empty() {
        &[]
    } else {
        request
            .tools
            .forms()
            .get_or_try_encode(KEY, || tools(&request.tools))?
    };
    let messages = request
        .messages
        .iter()
        .map(|message| message.forms().get_or_try_encode(KEY, || encoded(message)))
        .collect::<Result<Vec<_>, _>>()?;

    let lengths: usize = messages.iter().map(|message| message.len() + 1).sum();
    let fixed = head.len() + tools.len() + BEFORE_MESSAGES.len() + END.len();
    let mut body = Vec::with_capacity(fixed + lengths);
    body.extend_from_slice(head);
    body.extend_from_slice(tools);
    body.extend_from_slice(BEFORE_MESSAGES);
    for (index, message) in messages.into_iter().enumerate() {
        if index > 0 {
            body.push(b',');
        }
        body.extend_from_slice(message);
    }
    body.extend_from_slice(END);
    Ok(body)
}

fn tools(specs: &ToolSpecs) -> Result<Bytes, LlmError> {
    #[derive(Serialize)]
    struct Tool<'a> {
        r#type: &'static str,
        function: Function<'a>,
    }
    #[derive(Serialize)]
    struct Function<'a> {
        name: &'a str,
        description: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        parameters: Option<&'a Value>,
    }
    let tools: Vec<_> = specs
        .iter()
        .map(|spec| Tool {
            r#type: "function",
            function: Function {
                name: spec.name(),
                description: spec.description(),
                parameters: spec.has_parameters().then(|| spec.parameters()),
            },
        })
        .collect();
    let mut field = b",\"tools\":".to_vec();
    serde_json::to_writer(&mut field, &tools).map_err(unencodable)?;
    field.extend_from_slice(b",\"tool_choice\":\"auto\"");
    Ok(field.into())
}

fn encoded(message: &SharedMessage) -> Result<Bytes, LlmError> {
    let wire = match &**message {
        Message::System(message) => WireMessage::new("system", parts(&message.content)?),
        Message::User(message) => WireMessage::new("user", parts(&message.content)?),
        Message::Assistant(message) => assistant(message)?,
        Message::Tool(message) => WireMessage {
            tool_call_id: Some(&message.tool_call_id),
            name: message.name.as_deref(),
            ..WireMessage::new("tool", parts(&message.content)?)
        },
    };
    let bytes = serde_json::to_vec(&wire).map_err(unencodable)?;
    // It lives as long as the message, so without room to grow.
    Ok(bytes.into_boxed_slice().into())
}

#[derive(Serialize)]
struct WireMessage<'a> {
    role: &'static str,
    content: WireContent<'a>,
    #[serde(skip_serializing_if = "String::is_empty")]
    reasoning_content: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    thinking_blocks: Vec<WireThinking<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<WireCall<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_call_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
}

impl<'a> WireMessage<'a> {
    fn new(role: &'static str, content: Vec<WirePart<'a>>) -> Self {
        Self {
            role,
            content: if content.is_empty() {
                WireContent::Empty("")
            } else {
                WireContent::Parts(content)
            },
            reasoning_content: String::new(),
            thinking_blocks: Vec::new(),
            tool_calls: Vec::new(),
            tool_call_id: None,
            name: None,
        }
    }
}

#[derive(Serialize)]
#[serde(untagged)]
enum WireContent<'a> {
    Empty(&'static str),
    Parts(Vec<WirePart<'a>>),
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum WireThinking<'a> {
    Thinking {
        signature: &'a str,
        thinking: &'a str,
    },
    RedactedThinking {
        data: &'a str,
    },
}

#[derive(Serialize)]
struct WireCall<'a> {
    id: &'a str,
    r#type: &'static str,
    function: WireFunction<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    provider_specific_fields: Option<WireSpecific<'a>>,
}

#[derive(Serialize)]
struct WireFunction<'a> {
    name: &'a str,
    arguments: &'a str,
}

#[derive(Serialize)]
struct WireSpecific<'a> {
    thought_signature: &'a str,
}

impl<'a> From<&'a ToolCall> for WireCall<'a> {
    fn from(call: &'a ToolCall) -> Self {
        // An id that we made goes out like any other: here the provider only compares it with that
        // of the result, which is the same.
        Self {
            id: &call.id,
            r#type: "function",
            function: WireFunction {
                name: &call.name,
                arguments: &call.arguments,
            },
            provider_specific_fields: call
                .signature
                .as_deref()
                .map(|thought_signature| WireSpecific { thought_signature }),
        }
    }
}

fn assistant(message: &AssistantMessage) -> Result<WireMessage<'_>, LlmError> {
    let mut wire = WireMessage::new("assistant", Vec::new());
    let mut content = Vec::new();
    for block in &message.blocks {
        match block {
            AssistantBlock::Text {
                text,
                signature: None,
            } => add_text(&mut content, text),
            AssistantBlock::Reasoning { content } => wire.reasoning_content.push_str(content),
            AssistantBlock::SignedReasoning { signature, content } => {
                wire.reasoning_content.push_str(content);
                wire.thinking_blocks.push(WireThinking::Thinking {
                    signature,
                    thinking: content,
                });
            }
            AssistantBlock::RedactedReasoning { data } => {
                let redacted = WireThinking::RedactedThinking { data };
                wire.thinking_blocks.push(redacted);
            }
            AssistantBlock::ToolCall(call) => wire.tool_calls.push(call.into()),
            AssistantBlock::Media(media) => content.push(media_part(media)?),
            other => return Err(not_for_here(other, &message.id)),
        }
    }
    if !content.is_empty() {
        wire.content = WireContent::Parts(content);
    }
    Ok(wire)
}

fn not_for_here(block: &AssistantBlock, message_id: &str) -> LlmError {
    let what = match block {
        AssistantBlock::Text { .. } => "signed `text`".to_owned(),
        other => format!("`{}`", other.kind()),
    };
    LlmError::new(
        LlmErrorKind::Unsupported,
        format!(
            "the turn {message_id} holds a {what} block, which Chat Completions has no place for"
        ),
    )
    .with_advice("Continue this history with the kind of client that made it.")
}

/// Only numbers that are not finite and keys that are not text can't be written as JSON, and there
/// are none here.
fn unencodable(error: serde_json::Error) -> LlmError {
    let message = "a message can't be written as JSON";
    LlmError::new(LlmErrorKind::InvalidRequest, message).with_source(error)
}

#[cfg(test)]
mod tests;
