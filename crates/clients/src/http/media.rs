//! Encoding of media, and errors for content that a dialect does not support.

use cantle_core::content::{Media, MediaKind};
use cantle_core::llm::{LlmError, LlmErrorKind};
use cantle_core::message::AssistantBlock;

/// Returns the media as a `data:` URL.
pub(crate) fn data_url(media: &Media) -> String {
    format!("data:{};base64,{}", media.mime_type(), media.base64())
}

/// Fails with [`LlmErrorKind::Unsupported`] unless the media is an image of a type that every provider
/// accepts.
pub(crate) fn check_image_type(dialect: &str, media: &Media) -> Result<(), LlmError> {
    match (media.kind(), media.mime_type()) {
        (MediaKind::Image, "image/jpeg" | "image/png" | "image/gif" | "image/webp") => Ok(()),
        _ => Err(unsupported_media(
            dialect,
            media,
            "images as JPEG, PNG, GIF or WebP",
        )),
    }
}

/// Returns the error for media that `dialect` does not support; `supported` names those it does.
pub(crate) fn unsupported_media(dialect: &str, media: &Media, supported: &str) -> LlmError {
    let (kind, mime_type) = (media.kind(), media.mime_type());
    let message = format!(
        "the conversation contains {kind} of type {mime_type}, but {dialect} accepts only text and \
         {supported}"
    );
    LlmError::new(LlmErrorKind::Unsupported, message)
        .with_advice("Convert it, or describe it in words.")
}

/// Returns the error for an assistant block that `dialect` cannot represent.
pub(crate) fn unsupported_block(
    dialect: &str,
    block: &AssistantBlock,
    message_id: &str,
) -> LlmError {
    let kind = match block {
        AssistantBlock::Text { .. } => "signed `text`".to_owned(),
        AssistantBlock::ToolCall(call) if call.signature.is_some() => {
            "signed `tool_call`".to_owned()
        }
        other => format!("`{}`", other.kind()),
    };
    let message =
        format!("message {message_id} contains a {kind} block, which {dialect} cannot represent");
    LlmError::new(LlmErrorKind::Unsupported, message)
        .with_advice("Continue this history with the kind of client that created it.")
}
