//! Media: bytes with a detected type.

use std::fmt;
use std::sync::{Arc, OnceLock};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The kind of a [`Media`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(
    clippy::exhaustive_enums,
    reason = "the history format knows exactly these three"
)]
pub enum MediaKind {
    /// A still or animated image.
    Image,
    /// Video.
    Video,
    /// Audio.
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
        self.serialize(f)
    }
}

/// An image, video or audio clip. Clones share the bytes and their [base64](Self::base64).
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
    /// Detects the type of bytes of the given kind.
    ///
    /// # Errors
    /// If the type is unknown or not supported for `kind`.
    pub fn new(kind: MediaKind, data: impl Into<Bytes>) -> Result<Self, MediaError> {
        let data = data.into();
        let found = infer::get(&data).map(|found| found.mime_type());
        let mime_type = match found {
            // Opus in an OGG container; its registered type, and what providers take, is the container's.
            Some("audio/opus") if kind.accepts("audio/ogg") => "audio/ogg",
            Some(mime_type) if kind.accepts(mime_type) => mime_type,
            other => {
                let found = other.unwrap_or("of no known type");
                let message = format!("not a supported {kind}: the bytes are {found}");
                return Err(MediaError::new(MediaErrorKind::Type, message));
            }
        };
        Ok(Self {
            kind,
            mime_type,
            data,
            base64: Arc::default(),
        })
    }

    /// Detects the type of an image; see [`Media::new`].
    ///
    /// # Errors
    /// As [`Media::new`].
    pub fn image(data: impl Into<Bytes>) -> Result<Self, MediaError> {
        Self::new(MediaKind::Image, data)
    }

    /// Returns the kind.
    pub fn kind(&self) -> MediaKind {
        self.kind
    }

    /// Returns the detected MIME type, e.g. `image/png`.
    pub fn mime_type(&self) -> &'static str {
        self.mime_type
    }

    /// Returns the original bytes.
    pub fn data(&self) -> &Bytes {
        &self.data
    }

    /// Returns the bytes in standard base64, encoded once for all clones.
    pub fn base64(&self) -> &str {
        self.base64.get_or_init(|| BASE64.encode(&self.data))
    }
}

impl fmt::Debug for Media {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Media({}, {} bytes)", self.mime_type, self.data.len())
    }
}

/// An error of invalid or unsupported media.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct MediaError {
    kind: MediaErrorKind,
    message: String,
}

/// The kind of a [`MediaError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MediaErrorKind {
    /// The type is unknown or not supported.
    Type,
    /// The data is damaged or truncated.
    Corrupt,
    /// There is no decoder for the type.
    Undecodable,
    /// The image is too large to decode, or can't be made small enough.
    TooLarge,
}

impl MediaError {
    pub(super) fn new(kind: MediaErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
        }
    }

    /// Returns the kind.
    pub fn kind(&self) -> MediaErrorKind {
        self.kind
    }
}

/// Media in the history's JSON: `{"kind": "image_content_block", "data": "<base64>"}`.
#[derive(Serialize, Deserialize)]
struct MediaJson<T> {
    #[serde(with = "BlockKind")]
    kind: MediaKind,
    data: T,
}

/// Names of the kinds in the history's JSON.
#[derive(Serialize, Deserialize)]
#[serde(remote = "MediaKind")]
enum BlockKind {
    #[serde(rename = "image_content_block")]
    Image,
    #[serde(rename = "video_content_block")]
    Video,
    #[serde(rename = "audio_content_block")]
    Audio,
}

impl Serialize for Media {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (kind, data) = (self.kind, self.base64());
        MediaJson { kind, data }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Media {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let MediaJson::<String> { kind, data } = MediaJson::deserialize(deserializer)?;
        let bytes = BASE64.decode(data.as_bytes()).map_err(D::Error::custom)?;
        let media = Self::new(kind, bytes).map_err(D::Error::custom)?;
        // The decoder only accepts canonical base64, so this equals the encoded bytes.
        let _ = media.base64.set(data);
        Ok(media)
    }
}
