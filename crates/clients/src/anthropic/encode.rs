//! Encoding of Anthropic Messages requests.
//!
//! A message is encoded once as a comma-separated list of content blocks, which is
//! [stored with it](cantle_core::message::EncodedForms). Roles, brackets and cache marks are added when
//! a body is assembled, because adjacent messages are merged and marks move between requests.

use std::borrow::Cow;

use bytes::Bytes;
use cantle_core::content::{Content, Media};
use cantle_core::llm::{ChatRequest, LlmError, ToolSpecs};
use cantle_core::message::{AssistantBlock, AssistantMessage, EncodingKey, Message, ToolMessage};
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::http::{
    call_arguments, call_name, check_image_type, content_parts, encode_list, marked_inputs,
    unencodable, unsupported_block,
};

/// The encoding of messages and tools does not depend on client options.
const KEY: EncodingKey = EncodingKey::new("anthropic", 0);

const DIALECT: &str = "Anthropic Messages";

/// Text of a failed tool result without content, which the API refuses.
const EMPTY_FAILURE: &str = "The tool failed without output.";

/// Start of a failed tool result with images, which the API refuses if it is marked as an error.
const FAILURE_WITH_IMAGES: &str = "The tool failed with this output:";

/// End of a block with a cache mark.
const MARKED_END: &[u8] = b",\"cache_control\":{\"type\":\"ephemeral\"}}";

/// Encodes a request. `params` is a JSON object without its closing brace.
pub(super) fn body(params: &[u8], request: &ChatRequest) -> Result<Vec<u8>, LlmError> {
    let (mut system, mut entries) = (Vec::new(), Vec::new());
    for message in &request.messages {
        let blocks = message
            .forms()
            .get_or_try_encode(KEY, || encode_message(message))?;
        if blocks.is_empty() {
            continue;
        }
        match &**message {
            Message::System(_) => system.push(blocks),
            Message::User(_) | Message::Tool(_) => entries.push(("user", blocks)),
            Message::Assistant(_) => entries.push(("assistant", blocks)),
        }
    }

    let mut body = vec![params];
    if !request.tools.is_empty() {
        let forms = request.tools.forms();
        let tools = forms.get_or_try_encode(KEY, || encode_tools(&request.tools))?;
        body.push(b",\"tools\":[");
        push_blocks(&mut body, tools, system.is_empty());
        body.push(b"]");
    }
    if !system.is_empty() {
        body.push(b",\"system\":[");
        for (index, blocks) in system.iter().enumerate() {
            if index > 0 {
                body.push(b",");
            }
            push_blocks(&mut body, blocks, index + 1 == system.len());
        }
        body.push(b"]");
    }
    body.push(b",\"messages\":[");
    // Thinking blocks cannot have marks, so only user messages are marked.
    let marked = marked_inputs(&entries, |(role, _)| *role == "user");
    let mut previous = None;
    for (index, &(role, blocks)) in entries.iter().enumerate() {
        if previous == Some(role) {
            body.push(b",");
        } else {
            if previous.is_some() {
                body.push(b"]},");
            }
            body.extend([b"{\"role\":\"", role.as_bytes(), b"\",\"content\":["]);
        }
        previous = Some(role);
        push_blocks(&mut body, blocks, marked.contains(&Some(index)));
    }
    if previous.is_some() {
        body.push(b"]}");
    }
    body.push(b"]}");
    Ok(body.concat())
}

/// Appends encoded blocks, optionally with a cache mark on the last one.
fn push_blocks<'a>(body: &mut Vec<&'a [u8]>, blocks: &'a [u8], marked: bool) {
    match blocks.split_last() {
        Some((_, start)) if marked => body.extend([start, MARKED_END]),
        _ => body.push(blocks),
    }
}

fn encode_tools(specs: &ToolSpecs) -> Result<Bytes, LlmError> {
    #[derive(Serialize)]
    struct AnthropicTool<'a> {
        name: &'a str,
        description: &'a str,
        input_schema: &'a Value,
    }
    let tools = specs.iter().map(|spec| AnthropicTool {
        name: spec.name(),
        description: spec.description(),
        input_schema: spec.parameters(),
    });
    encode_list(tools)
}

