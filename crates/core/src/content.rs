//! Content: what a message or a tool result says, as text and media.
//!
//! Media keep their bytes as they came; a client encodes them for its wire. The type is read from
//! the bytes themselves, never from a name or a claim, and must be one the conversation formats
//! know.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The content of a message: one text, or parts in order.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_enums,
    reason = "the history format knows exactly these two"
)]
pub enum Content {
    /// Plain text.
    Text(String),
    /// Text and media in order.
    Parts(Vec<Part>),
}

/// One part of a [`Content`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_enums,
    reason = "the history format knows exactly these two"
)]
pub enum Part {
    /// Text.
    Text(String),
    /// An image, a video or a sound.
    Media(Media),
}

impl Content {
    /// The text of all parts, joined without a separator; media are left out.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Parts(parts) => parts
                .iter()
                .filter_map(|part| match part {
                    Part::Text(text) => Some(text.as_str()),
                    Part::Media(_) => None,
                })
                .collect(),
        }
    }

    /// Whether there is neither text nor media.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Text(text) => text.is_empty(),
            Self::Parts(parts) => parts.iter().all(|part| match part {
                Part::Text(text) => text.is_empty(),
                Part::Media(_) => false,
            }),
        }
    }

    /// The media among the parts, in order.
    pub fn media(&self) -> impl Iterator<Item = &Media> {
        let parts: &[Part] = match self {
            Self::Text(_) => &[],
            Self::Parts(parts) => parts,
        };
        parts.iter().filter_map(|part| match part {
            Part::Media(media) => Some(media),
            Part::Text(_) => None,
        })
    }
}

impl From<String> for Content {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for Content {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<Vec<Part>> for Content {
    fn from(parts: Vec<Part>) -> Self {
        Self::Parts(parts)
    }
}

/// What a piece of media is to the conversation formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(
    clippy::exhaustive_enums,
    reason = "the history format knows exactly these three"
)]
pub enum MediaKind {
    /// A still or animated picture.
    Image,
    /// Moving pictures.
    Video,
    /// Sound.
    Audio,
}

impl MediaKind {
    fn accepts(self, mime: &str) -> bool {
        match self {
            Self::Image => matches!(
                mime,
                "image/jpeg"
                    | "image/png"
                    | "image/webp"
                    | "image/gif"
                    | "image/bmp"
                    | "image/tiff"
                    | "image/vnd.adobe.photoshop"
            ),
            Self::Video => matches!(
                mime,
                "video/x-msvideo"
                    | "video/mp4"
                    | "video/quicktime"
                    | "video/x-matroska"
                    | "video/x-ms-wmv"
                    | "video/x-flv"
                    | "video/mpeg"
                    | "video/webm"
            ),
            // MP4 and WebM are containers: the same magic bytes hold sound alone.
            Self::Audio => matches!(
                mime,
                "audio/x-aac"
                    | "audio/aac"
                    | "audio/x-flac"
                    | "audio/m4a"
                    | "audio/mpeg"
                    | "audio/ogg"
                    | "audio/x-wav"
                    | "video/mp4"
                    | "video/webm"
            ),
        }
    }
}

impl fmt::Display for MediaKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Image => "image",
            Self::Video => "video",
            Self::Audio => "audio",
        })
    }
}

/// An image, a video or a sound: its bytes, and the type read from them.
#[derive(Clone, PartialEq, Eq)]
pub struct Media {
    kind: MediaKind,
    mime_type: &'static str,
    data: Bytes,
}

impl Media {
    /// Takes bytes that are said to be of `kind` and reads their type.
    ///
    /// # Errors
    /// Where the type can't be told from the bytes, or is none that `kind` allows.
    pub fn new(kind: MediaKind, data: impl Into<Bytes>) -> Result<Self, MediaError> {
        let data = data.into();
        let Some(found) = infer::get(&data) else {
            return Err(MediaError { kind, found: None });
        };
        let mime_type = match found.mime_type() {
            // Opus in an OGG container; its registered type, and what providers take, is the container's.
            "audio/opus" => "audio/ogg",
            other => other,
        };
        if !kind.accepts(mime_type) {
            return Err(MediaError {
                kind,
                found: Some(mime_type),
            });
        }
        Ok(Self {
            kind,
            mime_type,
            data,
        })
    }

    /// An image; see [`Media::new`].
    ///
    /// # Errors
    /// As [`Media::new`].
    pub fn image(data: impl Into<Bytes>) -> Result<Self, MediaError> {
        Self::new(MediaKind::Image, data)
    }

    /// What it is to the conversation.
    #[must_use]
    pub fn kind(&self) -> MediaKind {
        self.kind
    }

    /// The type read from the bytes, e.g. `image/png`.
    #[must_use]
    pub fn mime_type(&self) -> &'static str {
        self.mime_type
    }

    /// The bytes as they came.
    #[must_use]
    pub fn data(&self) -> &Bytes {
        &self.data
    }

    /// The bytes in standard base64.
    #[must_use]
    pub fn to_base64(&self) -> String {
        BASE64.encode(&self.data)
    }
}

impl fmt::Debug for Media {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Media({}, {} bytes)", self.mime_type, self.data.len())
    }
}

/// Bytes that are not the media they were said to be.
#[derive(Debug, thiserror::Error)]
#[error("not a supported {kind}: the bytes are {}", found.unwrap_or("of no known type"))]
pub struct MediaError {
    kind: MediaKind,
    found: Option<&'static str>,
}

/// Media in the history's JSON: `{"kind": "image_content_block", "data": "<base64>"}`.
#[derive(Serialize, Deserialize)]
#[serde(tag = "kind")]
enum MediaJson {
    #[serde(rename = "image_content_block")]
    Image { data: String },
    #[serde(rename = "video_content_block")]
    Video { data: String },
    #[serde(rename = "audio_content_block")]
    Audio { data: String },
}

impl Serialize for Media {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let data = self.to_base64();
        match self.kind {
            MediaKind::Image => MediaJson::Image { data },
            MediaKind::Video => MediaJson::Video { data },
            MediaKind::Audio => MediaJson::Audio { data },
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Media {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (kind, data) = match MediaJson::deserialize(deserializer)? {
            MediaJson::Image { data } => (MediaKind::Image, data),
            MediaJson::Video { data } => (MediaKind::Video, data),
            MediaJson::Audio { data } => (MediaKind::Audio, data),
        };
        let data = BASE64.decode(data.as_bytes()).map_err(D::Error::custom)?;
        Self::new(kind, data).map_err(D::Error::custom)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum PartJson<'a> {
    Text(std::borrow::Cow<'a, str>),
    Media(Media),
}

impl Serialize for Part {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Text(text) => text.serialize(serializer),
            Self::Media(media) => media.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Part {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match PartJson::deserialize(deserializer)? {
            PartJson::Text(text) => Self::Text(text.into_owned()),
            PartJson::Media(media) => Self::Media(media),
        })
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum ContentJson {
    Text(String),
    Parts(Vec<Part>),
}

impl Serialize for Content {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Text(text) => text.serialize(serializer),
            Self::Parts(parts) => parts.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match ContentJson::deserialize(deserializer)? {
            ContentJson::Text(text) => Self::Text(text),
            ContentJson::Parts(parts) => Self::Parts(parts),
        })
    }
}

#[cfg(test)]
mod tests;
