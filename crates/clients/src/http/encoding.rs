//! Encoding steps that dialects share.

use std::borrow::Cow;

use bytes::Bytes;
use cantle_core::content::{Content, Media, Part};
use cantle_core::llm::LlmError;
use serde::Serialize;
use serde::de::IgnoredAny;
use serde_json::json;

use super::dialect::unencodable;

/// Maximum length of a tool name for OpenAI, Gemini and Bedrock.
const MAX_NAME_CHARS: usize = 64;

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

/// Returns the name of a call in a form that every provider accepts. A model may call what is no tool, and a
/// conversation with such a name would be refused from then on.
pub(crate) fn call_name(name: &str) -> Cow<'_, str> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if name.is_empty() {
        return Cow::Borrowed("_");
    }
    if name.chars().all(is_allowed) {
        return Cow::Borrowed(name);
    }
    let name = name.chars().take(MAX_NAME_CHARS);
    name.map(|c| if is_allowed(c) { c } else { '_' }).collect()
}

/// Returns the indices of the messages after which a prompt cache is marked: the last input, and the last input of the
/// previous request.
pub(crate) fn marked_inputs<T>(
    messages: &[T],
    is_input: impl Fn(&T) -> bool,
) -> [Option<usize>; 2] {
    let latest_turn = messages.iter().rposition(|message| !is_input(message));
    let previous = latest_turn.and_then(|turn| messages.get(..turn)?.iter().rposition(&is_input));
    [messages.iter().rposition(is_input), previous]
}

/// Encodes values as JSON, separated by commas and without enclosing brackets.
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
