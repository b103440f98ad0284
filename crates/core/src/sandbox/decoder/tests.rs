use super::*;

/// The text of a stream that is cut after every `length` bytes.
fn in_pieces_of(length: usize, stream: &[u8]) -> String {
    let mut pieces = Utf8Decoder::default();
    stream
        .chunks(length)
        .map(|piece| pieces.push(piece).into_owned())
        .collect()
}

#[test]
fn chunk_boundaries_do_not_matter() {
    for text in ["", "plain", "ü", "aüb€c𝄞d", "𝄞𝄞𝄞", "€\n€"] {
        for length in 1..=text.len().max(1) {
            assert_eq!(
                in_pieces_of(length, text.as_bytes()),
                text,
                "cut by {length}"
            );
        }
    }
}

#[test]
fn invalid_bytes_are_replaced_without_delay() {
    let mut pieces = Utf8Decoder::default();
    assert_eq!(pieces.push(b"a\xff"), "a\u{fffd}");
    assert_eq!(pieces.push(b"\x80\x80\x80\x80"), "\u{fffd}".repeat(4));
    // The beginning of a character that something else follows.
    assert_eq!(pieces.push(b"b\xe2\x82"), "b");
    assert_eq!(pieces.push(b"c"), "\u{fffd}c");
    assert_eq!(pieces.finish(), "");
    assert_eq!(pieces.push(b"d\xe2\x82"), "d");
    assert_eq!(pieces.finish(), "\u{fffd}");
    assert_eq!(pieces.push(b"e"), "e");
}

#[test]
fn complete_text_is_borrowed() {
    assert!(matches!(
        Utf8Decoder::default().push(b"plain"),
        Cow::Borrowed("plain")
    ));
}
