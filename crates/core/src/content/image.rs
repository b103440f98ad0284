//! Verification and resizing of images.
//!
//! Decoding is bounded, so that a small file with a huge image does no harm, nor do many images at the same time. All
//! functions here block.
//!
//! Images within the limits are unchanged, except that BMP, which no provider accepts, becomes PNG, and
//! an animation becomes its first frame, since providers reject or ignore the others. Larger images
//! are scaled down: JPEG stays JPEG, other formats become PNG, or JPEG if the PNG is too large and the
//! image is opaque.

mod memory;
mod picture;

use self::picture::Picture;
use super::{Content, Media, MediaError, MediaKind, Part};

/// Size limits for images.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ImageLimits {
    /// Maximum width times height. Default 1,000,000, the resolution of most models.
    pub max_pixels: u64,
    /// Maximum width, and maximum height. Default 2,000, Anthropic's limit in requests with more than 20 images
    /// (<https://platform.claude.com/docs/en/build-with-claude/vision>).
    pub max_side: u32,
    /// Maximum bytes. Default 3,750,000, which is Anthropic's limit of 5 MB in base64.
    pub max_bytes: usize,
}

impl Default for ImageLimits {
    fn default() -> Self {
        Self {
            max_pixels: 1_000_000,
            max_side: 2_000,
            max_bytes: 3_750_000,
        }
    }
}

impl ImageLimits {
    /// Sets the maximum number of pixels, at least 4.
    pub fn with_max_pixels(mut self, pixels: u64) -> Self {
        self.max_pixels = pixels.max(4);
        self
    }

    /// Sets the maximum number of bytes.
    pub fn with_max_bytes(mut self, bytes: usize) -> Self {
        self.max_bytes = bytes;
        self
    }

    /// Returns whether an image of this size needs no scaling.
    fn allows(self, size: ImageSize) -> bool {
        size.pixels() <= self.max_pixels && size.width.max(size.height) <= self.max_side
    }
}

/// The size of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "an image has no other sides")]
pub struct ImageSize {
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
}

impl ImageSize {
    /// Returns width times height.
    pub fn pixels(self) -> u64 {
        u64::from(self.width) * u64::from(self.height)
    }

    /// Returns the largest even size of about the same aspect ratio within the limits, at least 2×2.
    fn within(self, limits: ImageLimits) -> Self {
        let scale = (limits.max_pixels as f64 / self.pixels().max(1) as f64).sqrt();
        let longest = f64::from(self.width.max(self.height).max(1));
        let scaled = |side: u32| {
            let side = f64::from(side);
            // In this order, the longest side becomes the maximum exactly.
            let within_side = side * f64::from(limits.max_side) / longest;
            even(within_side.min(side * scale))
        };
        let (width, height) = (scaled(self.width), scaled(self.height));
        // One side of a very narrow image was rounded up.
        let room = |side: u32| even((limits.max_pixels / u64::from(side)) as f64);
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
    /// Verifies images and resizes them to `limits`; an unusable image is replaced by a line of text with
    /// the reason. Blocks while it decodes the images.
    ///
    /// Call it once, when content enters a conversation, so that all turns send the same bytes.
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
    /// Reads the size of an image from its header; `None` for audio and video.
    ///
    /// # Errors
    /// If the header is damaged, or there is no decoder.
    pub fn image_size(&self) -> Result<Option<ImageSize>, MediaError> {
        if self.kind() != MediaKind::Image {
            return Ok(None);
        }
        picture::size(self).map(Some)
    }

    /// Verifies an image and resizes it to `limits` if necessary. Audio and video are unchanged. Blocks.
    ///
    /// # Errors
    /// If it is damaged, truncated or too large, there is no decoder (TIFF, Photoshop), or no size has few enough bytes.
    pub fn within(&self, limits: ImageLimits) -> Result<Self, MediaError> {
        if self.kind() != MediaKind::Image {
            return Ok(self.clone());
        }
        let picture = Picture::decode(self)?;
        if limits.allows(picture.size())
            && picture.is_supported
            && self.data().len() <= limits.max_bytes
        {
            return Ok(self.clone());
        }
        Self::image(picture.upright().encode(limits)?)
    }
}

#[cfg(test)]
mod tests;
