//! The wrapper script's messages, embedded in the command's output.
//!
//! A mark consists of a separator byte, a random token, a message, and the separator again.

use bytes::{Bytes, BytesMut};

/// ASCII's record separator.
const SEPARATOR: u8 = 0x1e;

/// Maximum length of a message in bytes.
const MAX_MESSAGE_BYTES: usize = 64 * 1024;

/// Output, or a mark found in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MarkedPiece {
    Output(Bytes),
    Mark(Mark),
}

/// A message about the command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// It runs, with this process id.
    Started(String),
    /// It was not started, for this reason.
    Refused(String),
    /// It has ended, and so has its output on this channel.
    Ended(String),
}

/// Parser that separates marks from the output of one channel.
#[derive(Debug)]
pub(super) struct MarkParser {
    /// Start of every mark: separator and token.
    prefix: Vec<u8>,
    /// Bytes that may be part of a mark.
    held: BytesMut,
}

impl MarkParser {
    pub(super) fn new(token: &str) -> Self {
        Self {
            prefix: [&[SEPARATOR], token.as_bytes()].concat(),
            held: BytesMut::new(),
        }
    }

    /// Parses the next bytes; an incomplete mark is held back.
    pub(super) fn push(&mut self, bytes: Bytes) -> Vec<MarkedPiece> {
        // Most output contains no mark and need not be copied.
        if self.held.is_empty() && !bytes.contains(&SEPARATOR) {
            return vec![MarkedPiece::Output(bytes)];
        }
        self.held.extend_from_slice(&bytes);
        let mut pieces = Vec::new();
        while let Some(at) = self.next_mark() {
            if at > 0 {
                pieces.push(MarkedPiece::Output(self.held.split_to(at).freeze()));
            }
            if self.held.len() < self.prefix.len() {
                break;
            }
            let message = self.held.iter().skip(self.prefix.len());
            match message
                .take(MAX_MESSAGE_BYTES)
                .position(|byte| *byte == SEPARATOR)
            {
                Some(length) => {
                    let mark = self.held.split_to(self.prefix.len() + length + 1);
                    let message = mark.get(self.prefix.len()..mark.len() - 1);
                    pieces.extend(message.and_then(parse).map(MarkedPiece::Mark));
                }
                None if self.held.len() < self.prefix.len() + MAX_MESSAGE_BYTES => break,
                // Not a mark.
                None => pieces.push(MarkedPiece::Output(self.held.split_to(1).freeze())),
            }
        }
        if self.next_mark().is_none() && !self.held.is_empty() {
            pieces.push(MarkedPiece::Output(self.held.split().freeze()));
        }
        pieces
    }

    /// Returns the bytes held back, at the end of the channel.
    pub(super) fn finish(&mut self) -> Option<Bytes> {
        let rest = self.held.split().freeze();
        (!rest.is_empty()).then_some(rest)
    }

    /// Returns the position of the next mark, or of a prefix of one at the end.
    fn next_mark(&self) -> Option<usize> {
        let mut from = 0;
        loop {
            let rest = self.held.get(from..)?;
            let at = from + rest.iter().position(|byte| *byte == SEPARATOR)?;
            let here = self.held.get(at..)?;
            let length = here.len().min(self.prefix.len());
            if here.get(..length) == self.prefix.get(..length) {
                return Some(at);
            }
            from = at + 1;
        }
    }
}

fn parse(message: &[u8]) -> Option<Mark> {
    let message = String::from_utf8_lossy(message);
    let rest = || message.get(1..).unwrap_or_default().to_owned();
    match message.chars().next()? {
        'S' => Some(Mark::Started(rest())),
        'F' => Some(Mark::Refused(rest())),
        'E' => Some(Mark::Ended(rest())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::{prop, proptest};

    use super::{Mark, MarkParser, MarkedPiece};

    fn parse_in_chunks(all: &[u8], cut: usize) -> (Vec<u8>, Vec<Mark>) {
        let mut marks = MarkParser::new("token");
        let (mut output, mut found) = (Vec::new(), Vec::new());
        for piece in all.chunks(cut) {
            for piece in marks.push(Bytes::copy_from_slice(piece)) {
                match piece {
                    MarkedPiece::Output(bytes) => output.extend_from_slice(&bytes),
                    MarkedPiece::Mark(mark) => found.push(mark),
                }
            }
        }
        output.extend_from_slice(&marks.finish().unwrap_or_default());
        (output, found)
    }

    #[test]
    fn marks_are_found_in_chunks_of_any_size() {
        let all = b"\x1etokenS12\x1eone\x1e two\x1e\x1etoke\x1etokenEcode 0 5\n\x1e";
        let marks = vec![Mark::Started("12".into()), Mark::Ended("code 0 5\n".into())];
        for cut in 1..=all.len() {
            let expected = (b"one\x1e two\x1e\x1etoke".to_vec(), marks.clone());
            assert_eq!(parse_in_chunks(all, cut), expected, "{cut}");
        }
    }

    proptest! {
        #[test]
        fn output_without_marks_is_unchanged(
            all in prop::collection::vec(prop::sample::select(b"\x1etoken S".to_vec()), 0..200),
            cut in 1_usize..20,
        ) {
            let is_mark = all.windows(6).any(|it| it == b"\x1etoken");
            let (output, _) = parse_in_chunks(&all, cut);
            if !is_mark {
                assert_eq!(output, all);
            }
        }
    }
}
