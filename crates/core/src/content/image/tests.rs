use std::io::Cursor;

use image::codecs::gif::GifEncoder;
use image::{DynamicImage, Frame, GrayImage, ImageFormat, Rgb, RgbImage, Rgba, RgbaImage};

use super::*;
use crate::content::MediaErrorKind;

/// Pixels that compress badly.
fn noise(width: u32, height: u32) -> RgbImage {
    let mut state = 1_u32;
    RgbImage::from_fn(width, height, |_, _| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let [a, b, c, _] = state.to_be_bytes();
        Rgb([a, b, c])
    })
}

pub(super) fn encoded(image: impl Into<DynamicImage>, format: ImageFormat) -> Media {
    let mut data = Cursor::new(Vec::new());
    image
        .into()
        .write_to(&mut data, format)
        .expect("it is encoded");
    Media::image(data.into_inner()).expect("an image")
}

fn plain(width: u32, height: u32) -> RgbImage {
    RgbImage::from_pixel(width, height, Rgb([200, 30, 30]))
}

fn animation(frames: u8) -> Media {
    let mut data = Vec::new();
    let mut encoder = GifEncoder::new(&mut data);
    for shade in 0..frames {
        let frame = RgbaImage::from_pixel(8, 6, Rgba([shade * 90, 0, 0, 255]));
        encoder.encode_frame(Frame::new(frame)).expect("a frame");
    }
    drop(encoder);
    Media::image(data).expect("an image")
}

fn sides(media: &Media) -> (u32, u32) {
    let size = media
        .image_size()
        .expect("it has a head")
        .expect("an image");
    (size.width, size.height)
}

fn pixel(media: &Media, x: u32, y: u32) -> [u8; 4] {
    let image = image::load_from_memory(media.data()).expect("it decodes");
    image.to_rgba8().get_pixel(x, y).0
}

fn error(media: &Media) -> (MediaErrorKind, String) {
    let refused = media.within(ImageLimits::default());
    let error = refused.expect_err("it is refused");
    (error.kind(), error.to_string())
}

#[test]
fn images_within_the_limits_are_unchanged() {
    let formats = [
        ImageFormat::Png,
        ImageFormat::Jpeg,
        ImageFormat::WebP,
        ImageFormat::Gif,
    ];
    for format in formats {
        let media = encoded(plain(31, 7), format);
        let within = media.within(ImageLimits::default()).expect("it is whole");
        assert_eq!(within, media, "{format:?}");
        assert_eq!(sides(&within), (31, 7));
        // Encoded once, for both.
        assert!(std::ptr::eq(within.base64(), media.base64()));
    }
}

#[test]
fn large_images_keep_aspect_ratio_and_format() {
    let limits = ImageLimits::default().with_max_pixels(10_000);
    let cases = [
        (ImageFormat::Png, (400, 100), "image/png", (200, 50)),
        (ImageFormat::Jpeg, (301, 200), "image/jpeg", (122, 80)),
        (ImageFormat::WebP, (150, 150), "image/png", (100, 100)),
        (ImageFormat::Gif, (150, 150), "image/png", (100, 100)),
        (ImageFormat::Bmp, (150, 150), "image/png", (100, 100)),
        // A line keeps at least two pixels, and the other side pays for it.
        (ImageFormat::Png, (1, 20_000), "image/png", (2, 2_000)),
        (ImageFormat::Png, (60_000, 3), "image/png", (2_000, 2)),
    ];
    for (format, (width, height), mime_type, expected) in cases {
        let media = encoded(plain(width, height), format);
        let within = media.within(limits).expect("it is whole");
        assert_eq!((within.mime_type(), sides(&within)), (mime_type, expected));
        let [red, green, blue, _] = pixel(&within, 1, 1);
        assert!(red > 190 && green < 40 && blue < 40, "{format:?}");
        assert_eq!(within.within(limits), Ok(within.clone()), "{format:?}");
    }
}

#[test]
fn long_images_are_scaled_to_the_longest_allowed_side() {
    let cases = [
        ((9_000, 100), (2_000, 22)),
        ((100, 2_002), (98, 2_000)),
        ((2_000, 500), (2_000, 500)),
    ];
    for ((width, height), expected) in cases {
        let media = encoded(plain(width, height), ImageFormat::Png);
        let within = media.within(ImageLimits::default()).expect("it is whole");
        assert_eq!(sides(&within), expected);
    }
}

