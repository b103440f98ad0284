//! Requests as bytes.
//!
//! A message is encoded once, into its items with commas between them and no bracket around, and
//! those bytes stay [with it](cantle_core::message::EncodedForms); a body is those bytes, put one
//! behind the other. The conversation comes last in it: as long as the history only grows, every
//! request that holds all of it begins with all of the one before, byte for byte.

use bytes::Bytes;
use cantle_core::content::{Content, Media};
use cantle_core::llm::{ChatRequest, LlmError, ToolSpecs};
use cantle_core::message::{
    AssistantBlock, AssistantMessage, EncodingKey, Message, SharedMessage, ToolMessage,
};
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::wire::{REASONING, SUMMARY};
use crate::http::{
    OneBehindTheOther, can_be_strict, data_url, image_for, listed, not_for_here, parts_of,
    unencodable,
};

const DIALECT: &str = "OpenAI Responses";

const INCLUDE: &[u8] = b",\"include\":[\"reasoning.encrypted_content\"]";

/// Who keeps the conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Stateless,
    /// The provider: what it has is only named.
    Stateful,
}

impl Mode {
    /// Whether reasoning that only the provider has may be named is all that differs.
    fn key(self) -> EncodingKey {
        EncodingKey::new("responses", self as u64)
    }
}

fn tools_key(strict: bool) -> EncodingKey {
    EncodingKey::new("responses tools", strict.into())
}

/// The body of a request. `head` is an object without its closing brace: the model and the options.
///
/// # Errors
/// [`Unsupported`](cantle_core::llm::LlmErrorKind::Unsupported) where a message holds what this
/// dialect can't carry.
pub(super) fn body(
    head: &[u8],
    request: &ChatRequest,
    mode: Mode,
    encrypted: bool,
    strict: bool,
) -> Result<Vec<u8>, LlmError> {
    let mut body = OneBehindTheOther::default();
    body.push(head);
    if encrypted {
        body.push(INCLUDE);
    }
    if !request.tools.is_empty() {
        let forms = request.tools.forms();
        body.push(b",\"tools\":[");
        body.push(forms.get_or_try_encode(tools_key(strict), || tools(&request.tools, strict))?);
        body.push(b"]");
    }
    let mut messages = &request.messages[..];
    let mut before = None;
    if let (Mode::Stateful, Some((id, rest))) = (mode, continued(messages)) {
        before = Some(serde_json::to_vec(id).map_err(unencodable)?);
        messages = rest;
    }
    if let Some(id) = &before {
        body.push(b",\"previous_response_id\":");
        body.push(id);
    }
    body.push(b",\"input\":[");
    let mut begun = false;
    for message in messages {
        let forms = message.forms();
        let items = forms.get_or_try_encode(mode.key(), || items(message, mode))?;
        if items.is_empty() {
            continue;
        }
        if begun {
            body.push(b",");
        }
        begun = true;
        body.push(items);
    }
    body.push(b"]}");
    Ok(body.join())
}

/// What the provider has: its name for the latest turn, and the messages after that.
pub(super) fn continued(messages: &[SharedMessage]) -> Option<(&str, &[SharedMessage])> {
    let id = |message: &SharedMessage| matches!(&**message, Message::Assistant(turn) if turn.provider_response_id.is_some());
    let latest = messages.iter().rposition(id)?;
    let Message::Assistant(turn) = &**messages.get(latest)? else {
        return None;
    };
    let rest = messages.get(latest + 1..)?;
    Some((turn.provider_response_id.as_deref()?, rest))
}

fn tools(specs: &ToolSpecs, strict: bool) -> Result<Bytes, LlmError> {
    #[derive(Serialize)]
    struct Tool<'a> {
        r#type: &'static str,
        name: &'a str,
        description: &'a str,
        parameters: &'a Value,
        // It would be true: https://platform.openai.com/docs/guides/function-calling#strict-mode
        strict: bool,
    }
    listed(specs.iter().map(|spec| Tool {
        r#type: "function",
        name: spec.name(),
        description: spec.description(),
        parameters: spec.parameters(),
        strict: strict && can_be_strict(spec.parameters()),
    }))
}

