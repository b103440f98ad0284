//! Decoding, orienting and encoding of one image.

use std::io::Cursor;

use bytes::Bytes;
use image::codecs::gif::GifDecoder;
use image::codecs::jpeg::JpegEncoder;
use image::codecs::png::{CompressionType, FilterType as RowFilter, PngEncoder};
use image::codecs::webp::WebPDecoder;
use image::error::LimitErrorKind;
use image::imageops::FilterType;
use image::metadata::Orientation;
use image::{
    AnimationDecoder as _, DynamicImage, ImageDecoder, ImageError, ImageFormat, ImageReader, Limits,
};

use super::memory::{MEMORY, Reservation};
use super::{ImageLimits, ImageSize, even};
use crate::content::{Media, MediaError, MediaErrorKind};

/// Maximum pixels of a decoded image: about 200 MB, more than current cameras produce.
const MAX_DECODED_PIXELS: u64 = 64_000_000;
/// Maximum width, and maximum height, of a decoded image. Scaling takes 32 bytes and more for each pixel of a row: 2 GB if
/// all pixels were in one.
const MAX_DECODED_SIDE: u32 = 1_000_000;
/// Memory limit of one decoder.
const MAX_DECODER_BYTES: u64 = 300_000_000;
/// Memory for a pixel beside the decoded image: state of the decoder, then copies of 8 bits per channel with and without alpha.
const WORKING_BYTES_PER_PIXEL: u64 = 8;
/// JPEG qualities, tried in order until the file is small enough.
const QUALITIES: [u8; 3] = [85, 70, 50];
/// Factor for each side if the file is still too large.
const SHRINK: f64 = 0.7;

/// Reads the displayed size of an image from its header.
pub(super) fn size(media: &Media) -> Result<ImageSize, MediaError> {
    let mut decoder = reader(media, format(media)?)
        .into_decoder()
        .map_err(failed)?;
    let (width, height) = decoder.dimensions();
    // The EXIF orientations from 5 on swap the sides.
    let swaps_sides = |orientation: Orientation| orientation.to_exif() >= 5;
    Ok(if decoder.orientation().is_ok_and(swaps_sides) {
        sides((height, width))
    } else {
        sides((width, height))
    })
}

/// A decoded image.
pub(super) struct Picture {
    image: DynamicImage,
    orientation: Orientation,
    format: ImageFormat,
    /// Whether providers accept the image's format.
    pub(super) is_supported: bool,
    _memory: Reservation<'static>,
}

impl Picture {
    pub(super) fn decode(media: &Media) -> Result<Self, MediaError> {
        let format = format(media)?;
        let data = media.data();
        if format == ImageFormat::Jpeg && is_truncated(data) {
            let message = "the image is damaged: it is truncated";
            return Err(MediaError::new(MediaErrorKind::Corrupt, message));
        }
        let mut decoder = reader(media, format).into_decoder().map_err(failed)?;
        let pixels = sides(decoder.dimensions()).pixels();
        if pixels > MAX_DECODED_PIXELS {
            let message = format!(
                "the image has {pixels} pixels, and up to {MAX_DECODED_PIXELS} are decoded"
            );
            return Err(MediaError::new(MediaErrorKind::TooLarge, message));
        }
        decoder.set_limits(decoder_limits()).map_err(failed)?;
        let working_bytes = pixels.saturating_mul(WORKING_BYTES_PER_PIXEL);
        let memory = MEMORY.reserve(decoder.total_bytes().saturating_add(working_bytes));
        let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
        let image = DynamicImage::from_decoder(decoder).map_err(failed)?;
        let is_still = match format {
            ImageFormat::Gif => {
                let mut decoder = GifDecoder::new(Cursor::new(data)).map_err(failed)?;
                // Each frame has its own size, which can be larger than the picture.
                decoder.set_limits(decoder_limits()).map_err(failed)?;
                decoder.into_frames().take(2).count() < 2
            }
            ImageFormat::WebP => !WebPDecoder::new(Cursor::new(data))
                .map_err(failed)?
                .has_animation(),
            _ => true,
        };
        Ok(Self {
            image,
            orientation,
            format,
            is_supported: is_still && format != ImageFormat::Bmp,
            _memory: memory,
        })
    }

    pub(super) fn size(&self) -> ImageSize {
        sides((self.image.width(), self.image.height()))
    }

    /// Applies the EXIF orientation, which encoding drops, and converts to 8 bits per channel.
    pub(super) fn upright(mut self) -> Self {
        self.image.apply_orientation(self.orientation);
        self.orientation = Orientation::NoTransforms;
        let color = self.image.color();
        self.image = match (color.has_color(), color.has_alpha()) {
            (false, false) => self.image.into_luma8().into(),
            (true, false) => self.image.into_rgb8().into(),
            (_, true) => self.image.into_rgba8().into(),
        };
        self
    }

