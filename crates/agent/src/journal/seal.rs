//! What stands at the end of each line of a journal, so that one is told from what a crash made of it.
//!
//! Lines are written in batches, and a batch is on the disk before the next one is begun. After a loss
//! of power any part of the last batch may be missing or hold something else; nothing before it may.
//! So a line has a sum of its bytes, the number of its batch, and how many lines of that come after it.

use std::io::Write as _;

/// Before the numbers of a seal.
const BEGINS: &[u8] = b",\"seal\":[";

/// Behind them.
const ENDS: &[u8] = b"\"]}";

/// More than a seal is never long.
const MAX_BYTES: usize = 96;

/// Which line of which batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seal {
    pub(super) batch: u64,
    /// Lines of the batch that come after this one.
    pub(super) left: usize,
}

/// A line, as its end tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sealed {
    /// It is as it was written.
    Whole(Seal),
    /// It is not.
    Broken,
    /// It has no seal: it is older than they are, or no record.
    Never,
}

/// Puts a seal into a record, which is a JSON object.
pub(super) fn seal(json: &mut Vec<u8>, seal: Seal) {
    if json.pop() != Some(b'}') {
        // Every record is an object; what is none has no place for a seal.
        return;
    }
    json.extend_from_slice(BEGINS);
    // There is always room in memory.
    let _ = write!(json, "{},{},\"", seal.batch, seal.left);
    let sum = sum(json);
    let _ = write!(json, "{sum:016x}");
    json.extend_from_slice(ENDS);
}

/// Looks at the end of a line.
pub(super) fn look(line: &[u8]) -> Sealed {
    let Some(body) = line.strip_suffix(ENDS) else {
        return Sealed::Never;
    };
    let from = body.len().saturating_sub(MAX_BYTES);
    let tail = body.get(from..).unwrap_or_default();
    let begins = tail
        .windows(BEGINS.len())
        .rposition(|window| window == BEGINS);
    let Some(begins) = begins else {
        return Sealed::Never;
    };
    let numbers = tail.get(begins + BEGINS.len()..).unwrap_or_default();
    let seal = std::str::from_utf8(numbers).ok().and_then(|text| {
        let mut parts = text.split(',');
        let (batch, left) = (parts.next()?, parts.next()?);
        let sum = parts.next()?.strip_prefix('"')?;
        let sum = u64::from_str_radix(sum, 16).ok()?;
        let seal = Seal {
            batch: batch.parse().ok()?,
            left: left.parse().ok()?,
        };
        Some((seal, sum))
    });
    let summed = body
        .get(..body.len().saturating_sub(16))
        .unwrap_or_default();
    match seal {
        Some((seal, written)) if sum(summed) == written => Sealed::Whole(seal),
        _ => Sealed::Broken,
    }
}

/// FNV-1a. What it is to find is zeros and old blocks of a disk, not somebody who means it.
fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_whole_as_it_was_written_and_no_other_way() {
        let at = Seal { batch: 12, left: 3 };
        let mut line = br#"{"record":"fact","fact":{"text":"it, \"seal\":["}}"#.to_vec();
        let bare = line.clone();
        assert_eq!(look(&bare), Sealed::Never);
        seal(&mut line, at);
        assert_eq!(look(&line), Sealed::Whole(at));
        serde_json::from_slice::<serde_json::Value>(&line).unwrap();
        for at in 0..line.len() {
            let mut other = line.clone();
            other[at] ^= 1;
            assert!(!matches!(look(&other), Sealed::Whole(_)), "byte {at}");
            assert!(!matches!(look(&line[..at]), Sealed::Whole(_)), "up to {at}");
        }
    }
}
