use serde_json::json;

use super::*;

const PNG: &[u8] = b"\x89PNG\r\n\x1a\n";
const WAV: &[u8] = b"RIFF\x24\x00\x00\x00WAVEfmt ";
const MP4: &[u8] = b"\x00\x00\x00\x1cftypisom\x00\x00\x02\x00";

fn opus() -> Vec<u8> {
    [b"OggS".as_slice(), &[0; 24], b"OpusHead\x01\x02"].concat()
}

#[test]
fn media_types_are_detected_from_bytes() {
    let cases: [(MediaKind, Vec<u8>, &str); 13] = [
        (MediaKind::Image, PNG.to_vec(), "image/png"),
        (MediaKind::Image, b"\xff\xd8\xff\xe0".to_vec(), "image/jpeg"),
        (MediaKind::Image, b"GIF89a".to_vec(), "image/gif"),
        (
            MediaKind::Image,
            b"RIFF\0\0\0\0WEBPVP8 ".to_vec(),
            "image/webp",
        ),
        (MediaKind::Image, b"BM\0\0".to_vec(), "image/bmp"),
        (
            MediaKind::Image,
            b"II*\0\x08\0\0\0\0\0\0".to_vec(),
            "image/tiff",
        ),
        (MediaKind::Video, MP4.to_vec(), "video/mp4"),
        (MediaKind::Audio, MP4.to_vec(), "video/mp4"),
        (MediaKind::Audio, WAV.to_vec(), "audio/x-wav"),
        (MediaKind::Audio, b"ID3\x04".to_vec(), "audio/mpeg"),
        (MediaKind::Audio, b"fLaC".to_vec(), "audio/x-flac"),
        (MediaKind::Audio, b"OggS".to_vec(), "audio/ogg"),
        (MediaKind::Audio, opus(), "audio/ogg"),
    ];
    for (kind, data, mime_type) in cases {
        let media = Media::new(kind, data.clone()).expect(mime_type);
        assert_eq!(
            (media.kind(), media.mime_type(), media.data().as_ref()),
            (kind, mime_type, data.as_slice())
        );
    }
}

#[test]
fn media_of_another_kind_is_rejected() {
    let cases: [(MediaKind, &[u8], &str); 4] = [
        (
            MediaKind::Image,
            b"",
            "not a supported image: the bytes are of no known type",
        ),
        (
            MediaKind::Image,
            b"<svg/>",
            "not a supported image: the bytes are of no known type",
        ),
        (
            MediaKind::Image,
            WAV,
            "not a supported image: the bytes are audio/x-wav",
        ),
        (
            MediaKind::Video,
            PNG,
            "not a supported video: the bytes are image/png",
        ),
    ];
    for (kind, data, message) in cases {
        let error = Media::new(kind, data.to_vec()).expect_err(message);
        assert_eq!(error.to_string(), message);
    }
}

#[test]
fn media_shows_no_bytes_in_debug() {
    let media = Media::image(PNG).expect("a picture");
    assert_eq!(format!("{media:?}"), "Media(image/png, 8 bytes)");
}

#[test]
fn json_holds_text_as_strings_and_media_as_blocks() {
    let content = Content::Parts(vec![
        Part::Text("A picture:".to_owned()),
        Part::Media(Media::image(PNG).expect("a picture")),
    ]);
    let json = json!(["A picture:", {"kind": "image_content_block", "data": "iVBORw0KGgo="}]);
    assert_eq!(serde_json::to_value(&content).expect("serializes"), json);
    assert_eq!(
        serde_json::from_value::<Content>(json).expect("reads"),
        content
    );

    assert_eq!(
        serde_json::to_value(Content::from("plain")).expect("serializes"),
        json!("plain")
    );
    assert_eq!(
        serde_json::from_value::<Content>(json!([])).expect("reads"),
        Content::Parts(Vec::new())
    );
}

#[test]
fn invalid_media_json_is_rejected() {
    for data in ["not base64", "aGVsbG8="] {
        let json = json!([{"kind": "image_content_block", "data": data}]);
        assert!(serde_json::from_value::<Content>(json).is_err(), "{data}");
    }
}

#[test]
fn text_and_media_are_found_among_the_parts() {
    let picture = Media::image(PNG).expect("a picture");
    let content = Content::Parts(vec![
        Part::Text("one ".to_owned()),
        Part::Media(picture.clone()),
        Part::Text("two".to_owned()),
    ]);
    assert_eq!(content.text(), "one two");
    assert_eq!(content.media().collect::<Vec<_>>(), [&picture]);

    assert!(!content.is_empty());
    assert!(!Content::Parts(vec![Part::Media(picture)]).is_empty());
    for empty in [
        Content::from(""),
        Content::Parts(Vec::new()),
        Content::Parts(vec![Part::Text(String::new())]),
    ] {
        assert!(empty.is_empty(), "{empty:?}");
    }
}

#[test]
fn text_is_prepended_to_text_or_put_before_media() {
    let picture = Part::Media(Media::image(PNG).expect("a picture"));
    let text = |text: &str| Part::Text(text.to_owned());
    let mut plain = Content::from("two");
    plain.prepend("one ");
    assert_eq!(plain, Content::from("one two"));
    let mut parts = Content::Parts(vec![picture.clone()]);
    parts.prepend("two");
    parts.prepend("one ");
    assert_eq!(parts, Content::Parts(vec![text("one two"), picture]));
}