#[test]
fn large_opaque_images_become_jpeg() {
    let limits = ImageLimits::default().with_max_bytes(20_000);
    let noisy = noise(100, 100);
    let media = encoded(noisy.clone(), ImageFormat::Png);
    assert!(media.data().len() > 25_000);
    let within = media.within(limits).expect("it is whole");
    assert_eq!(
        (within.mime_type(), sides(&within)),
        ("image/jpeg", (100, 100))
    );
    assert!(within.data().len() <= 20_000);

    // An alpha channel that hides nothing is none.
    let opaque = DynamicImage::from(noisy.clone()).into_rgba8();
    let within = encoded(opaque, ImageFormat::Png).within(limits);
    assert_eq!(within.expect("it is whole").mime_type(), "image/jpeg");

    // One that does is kept, and the image becomes smaller.
    let mut clear = DynamicImage::from(noisy).into_rgba8();
    for pixel in clear.pixels_mut().take(5_000) {
        pixel.0[3] = 0;
    }
    let media = encoded(clear, ImageFormat::Png);
    let limits = limits.with_max_bytes(media.data().len() * 2 / 3);
    let within = media.within(limits).expect("it is whole");
    assert_eq!(
        (within.mime_type(), sides(&within)),
        ("image/png", (70, 70))
    );
    assert_eq!(pixel(&within, 0, 0)[3], 0);
}

#[test]
fn images_that_cannot_shrink_enough_are_rejected() {
    let limits = ImageLimits::default().with_max_bytes(10);
    let error = encoded(plain(20, 20), ImageFormat::Jpeg)
        .within(limits)
        .unwrap_err();
    assert_eq!(error.kind(), MediaErrorKind::TooLarge);
    assert_eq!(
        error.to_string(),
        "the image can't be made as small as 10 bytes"
    );
}

#[test]
fn animations_become_their_first_frame() {
    let still = animation(1);
    assert_eq!(still.within(ImageLimits::default()), Ok(still));
    let within = animation(2)
        .within(ImageLimits::default())
        .expect("it is whole");
    assert_eq!((within.mime_type(), sides(&within)), ("image/png", (8, 6)));
    assert_eq!(pixel(&within, 3, 3), [0, 0, 0, 255]);
}

#[test]
fn unsupported_formats_become_png() {
    let media = encoded(GrayImage::new(5, 5), ImageFormat::Bmp);
    let within = media.within(ImageLimits::default()).expect("it is whole");
    assert_eq!((within.mime_type(), sides(&within)), ("image/png", (5, 5)));
    let tiff = Media::image(b"II*\0\x08\0\0\0\0\0\0".to_vec()).expect("by its first bytes");
    assert_eq!(
        error(&tiff),
        (
            MediaErrorKind::Undecodable,
            "image/tiff can't be decoded; make it a PNG or JPEG first".to_owned()
        )
    );
    assert!(tiff.image_size().is_err());
}

/// A JPEG with a note that its picture is to be turned a quarter to the right.
fn turned(media: &Media) -> Media {
    let exif = [
        b"\xff\xe1\x00\x22Exif\0\0".as_slice(),
        b"II*\0\x08\0\0\0\x01\0",
        b"\x12\x01\x03\0\x01\0\0\0\x06\0\0\0",
        b"\0\0\0\0",
    ];
    let (head, rest) = media.data().split_at(2);
    Media::image([head, &exif.concat(), rest].concat()).expect("an image")
}

#[test]
fn exif_orientation_is_applied() {
    let media = turned(&encoded(plain(200, 100), ImageFormat::Jpeg));
    assert_eq!(sides(&media), (100, 200));
    assert_eq!(media.within(ImageLimits::default()), Ok(media.clone()));
    let within = media.within(ImageLimits::default().with_max_pixels(5_000));
    assert_eq!(sides(&within.expect("it is whole")), (50, 100));
}

#[test]
fn damaged_images_are_rejected() {
    let formats = [
        ImageFormat::Png,
        ImageFormat::Jpeg,
        ImageFormat::WebP,
        ImageFormat::Gif,
        ImageFormat::Bmp,
    ];
    for format in formats {
        let whole = encoded(noise(20, 20), format);
        let within = whole.within(ImageLimits::default());
        within.expect("it is whole");
        for length in [30, whole.data().len() / 2, whole.data().len() * 9 / 10] {
            let cut = Media::image(whole.data().slice(..length)).expect("by its first bytes");
            let (kind, message) = error(&cut);
            assert_eq!(
                kind,
                MediaErrorKind::Corrupt,
                "{format:?} {length} {message}"
            );
            assert!(message.starts_with("the image is damaged: "), "{message}");
        }
    }
    let mut flipped = encoded(noise(20, 20), ImageFormat::Png).data().to_vec();
    flipped[200] ^= 0xff;
    let flipped = Media::image(flipped).expect("by its first bytes");
    assert_eq!(error(&flipped).0, MediaErrorKind::Corrupt);
}

