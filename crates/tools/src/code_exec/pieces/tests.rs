use super::*;

/// The text of a stream that is cut after every `length` bytes.
fn in_pieces_of(length: usize, stream: &[u8]) -> String {
    let mut pieces = TextPieces::default();
    stream
        .chunks(length)
        .map(|piece| pieces.push(piece).into_owned())
        .collect()
}

#[test]
fn text_comes_through_however_it_is_cut() {
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
fn bytes_that_are_no_text_are_replaced_and_hold_nothing_up() {
    let mut pieces = TextPieces::default();
    assert_eq!(pieces.push(b"a\xff"), "a\u{fffd}");
    assert_eq!(pieces.push(b"\x80\x80\x80\x80"), "\u{fffd}".repeat(4));
    // The beginning of a character that something else follows.
    assert_eq!(pieces.push(b"b\xe2\x82"), "b");
    assert_eq!(pieces.push(b"c"), "\u{fffd}c");
}

#[test]
fn whole_text_is_not_copied() {
    assert!(matches!(
        TextPieces::default().push(b"plain"),
        Cow::Borrowed("plain")
    ));
}