fn encode_message(message: &Message) -> Result<Bytes, LlmError> {
    match message {
        Message::System(message) => encode_list(parts(&message.content)?),
        Message::User(message) => encode_list(parts(&message.content)?),
        Message::Assistant(message) => encode_list(assistant_blocks(message)?),
        Message::Tool(message) => encode_list([tool_result(message)?]),
    }
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum RequestBlock<'a> {
    Text {
        text: &'a str,
    },
    Image {
        source: ImageSource<'a>,
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
        name: Cow<'a, str>,
        input: Cow<'a, RawValue>,
    },
    ToolResult {
        tool_use_id: Cow<'a, str>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        content: Vec<RequestBlock<'a>>,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        is_error: bool,
    },
    #[serde(untagged)]
    Opaque(&'a RawValue),
}

#[derive(Serialize)]
struct ImageSource<'a> {
    r#type: &'static str,
    media_type: &'static str,
    data: &'a str,
}

/// Returns the parts without blank texts, which the API refuses.
fn parts(content: &Content) -> Result<Vec<RequestBlock<'_>>, LlmError> {
    let mut blocks = content_parts(content, |text| RequestBlock::Text { text }, image)?;
    blocks.retain(|block| !matches!(block, RequestBlock::Text { text } if text.trim().is_empty()));
    Ok(blocks)
}

fn image(media: &Media) -> Result<RequestBlock<'_>, LlmError> {
    check_image_type(DIALECT, media)?;
    Ok(RequestBlock::Image {
        source: ImageSource {
            r#type: "base64",
            media_type: media.mime_type(),
            data: media.base64(),
        },
    })
}

fn tool_result(message: &ToolMessage) -> Result<RequestBlock<'_>, LlmError> {
    let mut content = parts(&message.content)?;
    let has_images = message.content.media().next().is_some();
    let text = match has_images {
        true => FAILURE_WITH_IMAGES,
        false => EMPTY_FAILURE,
    };
    if !message.success && (has_images || content.is_empty()) {
        content.insert(0, RequestBlock::Text { text });
    }
    Ok(RequestBlock::ToolResult {
        tool_use_id: call_id(&message.tool_call_id),
        content,
        is_error: !message.success && !has_images,
    })
}

fn assistant_blocks(message: &AssistantMessage) -> Result<Vec<RequestBlock<'_>>, LlmError> {
    let mut blocks = Vec::with_capacity(message.blocks.len());
    for block in &message.blocks {
        let unsupported = || unsupported_block(DIALECT, block, &message.id);
        blocks.push(match block {
            AssistantBlock::Text {
                text,
                signature: None,
            } if text.trim().is_empty() => continue,
            AssistantBlock::Text {
                text,
                signature: None,
            } => RequestBlock::Text { text },
            // Thinking without a signature cannot be sent back.
            AssistantBlock::Reasoning { .. } => continue,
            AssistantBlock::SignedReasoning { signature, content } => RequestBlock::Thinking {
                thinking: content,
                signature,
            },
            AssistantBlock::RedactedReasoning { data } => RequestBlock::RedactedThinking { data },
            AssistantBlock::ToolCall(call) => RequestBlock::ToolUse {
                id: call_id(&call.id),
                name: call_name(&call.name),
                input: tool_input(&call.arguments)?,
            },
            AssistantBlock::Opaque { data } => {
                RequestBlock::Opaque(serde_json::from_str(data).map_err(|_| unsupported())?)
            }
            _ => return Err(unsupported()),
        });
    }
    // The API refuses a message that ends with thinking.
    while matches!(
        blocks.last(),
        Some(RequestBlock::Thinking { .. } | RequestBlock::RedactedThinking { .. })
    ) {
        blocks.pop();
    }
    Ok(blocks)
}

fn tool_input(arguments: &str) -> Result<Cow<'_, RawValue>, LlmError> {
    Ok(match call_arguments(arguments) {
        Cow::Borrowed(text) => Cow::Borrowed(serde_json::from_str(text).map_err(unencodable)?),
        Cow::Owned(text) => Cow::Owned(RawValue::from_string(text).map_err(unencodable)?),
    })
}

/// Escapes an id to match the API's `^[a-zA-Z0-9_-]+$`. Distinct ids stay distinct.
fn call_id(id: &str) -> Cow<'_, str> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !id.is_empty() && id.chars().all(is_allowed) {
        return Cow::Borrowed(id);
    }
    let mut escaped: String = id.chars().filter(|&c| is_allowed(c)).collect();
    for byte in id.bytes().filter(|&byte| !is_allowed(byte.into())) {
        escaped.push_str(&format!("-{byte:02x}"));
    }
    Cow::Owned(escaped)
}

#[cfg(test)]
mod tests;