fn items(message: &Message, mode: Mode) -> Result<Bytes, LlmError> {
    match message {
        Message::System(message) => listed(said("system", &message.content)?),
        Message::User(message) => listed(said("user", &message.content)?),
        Message::Assistant(message) => listed(turn(message, mode)?),
        Message::Tool(message) => listed([result(message)?]),
    }
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Item<'a> {
    Message {
        role: &'static str,
        content: Vec<Piece<'a>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        phase: Option<&'a str>,
    },
    Reasoning {
        id: &'a str,
        summary: Vec<Labelled<'a>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        content: Option<[Labelled<'a>; 1]>,
        #[serde(skip_serializing_if = "Option::is_none")]
        encrypted_content: Option<&'a str>,
    },
    FunctionCall {
        call_id: &'a str,
        name: &'a str,
        arguments: &'a str,
    },
    FunctionCallOutput {
        call_id: &'a str,
        output: Output<'a>,
    },
    #[serde(untagged)]
    Opaque(&'a RawValue),
}

#[derive(Serialize)]
#[serde(untagged)]
enum Output<'a> {
    Text(&'a str),
    Pieces(Vec<Piece<'a>>),
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Piece<'a> {
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
struct Labelled<'a> {
    r#type: &'static str,
    text: &'a str,
}

/// A message of our side; none for empty content.
fn said<'a>(role: &'static str, content: &'a Content) -> Result<Option<Item<'a>>, LlmError> {
    let content = pieces(content)?;
    Ok((!content.is_empty()).then_some(Item::Message {
        role,
        content,
        phase: None,
    }))
}

fn pieces(content: &Content) -> Result<Vec<Piece<'_>>, LlmError> {
    parts_of(content, |text| Piece::InputText { text }, image)
}

fn image<'a>(media: &Media) -> Result<Piece<'a>, LlmError> {
    image_for(DIALECT, media)?;
    Ok(Piece::InputImage {
        image_url: data_url(media),
        detail: "auto",
    })
}

fn result(message: &ToolMessage) -> Result<Item<'_>, LlmError> {
    Ok(Item::FunctionCallOutput {
        call_id: &message.tool_call_id,
        output: match &message.content {
            Content::Text(text) => Output::Text(text),
            parts => Output::Pieces(pieces(parts)?),
        },
    })
}

fn turn(message: &AssistantMessage, mode: Mode) -> Result<Vec<Item<'_>>, LlmError> {
    let mut items: Vec<Item<'_>> = Vec::with_capacity(message.blocks.len());
    for block in &message.blocks {
        let refused = || not_for_here(DIALECT, block, &message.id);
        let item = match block {
            AssistantBlock::Text { text, signature } => {
                let piece = Piece::OutputText { text };
                if let Some(Item::Message { content, phase, .. }) = items.last_mut()
                    && *phase == signature.as_deref()
                {
                    content.push(piece);
                    continue;
                }
                Item::Message {
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
            } if mode == Mode::Stateful || content.is_some() => {
                reasoning(id, summary, content.as_deref(), None)
            }
            AssistantBlock::EncryptedReasoning {
                id,
                encrypted_content,
                content,
                summary,
            } => reasoning(id, summary, content.as_deref(), Some(encrypted_content)),
            AssistantBlock::ToolCall(call) if call.signature.is_none() => Item::FunctionCall {
                call_id: &call.id,
                name: &call.name,
                arguments: &call.arguments,
            },
            AssistantBlock::Opaque { data } => {
                Item::Opaque(serde_json::from_str(data).map_err(|_| refused())?)
            }
            _ => return Err(refused()),
        };
        items.push(item);
    }
    Ok(items)
}

fn reasoning<'a>(
    id: &'a str,
    summary: &'a [String],
    content: Option<&'a str>,
    encrypted_content: Option<&'a str>,
) -> Item<'a> {
    let labelled = |r#type, text| Labelled { r#type, text };
    Item::Reasoning {
        id,
        summary: summary
            .iter()
            .map(|text| labelled(SUMMARY, &**text))
            .collect(),
        content: content.map(|text| [labelled(REASONING, text)]),
        encrypted_content,
    }
}

#[cfg(test)]
mod tests;
