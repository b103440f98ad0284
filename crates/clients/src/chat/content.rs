//! Content parts of Chat Completions messages.

use std::borrow::Cow;

use cantle_core::content::{Content, Media, MediaKind};
use cantle_core::llm::{LlmError, LlmErrorKind};
use serde::Serialize;
use serde_json::{Value, json};

use super::server::{ServerQuirks, VideoFormat};
use crate::http::{content_parts, data_url, unsupported_media};

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum ChatContentPart<'a> {
    Text {
        text: Cow<'a, str>,
    },
    /// A part of another type, with its type.
    #[serde(untagged)]
    Other(Value),
}

/// Encodes the content of a system, user or tool message.
pub(super) fn parts<'a>(
    content: &'a Content,
    quirks: &ServerQuirks,
) -> Result<Vec<ChatContentPart<'a>>, LlmError> {
    content_parts(content, text_part, |media| media_part(media, quirks))
}

fn text_part(text: &str) -> ChatContentPart<'_> {
    ChatContentPart::Text { text: text.into() }
}

pub(super) fn media_part<'a>(
    media: &Media,
    quirks: &ServerQuirks,
) -> Result<ChatContentPart<'a>, LlmError> {
    let part = match (media.kind(), quirks.video) {
        (MediaKind::Image, _) => {
            json!({"type": "image_url", "image_url": {"url": data_url(media)}})
        }
        (MediaKind::Video, VideoFormat::File) => {
            json!({"type": "file", "file": {"file_data": data_url(media)}})
        }
        (MediaKind::Video, VideoFormat::Url) => {
            json!({"type": "video_url", "video_url": {"url": data_url(media)}})
        }
        (MediaKind::Audio, _) if quirks.audio => {
            let format = audio_format(media.mime_type())?;
            let audio = json!({"data": media.base64(), "format": format});
            json!({"type": "input_audio", "input_audio": audio})
        }
        _ => {
            let supported = match quirks.audio {
                true => "images and audio",
                false => "images",
            };
            return Err(unsupported_media("this server", media, supported));
        }
    };
    Ok(ChatContentPart::Other(part))
}

/// Returns Mistral's part for reasoning. <https://docs.mistral.ai/capabilities/reasoning>
pub(super) fn thinking_part<'a>(reasoning: &str) -> ChatContentPart<'a> {
    let text = json!([{"type": "text", "text": reasoning}]);
    ChatContentPart::Other(json!({"type": "thinking", "thinking": text}))
}

/// Returns the `format` of audio. OpenAI accepts `wav` and `mp3`; other servers accept more.
fn audio_format(mime_type: &str) -> Result<&'static str, LlmError> {
    Ok(match mime_type {
        "audio/mpeg" => "mp3",
        "audio/x-wav" => "wav",
        "audio/x-flac" => "flac",
        "audio/ogg" => "ogg",
        "audio/aac" | "audio/x-aac" => "aac",
        "audio/m4a" => "m4a",
        "video/mp4" => "mp4",
        "video/webm" => "webm",
        other => {
            let message = format!("Chat Completions does not accept audio of type {other}");
            return Err(LlmError::new(LlmErrorKind::Unsupported, message));
        }
    })
}

/// Appends text, merging it with a preceding text part.
pub(super) fn add_text<'a>(parts: &mut Vec<ChatContentPart<'a>>, text: &'a str) {
    match parts.last_mut() {
        Some(ChatContentPart::Text { text: previous }) => previous.to_mut().push_str(text),
        _ if text.is_empty() => {}
        _ => parts.push(text_part(text)),
    }
}
