//! Text and media as the parts of a message's content.

use std::borrow::Cow;

use cantle_core::content::{Content, Media, MediaKind, Part};
use cantle_core::llm::{LlmError, LlmErrorKind};
use serde::Serialize;

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum WirePart<'a> {
    Text { text: Cow<'a, str> },
    ImageUrl { image_url: WireUrl },
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
pub(super) fn parts(content: &Content) -> Result<Vec<WirePart<'_>>, LlmError> {
    match content {
        Content::Text(text) => Ok(text_part(text).into_iter().collect()),
        Content::Parts(parts) => parts
            .iter()
            .filter_map(|part| match part {
                Part::Text(text) => text_part(text).map(Ok),
                Part::Media(media) => Some(media_part(media)),
            })
            .collect(),
    }
}

/// An empty text is no part: some servers refuse those.
fn text_part(text: &str) -> Option<WirePart<'_>> {
    (!text.is_empty()).then(|| WirePart::Text { text: text.into() })
}

pub(super) fn media_part<'a>(media: &Media) -> Result<WirePart<'a>, LlmError> {
    let url = || format!("data:{};base64,{}", media.mime_type(), media.to_base64());
    Ok(match media.kind() {
        MediaKind::Image => WirePart::ImageUrl {
            image_url: WireUrl { url: url() },
        },
        MediaKind::Video => WirePart::File {
            file: WireFile { file_data: url() },
        },
        MediaKind::Audio => WirePart::InputAudio {
            input_audio: WireAudio {
                data: media.to_base64(),
                format: audio_format(media.mime_type())?,
            },
        },
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
        _ => parts.extend(text_part(text)),
    }
}
