//! Text and media as the parts of a message's content.

use std::borrow::Cow;

use cantle_core::content::{Content, Media, MediaKind};
use cantle_core::llm::{LlmError, LlmErrorKind};
use serde::Serialize;

use super::server::{Habits, Video};
use crate::http::{data_url, parts_of, unsupported_media};

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum WirePart<'a> {
    Text { text: Cow<'a, str> },
    ImageUrl { image_url: WireUrl },
    VideoUrl { video_url: WireUrl },
    InputAudio { input_audio: WireAudio },
    File { file: WireFile },
}

#[derive(Serialize)]
pub(super) struct WireUrl {
    url: String,
}

#[derive(Serialize)]
pub(super) struct WireAudio {
    data: String,
    format: &'static str,
}

#[derive(Serialize)]
pub(super) struct WireFile {
    file_data: String,
}

/// The parts of a message from our side.
pub(super) fn parts<'a>(
    content: &'a Content,
    habits: &Habits,
) -> Result<Vec<WirePart<'a>>, LlmError> {
    parts_of(content, text_part, |media| media_part(media, habits))
}

fn text_part(text: &str) -> WirePart<'_> {
    WirePart::Text { text: text.into() }
}

pub(super) fn media_part<'a>(media: &Media, habits: &Habits) -> Result<WirePart<'a>, LlmError> {
    Ok(match (media.kind(), habits.video) {
        (MediaKind::Image, _) => WirePart::ImageUrl {
            image_url: WireUrl {
                url: data_url(media),
            },
        },
        (MediaKind::Video, Video::File) => WirePart::File {
            file: WireFile {
                file_data: data_url(media),
            },
        },
        (MediaKind::Video, Video::Url) => WirePart::VideoUrl {
            video_url: WireUrl {
                url: data_url(media),
            },
        },
        (MediaKind::Audio, _) if habits.audio => WirePart::InputAudio {
            input_audio: WireAudio {
                data: media.base64().to_owned(),
                format: audio_format(media.mime_type())?,
            },
        },
        _ => {
            let takes = if habits.audio {
                "images and audio"
            } else {
                "images"
            };
            return Err(unsupported_media("this server", media, takes));
        }
    })
}

/// OpenAI knows `wav` and `mp3`; servers in front of other models take more.
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
            let message = format!("sound of type {other} can't be sent as Chat Completions input");
            return Err(LlmError::new(LlmErrorKind::Unsupported, message));
        }
    })
}

/// The texts of a turn between two media are one text.
pub(super) fn add_text<'a>(parts: &mut Vec<WirePart<'a>>, text: &'a str) {
    match parts.last_mut() {
        Some(WirePart::Text { text: before }) => before.to_mut().push_str(text),
        _ if text.is_empty() => {}
        _ => parts.push(text_part(text)),
    }
}
