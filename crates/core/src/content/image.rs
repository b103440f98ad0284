//! Images: verified by decoding them, and brought within bounds of pixels and bytes.
//!
//! Decoding is bounded itself, so that a small file of a huge picture does no harm. Everything here
//! takes long enough to belong on a thread that may block.
//!
//! What is within bounds stays byte for byte, but for two kinds: a format that no provider takes
//! (BMP) becomes PNG, and an animation becomes its first frame, since providers either refuse
//! animations or look at nothing else. What is too large is scaled down and keeps its kind as far as
//! the bytes allow: JPEG stays JPEG, the rest becomes PNG, and where that has too many bytes, JPEG if
//! it is opaque, or a smaller picture.

mod picture;

use self::picture::Picture;
use super::{Content, Media, MediaError, MediaKind, Part};

/// Bounds that an image is brought within.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ImageLimits {
    /// Pixels, width times height. 1,000,000 unless set: what most models look at.
    pub max_pixels: u64,
    /// Bytes. 3,750,000 unless set, 5 MB in base64: Anthropic takes no more in one image.
    pub max_bytes: usize,
}

impl Default for ImageLimits {
    fn default() -> Self {
        Self {
            max_pixels: 1_000_000,
            max_bytes: 3_750_000,
        }
    }
}

impl ImageLimits {
    /// The same with other bounds of pixels; at least 4.
    #[must_use]
    pub fn with_max_pixels(mut self, pixels: u64) -> Self {
        self.max_pixels = pixels.max(4);
        self
    }

    /// The same with other bounds of bytes.
    #[must_use]
    pub fn with_max_bytes(mut self, bytes: usize) -> Self {
        self.max_bytes = bytes;
        self
    }
}

/// The size of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "an image has no other sides")]
pub struct ImageSize {
    /// Pixels from left to right.
    pub width: u32,
    /// Pixels from top to bottom.
    pub height: u32,
}

impl ImageSize {
    /// Width times height.
    #[must_use]
    pub fn pixels(self) -> u64 {
        u64::from(self.width) * u64::from(self.height)
    }

    /// The largest even size of about the same shape with at most `max_pixels`, and at least 2×2.
    fn within(self, max_pixels: u64) -> Self {
        let scale = (max_pixels as f64 / self.pixels().max(1) as f64).sqrt();
        let width = even(f64::from(self.width) * scale);
        let height = even(f64::from(self.height) * scale);
        // Of a line, one side was rounded up.
        let room = |side: u32| even((max_pixels / u64::from(side)) as f64);
        Self {
            width: width.min(room(height)),
            height: height.min(room(width)),
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a float becomes the nearest number of pixels there is"
)]
fn even(side: f64) -> u32 {
    ((side as u32) & !1).max(2)
}

impl Content {
    /// The content with its images verified and within `limits`; one that can't be used gives way to a
    /// line that says why. Blocks for as long as the images take to decode.
    ///
    /// Done when content enters a conversation, it is done once: what is sent on each turn is what
    /// came out here.
    #[must_use]
    pub fn with_images_within(self, limits: ImageLimits) -> Self {
        let Self::Parts(parts) = self else {
            return self;
        };
        let parts = parts.into_iter().map(|part| match part {
            Part::Media(media) => match media.within(limits) {
                Ok(media) => Part::Media(media),
                Err(error) => Part::Text(format!("[An image was left out: {error}]")),
            },
            text @ Part::Text(_) => text,
        });
        Self::Parts(parts.collect())
    }
}

impl Media {
    /// Proves that an image can be decoded to its end; sound and video pass unseen. Blocks.
    ///
    /// # Errors
    /// Where it is damaged or cut off, has more pixels than are decoded, or is of a format that is
    /// not decoded here (TIFF, Photoshop).
    pub fn verify(&self) -> Result<(), MediaError> {
        if self.kind() == MediaKind::Image {
            Picture::decode(self)?;
        }
        Ok(())
    }

    /// The size of an image, read from its head; `None` for sound and video.
    ///
    /// # Errors
    /// Where the head is damaged, or the format is not decoded here.
    pub fn image_size(&self) -> Result<Option<ImageSize>, MediaError> {
        if self.kind() != MediaKind::Image {
            return Ok(None);
        }
        picture::size(self).map(Some)
    }

    /// The image verified and within `limits`: itself where it was, made smaller where not. Sound
    /// and video pass as they are. Blocks for as long as decoding takes.
    ///
    /// # Errors
    /// As [`verify`](Self::verify), and where no size has few enough bytes.
    pub fn within(&self, limits: ImageLimits) -> Result<Self, MediaError> {
        if self.kind() != MediaKind::Image {
            return Ok(self.clone());
        }
        let picture = Picture::decode(self)?;
        let small = picture.size().pixels() <= limits.max_pixels;
        if small && picture.is_presentable && self.data().len() <= limits.max_bytes {
            return Ok(self.clone());
        }
        Self::image(picture.upright().encode(limits)?)
    }
}

#[cfg(test)]
mod tests;
