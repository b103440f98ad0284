//! Encoding of OpenAI Responses requests.
//!
//! A message is encoded once as a comma-separated list of items, which is
//! [stored with it](cantle_core::message::EncodedForms); a body is their concatenation. The conversation
//! comes last, so that a stateless request starts with the bytes of the previous one while the history
//! only grows.

use std::borrow::Cow;

use bytes::Bytes;
use cantle_core::content::{Content, Media};
use cantle_core::llm::{ChatRequest, LlmError, ToolSpecs};
use cantle_core::message::{
    AssistantBlock, AssistantMessage, EncodingKey, Message, SharedMessage, ToolMessage,
};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::wire::{REASONING_TEXT, SUMMARY_TEXT};
use crate::http::{
    call_arguments, call_name, check_image_type, content_parts, data_url, encode_list,
    supports_strict_mode, unencodable, unsupported_block,
};

const DIALECT: &str = "OpenAI Responses";

const INCLUDE: &[u8] = b",\"include\":[\"reasoning.encrypted_content\"]";

/// The place of the conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConversationMode {
    /// Every request contains the conversation.
    Stateless,
    /// The provider stores it, and requests refer to it.
    Stateful,
}

impl ConversationMode {
    /// Encodings differ in whether reasoning stored by the provider can be referenced.
    fn key(self) -> EncodingKey {
        EncodingKey::new("responses", self as u64)
    }
}

/// Encodes a request. `params` is a JSON object without its closing brace.
pub(super) fn body(
    params: &[u8],
    request: &ChatRequest,
    mode: ConversationMode,
    encrypted: bool,
    strict: bool,
) -> Result<Vec<u8>, LlmError> {
    let mut body = vec![params];
    if encrypted {
        body.push(INCLUDE);
    }
    if !request.tools.is_empty() {
        let forms = request.tools.forms();
        let key = EncodingKey::new("responses tools", strict.into());
        let tools = forms.get_or_try_encode(key, || encode_tools(&request.tools, strict))?;
        body.extend([b",\"tools\":[", &tools[..], b"]"]);
    }
    let mut messages = &request.messages[..];
    let mut previous_id = None;
    if let (ConversationMode::Stateful, Some((id, rest))) = (mode, stored_prefix(messages)) {
        previous_id = Some(serde_json::to_vec(id).map_err(unencodable)?);
        messages = rest;
    }
    if let Some(id) = &previous_id {
        body.extend([b",\"previous_response_id\":", &id[..]]);
    }
    body.push(b",\"input\":[");
    let mut is_first = true;
    for message in messages {
        let forms = message.forms();
        let items = forms.get_or_try_encode(mode.key(), || encode_message(message, mode))?;
        if items.is_empty() {
            continue;
        }
        if !is_first {
            body.push(b",");
        }
        is_first = false;
        body.push(items);
    }
    body.push(b"]}");
    Ok(body.concat())
}

/// Returns the id of the latest stored response, and the messages after it.
pub(super) fn stored_prefix(messages: &[SharedMessage]) -> Option<(&str, &[SharedMessage])> {
    let has_id = |message: &SharedMessage| matches!(&**message, Message::Assistant(turn) if turn.provider_response_id.is_some());
    let latest = messages.iter().rposition(has_id)?;
    let Message::Assistant(turn) = &**messages.get(latest)? else {
        return None;
    };
    let rest = messages.get(latest + 1..)?;
    Some((turn.provider_response_id.as_deref()?, rest))
}

fn encode_tools(specs: &ToolSpecs, strict: bool) -> Result<Bytes, LlmError> {
    #[derive(Serialize)]
    struct FunctionTool<'a> {
        r#type: &'static str,
        name: &'a str,
        description: &'a str,
        parameters: Cow<'a, Value>,
        // The API's default is true: https://platform.openai.com/docs/guides/function-calling#strict-mode
        strict: bool,
    }
    encode_list(specs.iter().map(|spec| {
        let mut parameters = Cow::Borrowed(spec.parameters());
        // The API demands properties of an object, even if there are none.
        if parameters.get("properties").is_none()
            && let Some(schema) = parameters.to_mut().as_object_mut()
        {
            schema.insert("properties".to_owned(), json!({}));
        }
        FunctionTool {
            r#type: "function",
            name: spec.name(),
            description: spec.description(),
            strict: strict && supports_strict_mode(&parameters),
            parameters,
        }
    }))
}

