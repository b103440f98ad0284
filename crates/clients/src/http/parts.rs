//! What dialects have in common in how they write messages down.

#[cfg(any(feature = "anthropic", feature = "responses"))]
use bytes::Bytes;
use cantle_core::content::{Content, Media, Part};
use cantle_core::llm::LlmError;
#[cfg(any(feature = "anthropic", feature = "responses"))]
use serde::Serialize;

#[cfg(any(feature = "anthropic", feature = "responses"))]
use super::dialect::unencodable;

/// The parts of a content, in order. An empty text is none: some servers refuse those.
///
/// # Errors
/// Those of `media`.
pub(crate) fn parts_of<'a, T>(
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

/// Values as JSON with commas between them and no bracket around, for the encoded forms of a message.
#[cfg(any(feature = "anthropic", feature = "responses"))]
pub(crate) fn listed<T: Serialize>(values: impl IntoIterator<Item = T>) -> Result<Bytes, LlmError> {
    let mut list = Vec::new();
    for value in values {
        if !list.is_empty() {
            list.push(b',');
        }
        serde_json::to_writer(&mut list, &value).map_err(unencodable)?;
    }
    // It lives as long as the message, so without room to grow.
    Ok(list.into_boxed_slice().into())
}
