use proptest::prelude::{Just, Strategy, any, prop_oneof, proptest};

use super::Events;

type Read = Vec<Result<(Option<String>, String), ()>>;

fn read(pieces: &[&[u8]]) -> Read {
    let (mut events, mut read) = (Events::default(), Read::new());
    for piece in pieces {
        events.push(piece);
        while let Some(event) = events.next_event() {
            let event = event.map(|event| (event.name.map(str::to_owned), event.data.into_owned()));
            read.push(event.map_err(drop));
        }
    }
    read
}

fn event(name: Option<&str>, data: &str) -> Result<(Option<String>, String), ()> {
    Ok((name.map(str::to_owned), data.to_owned()))
}

#[test]
fn fields_are_read_as_the_standard_says() {
    let stream = concat!(
        "\u{feff}data: first\n\n",
        ": a comment\n\n",
        "event: named\nid: 7\nretry: 10\ndata:one\ndata:  two\ndata\n\n",
        "event: without data\n\n",
        "data: after\r\rdata: it\r\n\r\n",
        "data\n\n",
        "no field\ndatas: x\ndata: last\n\n",
        "data: not ended\n",
    );
    let expected = [
        event(None, "first"),
        event(Some("named"), "one\n two\n"),
        event(None, "after"),
        event(None, "it"),
        event(None, ""),
        event(None, "last"),
    ];
    assert_eq!(read(&[stream.as_bytes()]), expected);
    for middle in 0..=stream.len() {
        let (left, right) = stream.as_bytes().split_at(middle);
        assert_eq!(read(&[left, right]), expected, "split at {middle}");
    }
}

#[test]
fn an_event_that_is_no_text_is_told_and_the_next_is_read() {
    let read = read(&[b"data: \xff\n\nevent: \xfe\ndata: x\n\ndata: fine\n\n"]);
    assert_eq!(read, [Err(()), Err(()), event(None, "fine")]);
}

#[test]
fn what_was_handed_out_is_not_kept() {
    let mut events = Events::default();
    for _ in 0..1000 {
        events.push(b"data: 0123456789012345678901234567890123456789\n\n");
        assert!(events.next_event().is_some());
    }
    assert!(
        events.buffer.capacity() < 1024,
        "{}",
        events.buffer.capacity()
    );
}

proptest! {
    #[test]
    fn any_bytes_in_any_pieces_give_the_same_events(
        lines in proptest::collection::vec(
            prop_oneof![
                Just(b"data: {\"a\":1}".to_vec()),
                Just(b"event: x".to_vec()),
                Just(Vec::new()),
                proptest::collection::vec(any::<u8>(), 0..12),
                "[a-z: ]{0,8}".prop_map(String::into_bytes),
            ],
            0..24,
        ),
        ends in proptest::collection::vec(prop_oneof![Just(&b"\n"[..]), Just(&b"\r"[..]), Just(&b"\r\n"[..])], 24),
        size in 1usize..9,
    ) {
        let stream: Vec<u8> = lines.iter().zip(&ends).flat_map(|(line, end)| [line, *end].concat()).collect();
        let pieces: Vec<&[u8]> = stream.chunks(size).collect();
        assert_eq!(read(&pieces), read(&[&stream]));
    }
}
