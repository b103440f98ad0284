//! Encoding steps that dialects share.

use std::borrow::Cow;

#[cfg(any(feature = "anthropic", feature = "responses"))]
use bytes::Bytes;
use cantle_core::content::{Content, Media, Part};
use cantle_core::llm::LlmError;
#[cfg(any(feature = "anthropic", feature = "responses"))]
use serde::Serialize;
use serde::de::IgnoredAny;
use serde_json::json;

#[cfg(any(feature = "anthropic", feature = "responses"))]
use super::dialect::unencodable;

/// Converts the parts of a content in order. Empty texts are left out, because some servers refuse
/// them.
///
/// # Errors
/// Those of `media`.
pub(crate) fn content_parts<'a, T>(
    content: &'a Content,
    text: impl Fn(&'a str) -> T,
    media: impl Fn(&'a Media) -> Result<T, LlmError>,
) -> Result<Vec<T>, LlmError> {
    let text = |it: &'a str| (!it.is_empty()).then(|| text(it));
    match content {
        Content::Text(it) => Ok(text(it).into_iter().collect()),
        Content::Parts(parts) => parts
            .iter()
            .filter_map(|part| match part {
                Part::Text(it) => text(it).map(Ok),
                Part::Media(it) => Some(media(it)),
            })
            .collect(),
    }
}

/// Returns the arguments of a call as a JSON object, wrapping anything else as Anthropic documents:
/// <https://docs.claude.com/en/docs/agents-and-tools/tool-use/fine-grained-tool-streaming>
///
/// Chat Completions and Responses define them as text, but vLLM, llama.cpp and proxies parse them, and refuse a
/// conversation with a call that they can't parse.
pub(crate) fn call_arguments(arguments: &str) -> Cow<'_, str> {
    let trimmed = match arguments.trim() {
        "" => "{}",
        trimmed => trimmed,
    };
    if trimmed.starts_with('{') && serde_json::from_str::<IgnoredAny>(trimmed).is_ok() {
        return Cow::Borrowed(trimmed);
    }
    Cow::Owned(json!({ "INVALID_JSON": arguments }).to_string())
}

/// Encodes values as JSON, separated by commas and without enclosing brackets.
#[cfg(any(feature = "anthropic", feature = "responses"))]
pub(crate) fn encode_list<T: Serialize>(
    values: impl IntoIterator<Item = T>,
) -> Result<Bytes, LlmError> {
    let mut list = Vec::new();
    for value in values {
        if !list.is_empty() {
            list.push(b',');
        }
        serde_json::to_writer(&mut list, &value).map_err(unencodable)?;
    }
    // The encoded form lives as long as its message, so it keeps no spare capacity.
    Ok(list.into_boxed_slice().into())
}