fn encode_message(message: &Message, mode: ConversationMode) -> Result<Bytes, LlmError> {
    match message {
        Message::System(message) => encode_list(input_message("system", &message.content)?),
        Message::User(message) => encode_list(input_message("user", &message.content)?),
        Message::Assistant(message) => encode_list(assistant_items(message, mode)?),
        Message::Tool(message) => encode_list([tool_result(message)?]),
    }
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum InputItem<'a> {
    Message {
        role: &'static str,
        content: Vec<MessageContent<'a>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        phase: Option<&'a str>,
    },
    Reasoning {
        #[serde(skip_serializing_if = "Option::is_none")]
        id: Option<&'a str>,
        summary: Vec<TypedText<'a>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        content: Option<[TypedText<'a>; 1]>,
        #[serde(skip_serializing_if = "Option::is_none")]
        encrypted_content: Option<&'a str>,
    },
    FunctionCall {
        call_id: &'a str,
        name: Cow<'a, str>,
        arguments: Cow<'a, str>,
    },
    FunctionCallOutput {
        call_id: &'a str,
        output: FunctionOutput<'a>,
    },
    #[serde(untagged)]
    Opaque(&'a RawValue),
}

#[derive(Serialize)]
#[serde(untagged)]
enum FunctionOutput<'a> {
    Text(&'a str),
    Parts(Vec<MessageContent<'a>>),
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum MessageContent<'a> {
    InputText {
        text: &'a str,
    },
    InputImage {
        image_url: String,
        detail: &'static str,
    },
    OutputText {
        text: &'a str,
    },
}

#[derive(Serialize)]
struct TypedText<'a> {
    r#type: &'static str,
    text: &'a str,
}

/// Encodes a system or user message; `None` for empty content.
fn input_message<'a>(
    role: &'static str,
    content: &'a Content,
) -> Result<Option<InputItem<'a>>, LlmError> {
    let content = input_content(content)?;
    Ok((!content.is_empty()).then_some(InputItem::Message {
        role,
        content,
        phase: None,
    }))
}

fn input_content(content: &Content) -> Result<Vec<MessageContent<'_>>, LlmError> {
    content_parts(content, |text| MessageContent::InputText { text }, image)
}

fn image<'a>(media: &Media) -> Result<MessageContent<'a>, LlmError> {
    check_image_type(DIALECT, media)?;
    Ok(MessageContent::InputImage {
        image_url: data_url(media),
        detail: "auto",
    })
}

fn tool_result(message: &ToolMessage) -> Result<InputItem<'_>, LlmError> {
    Ok(InputItem::FunctionCallOutput {
        call_id: &message.tool_call_id,
        output: match &message.content {
            Content::Text(text) => FunctionOutput::Text(text),
            parts => FunctionOutput::Parts(input_content(parts)?),
        },
    })
}

fn assistant_items(
    message: &AssistantMessage,
    mode: ConversationMode,
) -> Result<Vec<InputItem<'_>>, LlmError> {
    let mut items: Vec<InputItem<'_>> = Vec::with_capacity(message.blocks.len());
    for block in &message.blocks {
        let unsupported = || unsupported_block(DIALECT, block, &message.id);
        let item = match block {
            AssistantBlock::Text { text, signature } => {
                let piece = MessageContent::OutputText { text };
                if let Some(InputItem::Message { content, phase, .. }) = items.last_mut()
                    && *phase == signature.as_deref()
                {
                    content.push(piece);
                    continue;
                }
                InputItem::Message {
                    role: "assistant",
                    content: vec![piece],
                    phase: signature.as_deref(),
                }
            }
            // There is nothing to hand back.
            AssistantBlock::Reasoning { .. } => continue,
            AssistantBlock::ReasoningRef {
                id,
                content,
                summary,
            } if mode == ConversationMode::Stateful || content.is_some() => {
                reasoning(id, summary, content.as_deref(), None)
            }
            AssistantBlock::EncryptedReasoning {
                id,
                encrypted_content,
                content,
                summary,
            } => reasoning(id, summary, content.as_deref(), Some(encrypted_content)),
            AssistantBlock::ToolCall(call) if call.signature.is_none() => InputItem::FunctionCall {
                call_id: &call.id,
                name: call_name(&call.name),
                arguments: call_arguments(&call.arguments),
            },
            AssistantBlock::Opaque { data } => {
                InputItem::Opaque(serde_json::from_str(data).map_err(|_| unsupported())?)
            }
            _ => return Err(unsupported()),
        };
        items.push(item);
    }
    // The API refuses reasoning without the item that followed it.
    while matches!(items.last(), Some(InputItem::Reasoning { .. })) {
        items.pop();
    }
    Ok(items)
}

fn reasoning<'a>(
    id: &'a str,
    summary: &'a [String],
    content: Option<&'a str>,
    encrypted_content: Option<&'a str>,
) -> InputItem<'a> {
    let typed = |r#type, text| TypedText { r#type, text };
    InputItem::Reasoning {
        id: (!id.is_empty()).then_some(id),
        summary: summary
            .iter()
            .map(|text| typed(SUMMARY_TEXT, &**text))
            .collect(),
        content: content.map(|text| [typed(REASONING_TEXT, text)]),
        encrypted_content,
    }
}

#[cfg(test)]
mod tests;