#[test]
fn data_after_a_picture_is_ignored() {
    let whole = encoded(noise(20, 20), ImageFormat::Jpeg);
    // A motion photo ends with a video, in which every pair of bytes occurs.
    let video = b"\0\0\0\x18ftypmp42\xff\xda\0\x0c";
    let photo = Media::image([&whole.data()[..], video].concat()).expect("an image");
    assert_eq!(photo.within(ImageLimits::default()), Ok(photo));
    // The end of a preview is not that of its picture.
    let (head, rest) = whole.data().split_at(2);
    let (preview, rest) = (b"\xff\xe2\0\x06\xff\xda\xff\xd9", &rest[..rest.len() - 2]);
    let cut = Media::image([head, preview, rest].concat()).expect("an image");
    assert_eq!(error(&cut).0, MediaErrorKind::Corrupt);
}

/// Returns the checksum that follows each chunk of a PNG.
fn checksum(data: &[u8]) -> [u8; 4] {
    let mut sum = u32::MAX;
    for byte in data {
        sum ^= u32::from(*byte);
        for _ in 0..8 {
            sum = (sum >> 1) ^ (0xedb8_8320 & (sum & 1).wrapping_neg());
        }
    }
    (!sum).to_be_bytes()
}

#[test]
fn decompression_bombs_are_not_decoded() {
    for (width, height) in [
        (60_000_u32, 60_000_u32),
        (u32::MAX >> 1, 1),
        (64_000, 1_001),
    ] {
        let mut data = encoded(plain(1, 1), ImageFormat::Png).data().to_vec();
        data[16..20].copy_from_slice(&width.to_be_bytes());
        data[20..24].copy_from_slice(&height.to_be_bytes());
        let sum = checksum(&data[12..29]);
        data[29..33].copy_from_slice(&sum);
        let (kind, message) = error(&Media::image(data).expect("by its first bytes"));
        assert_eq!(kind, MediaErrorKind::TooLarge, "{message}");
    }
    // It could be decoded, but scaling it would take a gibibyte for 32 million pixels.
    let line = encoded(GrayImage::new(1_000_001, 1), ImageFormat::Png);
    let message = "the image is too large: its sides are more than is decoded";
    assert_eq!(error(&line), (MediaErrorKind::TooLarge, message.to_owned()));
}

#[cfg(target_os = "linux")]
#[test]
fn a_later_frame_of_an_animation_takes_bounded_memory() {
    /// Maximum address space in KiB: a frame of 65,535 × 65,535 pixels takes 16 GiB.
    const MAX_PEAK: u64 = 15 << 20;
    let mut data = animation(1).data().to_vec();
    assert_eq!(data.pop(), Some(0x3b), "the trailer");
    // Left, top, width, height, and a color table of two entries; then codes of two bits, and none.
    data.extend_from_slice(b"\x2c\0\0\0\0\xff\xff\xff\xff\x80\0\0\0\xff\xff\xff\x02\0\x3b");
    let within = Media::image(data).expect("an image");
    let within = within
        .within(ImageLimits::default())
        .expect("a first frame");
    assert_eq!((within.mime_type(), sides(&within)), ("image/png", (8, 6)));
    let status = std::fs::read_to_string("/proc/self/status").expect("it is readable");
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmPeak:")?.trim().strip_suffix(" kB"))
        .and_then(|peak| peak.parse::<u64>().ok());
    assert!(peak.is_some_and(|peak| peak < MAX_PEAK), "{peak:?}");
}

#[test]
fn unusable_images_are_replaced_by_text() {
    let sound = Media::new(MediaKind::Audio, b"fLaC".to_vec()).expect("a sound");
    assert_eq!(sound.image_size(), Ok(None));
    let broken = Media::image(b"\x89PNG\r\n\x1a\n".to_vec()).expect("by its first bytes");
    let whole = encoded(plain(4, 4), ImageFormat::Png);
    let content = Content::Parts(vec![
        Part::Text("text".to_owned()),
        Part::Media(sound.clone()),
        Part::Media(broken),
        Part::Media(whole.clone()),
    ]);
    let Content::Parts(parts) = content.with_images_within(ImageLimits::default()) else {
        panic!("parts stay parts");
    };
    assert_eq!(parts[0], Part::Text("text".to_owned()));
    assert_eq!(parts[1], Part::Media(sound));
    assert!(
        matches!(&parts[2], Part::Text(text) if text.starts_with("[An image was left out: the image is damaged: ")),
        "{:?}",
        parts[2]
    );
    assert_eq!(parts[3], Part::Media(whole));
    let text = Content::from("text");
    assert_eq!(
        text.clone().with_images_within(ImageLimits::default()),
        text
    );
}
