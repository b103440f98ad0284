//! Content of messages and tool results: text and media.
//!
//! Media keep their original bytes. The type is detected from the bytes, never taken from a name or a
//! declaration. With the feature `images`, images can be verified and resized; that decodes them, so
//! it must run on a thread that may block.

#[cfg(feature = "images")]
mod image;
mod media;

use serde::{Deserialize, Serialize};

#[cfg(feature = "images")]
pub use self::image::{ImageLimits, ImageSize};
pub use self::media::{Media, MediaError, MediaErrorKind, MediaKind};

/// The content of a message: one text, or parts in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
#[expect(
    clippy::exhaustive_enums,
    reason = "the history format knows exactly these two"
)]
pub enum Part {
    /// Text.
    Text(String),
    /// An image, video or audio clip.
    Media(Media),
}

impl Content {
    /// Returns the concatenated text parts.
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

    /// Returns whether there is neither text nor media.
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Text(text) => text.is_empty(),
            Self::Parts(parts) => parts
                .iter()
                .all(|part| matches!(part, Part::Text(text) if text.is_empty())),
        }
    }

    /// Puts text before everything else.
    pub fn prepend(&mut self, text: &str) {
        match self {
            Self::Text(rest) => rest.insert_str(0, text),
            Self::Parts(parts) => match parts.first_mut() {
                Some(Part::Text(rest)) => rest.insert_str(0, text),
                _ => parts.insert(0, Part::Text(text.to_owned())),
            },
        }
    }

    /// Iterates over the media, in order.
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

#[cfg(test)]
mod tests;
