//! Requests as bytes.
//!
//! A message is encoded once, into its content blocks with commas between them and no bracket
//! around, and those bytes stay [with it](cantle_core::message::EncodedForms). What this API sees as
//! one message may be several of ours, so roles and brackets are put around when a body is joined;
//! so are cache marks, which wander while the blocks stay as they are.

use std::borrow::Cow;

use bytes::Bytes;
use cantle_core::content::{Content, Media};
use cantle_core::llm::{ChatRequest, LlmError, ToolSpecs};
use cantle_core::message::{AssistantBlock, AssistantMessage, EncodingKey, Message, ToolMessage};
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::http::{OneBehindTheOther, image_for, listed, not_for_here, parts_of, unencodable};

/// No option of a client changes how a message or a tool is encoded.
const KEY: EncodingKey = EncodingKey::new("anthropic", 0);

const DIALECT: &str = "Anthropic Messages";

/// Goes into a block in the place of its closing brace.
const MARK: &[u8] = b",\"cache_control\":{\"type\":\"ephemeral\"}}";

/// The body of a request. `head` is an object without its closing brace: the model and the options.
///
/// # Errors
/// [`Unsupported`](cantle_core::llm::LlmErrorKind::Unsupported) where a message holds what this
/// dialect can't carry.
pub(super) fn body(head: &[u8], request: &ChatRequest) -> Result<Vec<u8>, LlmError> {
    let (mut system, mut entries) = (Vec::new(), Vec::new());
    for message in &request.messages {
        let blocks = message.forms().get_or_try_encode(KEY, || blocks(message))?;
        if blocks.is_empty() {
            continue;
        }
        match &**message {
            Message::System(_) => system.push(blocks),
            Message::User(_) | Message::Tool(_) => entries.push(("user", blocks)),
            Message::Assistant(_) => entries.push(("assistant", blocks)),
        }
    }

    let mut body = OneBehindTheOther::default();
    body.push(head);
    if !request.tools.is_empty() {
        let forms = request.tools.forms();
        let tools = forms.get_or_try_encode(KEY, || tools(&request.tools))?;
        body.push(b",\"tools\":[");
        push(&mut body, tools, system.is_empty());
        body.push(b"]");
    }
    if !system.is_empty() {
        body.push(b",\"system\":[");
        for (index, blocks) in system.iter().enumerate() {
            if index > 0 {
                body.push(b",");
            }
            push(&mut body, blocks, index + 1 == system.len());
        }
        body.push(b"]");
    }
    body.push(b",\"messages\":[");
    let marked = marked(&entries);
    let mut before = None;
    for (index, &(role, blocks)) in entries.iter().enumerate() {
        if before == Some(role) {
            body.push(b",");
        } else {
            if before.is_some() {
                body.push(b"]},");
            }
            body.push(b"{\"role\":\"");
            body.push(role.as_bytes());
            body.push(b"\",\"content\":[");
        }
        before = Some(role);
        push(&mut body, blocks, marked.contains(&Some(index)));
    }
    if before.is_some() {
        body.push(b"]}");
    }
    body.push(b"]}");
    Ok(body.join())
}

/// Appends blocks, the last of them with a cache mark where one is asked for.
fn push<'a>(body: &mut OneBehindTheOther<'a>, blocks: &'a [u8], marked: bool) {
    match blocks.split_last() {
        Some((_, unclosed)) if marked => {
            body.push(unclosed);
            body.push(MARK);
        }
        _ => body.push(blocks),
    }
}

/// Behind which messages a cache mark stands: the last one, and that which was the last one when the
/// latest turn was asked for. A mark may not stand on thinking, so only our side's are marked.
fn marked(entries: &[(&str, &Bytes)]) -> [Option<usize>; 2] {
    let last_of_user =
        |entries: &[(&str, &Bytes)]| entries.iter().rposition(|(role, _)| *role == "user");
    let latest_turn = entries.iter().rposition(|(role, _)| *role == "assistant");
    let before = latest_turn.and_then(|turn| last_of_user(entries.get(..turn)?));
    [last_of_user(entries), before]
}

fn tools(specs: &ToolSpecs) -> Result<Bytes, LlmError> {
    #[derive(Serialize)]
    struct Tool<'a> {
        name: &'a str,
        description: &'a str,
        input_schema: &'a Value,
    }
    let tools = specs.iter().map(|spec| Tool {
        name: spec.name(),
        description: spec.description(),
        input_schema: spec.parameters(),
    });
    listed(tools)
}

