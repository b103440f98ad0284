//! Media: bytes, the type read from them, and their form on the wire.

use std::fmt;
use std::sync::{Arc, OnceLock};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

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

/// An image, a video or a sound: its bytes, and the type read from them. Clones share the bytes, and
/// their [base64](Self::base64).
#[derive(Clone)]
pub struct Media {
    kind: MediaKind,
    mime_type: &'static str,
    data: Bytes,
    base64: Arc<OnceLock<String>>,
}

impl PartialEq for Media {
    fn eq(&self, other: &Self) -> bool {
        self.kind == other.kind && self.data == other.data
    }
}

impl Eq for Media {}

impl Media {
    /// Takes bytes that are said to be of `kind` and reads their type.
    ///
    /// # Errors
    /// Where the type can't be told from the bytes, or is none that `kind` allows.
    pub fn new(kind: MediaKind, data: impl Into<Bytes>) -> Result<Self, MediaError> {
        let data = data.into();
        let found = infer::get(&data).map(|found| found.mime_type());
        let mime_type = match found {
            // Opus in an OGG container; its registered type, and what providers take, is the container's.
            Some("audio/opus") if kind.accepts("audio/ogg") => "audio/ogg",
            Some(mime_type) if kind.accepts(mime_type) => mime_type,
            other => return Err(MediaError::other_type(kind, other)),
        };
        Ok(Self {
            kind,
            mime_type,
            data,
            base64: Arc::default(),
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

    /// The bytes in standard base64: encoded once, for all clones together.
    #[must_use]
    pub fn base64(&self) -> &str {
        self.base64.get_or_init(|| BASE64.encode(&self.data))
    }
}

impl fmt::Debug for Media {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Media({}, {} bytes)", self.mime_type, self.data.len())
    }
}

/// Bytes that are not the media they were said to be, or none that can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct MediaError {
    kind: MediaErrorKind,
    message: String,
}

/// What is wrong with bytes that should be media.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MediaErrorKind {
    /// They are of another type, or of none that is known.
    Type,
    /// They are damaged or cut off.
    Corrupt,
    /// They are of a type that can't be decoded here.
    Undecodable,
    /// What they hold is larger than is decoded, or can't be made small enough.
    TooLarge,
}

impl MediaError {
    pub(super) fn new(kind: MediaErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
        }
    }

    fn other_type(media: MediaKind, found: Option<&str>) -> Self {
        let found = found.unwrap_or("of no known type");
        let message = format!("not a supported {media}: the bytes are {found}");
        Self::new(MediaErrorKind::Type, message)
    }

    /// What is wrong.
    #[must_use]
    pub fn kind(&self) -> MediaErrorKind {
        self.kind
    }
}

/// Media in the history's JSON: `{"kind": "image_content_block", "data": "<base64>"}`.
#[derive(Serialize, Deserialize)]
#[serde(tag = "kind")]
enum MediaJson<T> {
    #[serde(rename = "image_content_block")]
    Image { data: T },
    #[serde(rename = "video_content_block")]
    Video { data: T },
    #[serde(rename = "audio_content_block")]
    Audio { data: T },
}

impl Serialize for Media {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let data = self.base64();
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
        let (kind, data) = match MediaJson::<String>::deserialize(deserializer)? {
            MediaJson::Image { data } => (MediaKind::Image, data),
            MediaJson::Video { data } => (MediaKind::Video, data),
            MediaJson::Audio { data } => (MediaKind::Audio, data),
        };
        let bytes = BASE64.decode(data.as_bytes()).map_err(D::Error::custom)?;
        let media = Self::new(kind, bytes).map_err(D::Error::custom)?;
        // The decoder takes nothing but what encoding makes, so this is what it would make again.
        let _ = media.base64.set(data);
        Ok(media)
    }
}
