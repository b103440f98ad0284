use proptest::prelude::{Just, Strategy, any, prop_oneof, proptest};

use super::EventParser;

type Parsed = Vec<Result<(Option<String>, String), ()>>;

fn parse(chunks: &[&[u8]]) -> Parsed {
    let (mut parser, mut parsed) = (EventParser::default(), Parsed::new());
    for chunk in chunks {
        parser.push(chunk);
        while let Some(event) = parser.next_event() {
            let event = event.map(|event| (event.name.map(str::to_owned), event.data.into_owned()));
            parsed.push(event.map_err(drop));
        }
    }
    parsed
}

fn event(name: Option<&str>, data: &str) -> Result<(Option<String>, String), ()> {
    Ok((name.map(str::to_owned), data.to_owned()))
}

#[test]
fn fields_are_parsed_according_to_the_standard() {
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
    assert_eq!(parse(&[stream.as_bytes()]), expected);
    for middle in 0..=stream.len() {
        let (left, right) = stream.as_bytes().split_at(middle);
        assert_eq!(parse(&[left, right]), expected, "split at {middle}");
    }
}

#[test]
fn an_invalid_event_is_reported_and_the_next_is_parse() {
    let parsed = parse(&[b"data: \xff\n\nevent: \xfe\ndata: x\n\ndata: fine\n\n"]);
    assert_eq!(parsed, [Err(()), Err(()), event(None, "fine")]);
}

#[test]
fn returned_events_are_not_buffered() {
    let mut parser = EventParser::default();
    for _ in 0..1000 {
        parser.push(b"data: 0123456789012345678901234567890123456789\n\n");
        assert!(parser.next_event().is_some());
    }
    assert!(
        parser.buffer.capacity() < 1024,
        "{}",
        parser.buffer.capacity()
    );
}

proptest! {
    #[test]
    fn chunk_boundaries_do_not_change_the_events(
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
        let chunks: Vec<&[u8]> = stream.chunks(size).collect();
        assert_eq!(parse(&chunks), parse(&[&stream]));
    }
}

#[test]
fn an_event_of_many_lines_is_parsed_in_linear_time() {
    let chunk = b"data\n".repeat(1000);
    let chunks: Vec<&[u8]> = (0..200).map(|_| &*chunk).chain([&b"\n"[..]]).collect();
    let parsed = parse(&chunks);
    assert_eq!(parsed, [event(None, &"\n".repeat(199_999))]);
}
