//! The common parts of the JSON exports: contents, reasoning, arguments, tools and times.

use std::time::SystemTime;

use cantle::core::content::{Content, Media, MediaKind, Part};
use cantle::core::message::{AssistantBlock, AssistantMessage};
use cantle::core::seconds::unix_time;
use cantle::core::tool::ToolSpec;
use serde_json::{Map, Value, json};

/// Returns a content as a text, or as the parts that OpenAI's dialect introduced, with images as `image` writes them.
pub(super) fn content(content: &Content, image: impl Fn(&Media) -> Value) -> Value {
    let Content::Parts(parts) = content else {
        return content.text().into();
    };
    if content.media().next().is_none() {
        return content.text().into();
    }
    let text = |text: &str| json!({"type": "text", "text": text});
    let parts = parts.iter().map(|part| match part {
        Part::Text(shown) => text(shown),
        Part::Media(media) if media.kind() == MediaKind::Image => image(media),
        Part::Media(media) => {
            let size = media.data().len();
            text(&format!("[{}, {size} bytes]", media.mime_type()))
        }
    });
    parts.collect()
}

/// Returns a message that is nothing but its content.
pub(super) fn plain_message(role: &str, text: &Content, image: impl Fn(&Media) -> Value) -> Value {
    json!({"role": role, "content": content(text, image)})
}

pub(super) fn data_url(media: &Media) -> String {
    format!("data:{};base64,{}", media.mime_type(), media.base64())
}

/// Returns what the model answered, without reasoning and calls.
pub(super) fn answer(message: &AssistantMessage) -> Content {
    let parts = message.blocks.iter().filter_map(|block| match block {
        AssistantBlock::Text { text, .. } => Some(Part::Text(text.clone())),
        AssistantBlock::Media(media) => Some(Part::Media(media.clone())),
        _ => None,
    });
    Content::Parts(parts.collect())
}

/// Returns the reasoning that the provider disclosed.
pub(super) fn reasoning(message: &AssistantMessage) -> Option<String> {
    let mut texts = Vec::new();
    for block in &message.blocks {
        match block {
            AssistantBlock::Reasoning { content }
            | AssistantBlock::SignedReasoning { content, .. } => texts.push(content.as_str()),
            AssistantBlock::ReasoningRef {
                content, summary, ..
            }
            | AssistantBlock::EncryptedReasoning {
                content, summary, ..
            } => match content {
                Some(content) => texts.push(content),
                None => texts.extend(summary.iter().map(String::as_str)),
            },
            _ => {}
        }
    }
    texts.retain(|text| !text.is_empty());
    (!texts.is_empty()).then(|| texts.join("\n\n"))
}

/// Parses arguments; an error is the model's text.
pub(super) fn arguments(text: &str) -> Result<Map<String, Value>, &str> {
    serde_json::from_str(text).map_err(|_| text)
}

/// Returns tools as OpenAI's dialect has them.
pub(super) fn tools(specs: &[ToolSpec]) -> Value {
    let tools = specs.iter().map(|spec| {
        json!({
            "type": "function",
            "function": {
                "name": spec.name(),
                "description": spec.description(),
                "parameters": spec.parameters(),
            },
        })
    });
    tools.collect()
}

/// Returns an object without its fields that are null.
pub(super) fn object(mut value: Value) -> Value {
    if let Some(fields) = value.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    value
}

/// Formats a time in UTC as ISO 8601 does; null if it is out of range.
pub(super) fn iso_time(time: SystemTime) -> Value {
    let time = jiff::Timestamp::try_from(time).ok();
    time.map(|time| format!("{time:.3}")).into()
}

/// Formats seconds since the Unix epoch like [`iso_time`].
pub(super) fn iso_seconds(seconds: Option<f64>) -> Value {
    seconds.and_then(unix_time).map_or(Value::Null, iso_time)
}
