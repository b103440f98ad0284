//! What the script around a command says about it, in the midst of the command's output.
//!
//! A mark is a byte that text seldom has, a number that nobody else knows, words, and that byte again.

use bytes::{Bytes, BytesMut};

/// ASCII's record separator.
const SIGN: u8 = 0x1e;

/// What a mark may say in bytes.
const LONGEST: usize = 64 * 1024;

/// A piece of a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Output(Bytes),
    Mark(Mark),
}

/// What is said of the command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// It runs, as this process.
    Started(String),
    /// It could not be started.
    Refused(String),
    /// It has ended, and so has its output on this channel.
    Ended(String),
}

/// Takes the marks out of a channel.
#[derive(Debug)]
pub(super) struct Marks {
    /// How each begins.
    sign: Vec<u8>,
    /// What may become one.
    held: BytesMut,
}

impl Marks {
    pub(super) fn new(token: &str) -> Self {
        Self {
            sign: [&[SIGN], token.as_bytes()].concat(),
            held: BytesMut::new(),
        }
    }

    /// Takes the next bytes, and gives what is certain.
    pub(super) fn push(&mut self, bytes: Bytes) -> Vec<Piece> {
        // Nearly all output is no mark and need not be copied.
        if self.held.is_empty() && !bytes.contains(&SIGN) {
            return vec![Piece::Output(bytes)];
        }
        self.held.extend_from_slice(&bytes);
        let mut pieces = Vec::new();
        while let Some(at) = self.next_sign() {
            if at > 0 {
                pieces.push(Piece::Output(self.held.split_to(at).freeze()));
            }
            if self.held.len() < self.sign.len() {
                break;
            }
            let words = self.held.iter().skip(self.sign.len());
            match words.take(LONGEST).position(|byte| *byte == SIGN) {
                Some(length) => {
                    let mark = self.held.split_to(self.sign.len() + length + 1);
                    let words = mark.get(self.sign.len()..mark.len() - 1);
                    pieces.extend(words.and_then(read).map(Piece::Mark));
                }
                None if self.held.len() < self.sign.len() + LONGEST => break,
                // It only looked like one.
                None => pieces.push(Piece::Output(self.held.split_to(1).freeze())),
            }
        }
        if self.next_sign().is_none() && !self.held.is_empty() {
            pieces.push(Piece::Output(self.held.split().freeze()));
        }
        pieces
    }

    /// What was held back in vain, at the end.
    pub(super) fn finish(&mut self) -> Option<Bytes> {
        let rest = self.held.split().freeze();
        (!rest.is_empty()).then_some(rest)
    }

    /// Where a mark begins, or could.
    fn next_sign(&self) -> Option<usize> {
        let mut from = 0;
        loop {
            let rest = self.held.get(from..)?;
            let at = from + rest.iter().position(|byte| *byte == SIGN)?;
            let here = self.held.get(at..)?;
            let length = here.len().min(self.sign.len());
            if here.get(..length) == self.sign.get(..length) {
                return Some(at);
            }
            from = at + 1;
        }
    }
}

fn read(words: &[u8]) -> Option<Mark> {
    let words = String::from_utf8_lossy(words);
    let rest = || words.get(1..).unwrap_or_default().to_owned();
    match words.chars().next()? {
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

    use super::{Mark, Marks, Piece};

    fn taken_apart(all: &[u8], cut: usize) -> (Vec<u8>, Vec<Mark>) {
        let mut marks = Marks::new("token");
        let (mut output, mut found) = (Vec::new(), Vec::new());
        for piece in all.chunks(cut) {
            for piece in marks.push(Bytes::copy_from_slice(piece)) {
                match piece {
                    Piece::Output(bytes) => output.extend_from_slice(&bytes),
                    Piece::Mark(mark) => found.push(mark),
                }
            }
        }
        output.extend_from_slice(&marks.finish().unwrap_or_default());
        (output, found)
    }

    #[test]
    fn marks_are_found_however_the_bytes_are_cut() {
        let all = b"\x1etokenS12\x1eone\x1e two\x1e\x1etoke\x1etokenEcode 0 5\n\x1e";
        let marks = vec![Mark::Started("12".into()), Mark::Ended("code 0 5\n".into())];
        for cut in 1..=all.len() {
            let expected = (b"one\x1e two\x1e\x1etoke".to_vec(), marks.clone());
            assert_eq!(taken_apart(all, cut), expected, "{cut}");
        }
    }

    proptest! {
        #[test]
        fn output_without_marks_stays_as_it_is(
            all in prop::collection::vec(prop::sample::select(b"\x1etoken S".to_vec()), 0..200),
            cut in 1_usize..20,
        ) {
            let is_mark = all.windows(6).any(|it| it == b"\x1etoken");
            let (output, _) = taken_apart(&all, cut);
            if !is_mark {
                assert_eq!(output, all);
            }
        }
    }
}
