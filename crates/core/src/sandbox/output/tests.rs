use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// Returns the expected head and tail of a whole stream.
fn expected(stream: &[u8], head_limit: usize, tail_limit: usize) -> Captured {
    let head = &stream[..stream.len().min(head_limit)];
    let rest = &stream[head.len()..];
    let tail = &rest[rest.len().saturating_sub(tail_limit)..];
    Captured {
        head: Bytes::copy_from_slice(head),
        tail: Bytes::copy_from_slice(tail),
        omitted_bytes: (stream.len() - head.len() - tail.len()) as u64,
    }
}

proptest! {
    #[test]
    fn head_and_tail_do_not_depend_on_chunk_sizes(
        pieces in vec(vec(any::<u8>(), 0..12), 0..12),
        head_limit in 0..20_usize,
        tail_limit in 0..20_usize,
    ) {
        let mut kept = HeadTail::new(head_limit, tail_limit);
        for piece in &pieces {
            kept.push(piece);
            prop_assert!(kept.head.len() <= head_limit && kept.tail.len() <= tail_limit);
        }
        let stream = pieces.concat();
        let captured = kept.finish();
        prop_assert_eq!(captured.total_bytes(), stream.len() as u64);
        prop_assert_eq!(captured, expected(&stream, head_limit, tail_limit));
    }
}

#[test]
fn memory_is_bounded_by_the_limits() {
    let mut kept = HeadTail::new(10, 10);
    let piece = vec![b'x'; 1 << 20];
    for _ in 0..64 {
        kept.push(&piece);
    }
    assert!(kept.head.capacity() + kept.tail.capacity() <= 100);
    assert_eq!(kept.finish().omitted_bytes, (64 << 20) - 20);
}

#[test]
fn text_reports_omitted_bytes() {
    assert_eq!(Captured::complete("all of it").text(), "all of it");
    assert_eq!(
        expected(b"0123456789", 2, 3).text(),
        "01\n… [5 bytes omitted] …\n789"
    );
    // A character that is cut between head and tail, with nothing left out, stays whole.
    assert_eq!(expected("ü".as_bytes(), 1, 1).text(), "ü");
    assert_eq!(Captured::complete(b"\xff".as_slice()).text(), "\u{fffd}");
}
