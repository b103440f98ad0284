//! Media as dialects write them, and what is said where one can't.

use cantle_core::content::Media;
#[cfg(any(feature = "anthropic", feature = "responses"))]
use cantle_core::content::MediaKind;
use cantle_core::llm::{LlmError, LlmErrorKind};
use cantle_core::message::AssistantBlock;

/// The media's bytes as a URL.
#[cfg(any(feature = "chat", feature = "responses"))]
pub(crate) fn data_url(media: &Media) -> String {
    format!("data:{};base64,{}", media.mime_type(), media.base64())
}

/// An image of a type that every provider takes; `dialect` is who would have to.
///
/// # Errors
/// [`LlmErrorKind::Unsupported`] for other images.
#[cfg(any(feature = "anthropic", feature = "responses"))]
pub(crate) fn image_for(dialect: &str, media: &Media) -> Result<(), LlmError> {
    match (media.kind(), media.mime_type()) {
        (MediaKind::Image, "image/jpeg" | "image/png" | "image/gif" | "image/webp") => Ok(()),
        _ => Err(unsupported_media(
            dialect,
            media,
            "images as JPEG, PNG, GIF or WebP",
        )),
    }
}

/// The error for media that `dialect` has no place for, which takes `takes`.
pub(crate) fn unsupported_media(dialect: &str, media: &Media, takes: &str) -> LlmError {
    let (kind, mime_type) = (media.kind(), media.mime_type());
    let message = format!(
        "the conversation holds {kind} of type {mime_type}, and {dialect} takes text and {takes}"
    );
    LlmError::new(LlmErrorKind::Unsupported, message)
        .with_advice("Convert it, or describe it in words.")
}

/// The error for a block of a turn that `dialect` has no place for.
pub(crate) fn not_for_here(dialect: &str, block: &AssistantBlock, message_id: &str) -> LlmError {
    let what = match block {
        AssistantBlock::Text { .. } => "signed `text`".to_owned(),
        AssistantBlock::ToolCall(call) if call.signature.is_some() => {
            "signed `tool_call`".to_owned()
        }
        other => format!("`{}`", other.kind()),
    };
    LlmError::new(
        LlmErrorKind::Unsupported,
        format!("the turn {message_id} holds a {what} block, which {dialect} has no place for"),
    )
    .with_advice("Continue this history with the kind of client that made it.")
}