    pub(super) fn encode(self, limits: ImageLimits) -> Result<Bytes, MediaError> {
        let opaque = self.opaque();
        let size = self.size();
        let mut target = size;
        if !limits.allows(size) {
            target = size.within(limits);
        }
        loop {
            let scaled = |image: &DynamicImage| {
                if target == size {
                    return image.clone();
                }
                image.resize_exact(target.width, target.height, FilterType::CatmullRom)
            };
            let fits = |data: &Vec<u8>| data.len() <= limits.max_bytes;
            if self.format != ImageFormat::Jpeg {
                let data = png(&scaled(&self.image))?;
                if fits(&data) {
                    return Ok(data.into());
                }
            }
            if let Some(opaque) = &opaque {
                let scaled = scaled(opaque);
                for quality in QUALITIES {
                    let data = jpeg(&scaled, quality)?;
                    if fits(&data) {
                        return Ok(data.into());
                    }
                }
            }
            if target.width <= 2 && target.height <= 2 {
                let message = format!(
                    "the image can't be made as small as {} bytes",
                    limits.max_bytes
                );
                return Err(MediaError::new(MediaErrorKind::TooLarge, message));
            }
            target.width = even(f64::from(target.width) * SHRINK);
            target.height = even(f64::from(target.height) * SHRINK);
        }
    }

    /// Returns the image without its alpha channel, if it is opaque.
    fn opaque(&self) -> Option<DynamicImage> {
        let DynamicImage::ImageRgba8(pixels) = &self.image else {
            return Some(self.image.clone());
        };
        let is_opaque = pixels
            .pixels()
            .all(|pixel| pixel.0.last() == Some(&u8::MAX));
        is_opaque.then(|| self.image.to_rgb8().into())
    }
}

fn format(media: &Media) -> Result<ImageFormat, MediaError> {
    Ok(match media.mime_type() {
        "image/png" => ImageFormat::Png,
        "image/jpeg" => ImageFormat::Jpeg,
        "image/gif" => ImageFormat::Gif,
        "image/webp" => ImageFormat::WebP,
        "image/bmp" => ImageFormat::Bmp,
        other => {
            let message = format!("{other} can't be decoded; make it a PNG or JPEG first");
            return Err(MediaError::new(MediaErrorKind::Undecodable, message));
        }
    })
}

fn reader(media: &Media, format: ImageFormat) -> ImageReader<Cursor<&Bytes>> {
    let mut reader = ImageReader::with_format(Cursor::new(media.data()), format);
    reader.limits(decoder_limits());
    reader
}

fn decoder_limits() -> Limits {
    let mut limits = Limits::default();
    limits.max_image_width = Some(MAX_DECODED_SIDE);
    limits.max_image_height = Some(MAX_DECODED_SIDE);
    limits.max_alloc = Some(MAX_DECODER_BYTES);
    limits
}

fn sides((width, height): (u32, u32)) -> ImageSize {
    ImageSize { width, height }
}

/// Returns whether a JPEG file ends within its picture, which its decoder ignores. Other data may follow: the video of a
/// motion photo, the depth map of a portrait.
fn is_truncated(data: &[u8]) -> bool {
    let mut rest = data;
    // A zero after 0xff is part of the picture's data, and another 0xff is padding.
    let is_marker = |pair: &[u8]| matches!(pair, [0xff, 0x01..=0xfe]);
    while let Some(at) = rest.windows(2).position(is_marker) {
        let (marker, after) = rest.split_at(at + 2);
        let skipped: usize = match (marker.last(), after) {
            (Some(0xd9), _) => return false,
            // Markers without a segment.
            (Some(0x01 | 0xd0..=0xd8), _) => 0,
            (_, [high, low, ..]) => u16::from_be_bytes([*high, *low]).into(),
            _ => return true,
        };
        rest = after.get(skipped..).unwrap_or_default();
    }
    true
}

fn png(image: &DynamicImage) -> Result<Vec<u8>, MediaError> {
    let mut data = Vec::new();
    let encoder =
        PngEncoder::new_with_quality(&mut data, CompressionType::Default, RowFilter::Adaptive);
    image.write_with_encoder(encoder).map_err(failed)?;
    Ok(data)
}

fn jpeg(image: &DynamicImage, quality: u8) -> Result<Vec<u8>, MediaError> {
    let mut data = Vec::new();
    let encoder = JpegEncoder::new_with_quality(&mut data, quality);
    image.write_with_encoder(encoder).map_err(failed)?;
    Ok(data)
}

#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn failed(error: ImageError) -> MediaError {
    match &error {
        ImageError::Limits(limit) => {
            let what = match limit.kind() {
                LimitErrorKind::DimensionError => "sides",
                _ => "data",
            };
            let message = format!("the image is too large: its {what} are more than is decoded");
            MediaError::new(MediaErrorKind::TooLarge, message)
        }
        ImageError::Unsupported(_) => {
            let message = format!("the image can't be decoded: {error}");
            MediaError::new(MediaErrorKind::Undecodable, message)
        }
        _ => {
            let message = format!("the image is damaged: {error}");
            MediaError::new(MediaErrorKind::Corrupt, message)
        }
    }
}
