//! The seal at the end of each journal line, which distinguishes it from the remains of a crash.
//!
//! Lines are written in batches, and a batch is on disk before the next one begins. After a power
//! failure any part of the last batch may be missing or overwritten, but nothing before it. A seal
//! therefore has a checksum of the line, the number of its batch, and the number of lines that follow
//! in the batch.

use std::io::Write as _;

/// The text before the numbers of a seal.
const PREFIX: &[u8] = b",\"seal\":[";

/// The text behind the numbers.
const SUFFIX: &[u8] = b"\"]}";

/// Upper bound of the length of a seal.
const MAX_BYTES: usize = 96;

/// The position of a line in its batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seal {
    pub(super) batch: u64,
    /// Number of lines that follow in the batch.
    pub(super) following: usize,
}

/// The result of checking the seal of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SealCheck {
    /// The line is as it was written.
    Intact(Seal),
    /// The checksum does not match.
    Damaged,
    /// There is no seal: the line precedes their introduction, or is not an entry.
    Missing,
}

/// Appends a seal to an entry, which is a JSON object.
pub(super) fn append(json: &mut Vec<u8>, seal: Seal) {
    if json.pop() != Some(b'}') {
        // Every entry is an object.
        return;
    }
    json.extend_from_slice(PREFIX);
    // Writing to a vector does not fail.
    let _ = write!(json, "{},{},\"", seal.batch, seal.following);
    let sum = checksum(json);
    let _ = write!(json, "{sum:016x}");
    json.extend_from_slice(SUFFIX);
}

/// Checks the seal of a line.
pub(super) fn check(line: &[u8]) -> SealCheck {
    let Some(body) = line.strip_suffix(SUFFIX) else {
        return SealCheck::Missing;
    };
    let from = body.len().saturating_sub(MAX_BYTES);
    let tail = body.get(from..).unwrap_or_default();
    let begins = tail
        .windows(PREFIX.len())
        .rposition(|window| window == PREFIX);
    let Some(begins) = begins else {
        return SealCheck::Missing;
    };
    let numbers = tail.get(begins + PREFIX.len()..).unwrap_or_default();
    let seal = std::str::from_utf8(numbers).ok().and_then(|text| {
        let mut parts = text.split(',');
        let (batch, following) = (parts.next()?, parts.next()?);
        let sum = parts.next()?.strip_prefix('"')?;
        let sum = u64::from_str_radix(sum, 16).ok()?;
        let seal = Seal {
            batch: batch.parse().ok()?,
            following: following.parse().ok()?,
        };
        Some((seal, sum))
    });
    let summed = body
        .get(..body.len().saturating_sub(16))
        .unwrap_or_default();
    match seal {
        Some((seal, written)) if checksum(summed) == written => SealCheck::Intact(seal),
        _ => SealCheck::Damaged,
    }
}

/// FNV-1a: detects zeros and old disk blocks, not tampering.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_changed_byte_and_any_truncation_of_a_line_is_detected() {
        let at = Seal {
            batch: 12,
            following: 3,
        };
        let mut line = br#"{"record":"fact","fact":{"text":"it, \"seal\":["}}"#.to_vec();
        let bare = line.clone();
        assert_eq!(check(&bare), SealCheck::Missing);
        append(&mut line, at);
        assert_eq!(check(&line), SealCheck::Intact(at));
        serde_json::from_slice::<serde_json::Value>(&line).unwrap();
        for at in 0..line.len() {
            let mut other = line.clone();
            other[at] ^= 1;
            assert!(!matches!(check(&other), SealCheck::Intact(_)), "byte {at}");
            assert!(
                !matches!(check(&line[..at]), SealCheck::Intact(_)),
                "up to {at}"
            );
        }
    }
}