fn blocks(message: &Message) -> Result<Bytes, LlmError> {
    match message {
        Message::System(message) => listed(parts(&message.content)?),
        Message::User(message) => listed(parts(&message.content)?),
        Message::Assistant(message) => listed(turn(message)?),
        Message::Tool(message) => listed([result(message)?]),
    }
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Block<'a> {
    Text {
        text: &'a str,
    },
    Image {
        source: Source<'a>,
    },
    Thinking {
        thinking: &'a str,
        signature: &'a str,
    },
    RedactedThinking {
        data: &'a str,
    },
    ToolUse {
        id: Cow<'a, str>,
        name: &'a str,
        input: Cow<'a, RawValue>,
    },
    ToolResult {
        tool_use_id: Cow<'a, str>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        content: Vec<Block<'a>>,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        is_error: bool,
    },
    #[serde(untagged)]
    Opaque(&'a RawValue),
}

#[derive(Serialize)]
struct Source<'a> {
    r#type: &'static str,
    media_type: &'static str,
    data: &'a str,
}

fn parts(content: &Content) -> Result<Vec<Block<'_>>, LlmError> {
    parts_of(content, |text| Block::Text { text }, image)
}

fn image(media: &Media) -> Result<Block<'_>, LlmError> {
    image_for(DIALECT, media)?;
    Ok(Block::Image {
        source: Source {
            r#type: "base64",
            media_type: media.mime_type(),
            data: media.base64(),
        },
    })
}

fn result(message: &ToolMessage) -> Result<Block<'_>, LlmError> {
    Ok(Block::ToolResult {
        tool_use_id: id(&message.tool_call_id),
        content: parts(&message.content)?,
        is_error: !message.success,
    })
}

fn turn(message: &AssistantMessage) -> Result<Vec<Block<'_>>, LlmError> {
    let mut blocks = Vec::with_capacity(message.blocks.len());
    for block in &message.blocks {
        let refused = || not_for_here(DIALECT, block, &message.id);
        blocks.push(match block {
            AssistantBlock::Text {
                text,
                signature: None,
            } if text.is_empty() => continue,
            AssistantBlock::Text {
                text,
                signature: None,
            } => Block::Text { text },
            AssistantBlock::SignedReasoning { signature, content } => Block::Thinking {
                thinking: content,
                signature,
            },
            AssistantBlock::RedactedReasoning { data } => Block::RedactedThinking { data },
            AssistantBlock::ToolCall(call) => Block::ToolUse {
                id: id(&call.id),
                name: &call.name,
                input: input(&call.arguments)?,
            },
            AssistantBlock::Opaque { data } => {
                Block::Opaque(serde_json::from_str(data).map_err(|_| refused())?)
            }
            _ => return Err(refused()),
        });
    }
    Ok(blocks)
}

/// Arguments must be an object here. What is none is sent in one, under the name that Anthropic's
/// documentation has for it:
/// <https://docs.claude.com/en/docs/agents-and-tools/tool-use/fine-grained-tool-streaming>
fn input(arguments: &str) -> Result<Cow<'_, RawValue>, LlmError> {
    let trimmed = match arguments.trim() {
        "" => "{}",
        trimmed => trimmed,
    };
    if trimmed.starts_with('{')
        && let Ok(raw) = serde_json::from_str::<&RawValue>(trimmed)
    {
        return Ok(Cow::Borrowed(raw));
    }
    let wrapped = serde_json::json!({ "INVALID_JSON": arguments });
    let raw = serde_json::value::to_raw_value(&wrapped).map_err(unencodable)?;
    Ok(Cow::Owned(raw))
}

/// An id as this API takes it: `^[a-zA-Z0-9_-]+$`. Two ids that differ still do.
fn id(given: &str) -> Cow<'_, str> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !given.is_empty() && given.chars().all(allowed) {
        return Cow::Borrowed(given);
    }
    let mut id: String = given.chars().filter(|&c| allowed(c)).collect();
    for byte in given.bytes().filter(|&byte| !allowed(byte.into())) {
        id.push_str(&format!("-{byte:02x}"));
    }
    Cow::Owned(id)
}

#[cfg(test)]
mod tests;
