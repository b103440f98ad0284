//! Decoding of streamed output.

use std::borrow::Cow;

/// Incremental lossy UTF-8 decoder. A character that is split between two chunks is completed by the next
/// one; invalid bytes are replaced.
#[derive(Debug, Default)]
pub struct Utf8Decoder {
    unfinished: Vec<u8>,
}

impl Utf8Decoder {
    /// Decodes the next bytes, up to the last complete character.
    pub fn push<'b>(&mut self, bytes: &'b [u8]) -> Cow<'b, str> {
        if self.unfinished.is_empty() {
            let (text, rest) = split_unfinished(bytes);
            self.unfinished.extend_from_slice(rest);
            return String::from_utf8_lossy(text);
        }
        self.unfinished.extend_from_slice(bytes);
        let all = std::mem::take(&mut self.unfinished);
        let (text, rest) = split_unfinished(&all);
        self.unfinished.extend_from_slice(rest);
        Cow::Owned(String::from_utf8_lossy(text).into_owned())
    }

    /// Decodes the rest at the end of the output: an incomplete character is replaced.
    pub fn finish(&mut self) -> String {
        let rest = std::mem::take(&mut self.unfinished);
        String::from_utf8_lossy(&rest).into_owned()
    }
}

/// Splits off an incomplete character at the end.
fn split_unfinished(bytes: &[u8]) -> (&[u8], &[u8]) {
    const CONTINUES: u8 = 0b1000_0000;
    // A character has up to four bytes, so an incomplete one has up to three.
    let last = bytes.iter().rev().take(3);
    let first_byte = last
        .map(|byte| byte & 0b1100_0000)
        .position(|bits| bits != CONTINUES);
    let whole = first_byte.map_or(bytes.len(), |back| bytes.len().saturating_sub(back + 1));
    let (text, rest) = bytes.split_at(whole);
    match std::str::from_utf8(rest) {
        Err(error) if error.error_len().is_none() => (text, rest),
        _ => (bytes, &[]),
    }
}

#[cfg(test)]
mod tests;
