//! Content parts of Chat Completions messages.

use std::borrow::Cow;

use cantle_core::content::{Content, Media, MediaKind};
use cantle_core::llm::{LlmError, LlmErrorKind};
use serde::Serialize;

use super::server::{ServerQuirks, VideoFormat};
use crate::http::{content_parts, data_url, unsupported_media};

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum ChatContentPart<'a> {
    Text { text: Cow<'a, str> },
    ImageUrl { image_url: ChatMediaUrl },
    VideoUrl { video_url: ChatMediaUrl },
    InputAudio { input_audio: ChatInputAudio },
    File { file: ChatFile },
}

#[derive(Serialize)]
pub(super) struct ChatMediaUrl {
    url: String,
}

#[derive(Serialize)]
pub(super) struct ChatInputAudio {
    data: String,
    format: &'static str,
}

#[derive(Serialize)]
pub(super) struct ChatFile {
    file_data: String,
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
    Ok(match (media.kind(), quirks.video) {
        (MediaKind::Image, _) => ChatContentPart::ImageUrl {
            image_url: ChatMediaUrl {
                url: data_url(media),
            },
        },
        (MediaKind::Video, VideoFormat::File) => ChatContentPart::File {
            file: ChatFile {
                file_data: data_url(media),
            },
        },
        (MediaKind::Video, VideoFormat::Url) => ChatContentPart::VideoUrl {
            video_url: ChatMediaUrl {
                url: data_url(media),
            },
        },
        (MediaKind::Audio, _) if quirks.audio => ChatContentPart::InputAudio {
            input_audio: ChatInputAudio {
                data: media.base64().to_owned(),
                format: audio_format(media.mime_type())?,
            },
        },
        _ => {
            let supported = if quirks.audio {
                "images and audio"
            } else {
                "images"
            };
            return Err(unsupported_media("this server", media, supported));
        }
    })
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
