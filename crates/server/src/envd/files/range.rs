//! `Range` (RFC 9110, 14): one range of bytes.

/// What is wanted of a file of some size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// All of it: nothing else was asked for, or nothing that we know.
    Whole,
    /// From the first byte to the last one.
    Part { first: u64, last: u64 },
    /// Nothing of it is there.
    Unsatisfiable,
}

/// Reads the header for a file of `size_bytes`.
pub(crate) fn wanted(header: Option<&str>, size_bytes: u64) -> Wanted {
    let Some(range) = header.and_then(|header| header.trim().strip_prefix("bytes=")) else {
        return Wanted::Whole;
    };
    let Some((first, last)) = range.trim().split_once('-') else {
        return Wanted::Whole;
    };
    let number = |text: &str| match text.trim() {
        "" => Ok(None),
        text if text.bytes().all(|byte| byte.is_ascii_digit()) => {
            text.parse().map(Some).map_err(drop)
        }
        _ => Err(()),
    };
    let end = size_bytes.checked_sub(1);
    match (number(first), number(last), end) {
        (Ok(Some(first)), Ok(last), Some(end)) if first <= end => {
            let last = last.unwrap_or(end);
            if last < first {
                return Wanted::Whole;
            }
            Wanted::Part {
                first,
                last: last.min(end),
            }
        }
        (Ok(None), Ok(Some(length @ 1..)), Some(end)) => Wanted::Part {
            first: size_bytes.saturating_sub(length),
            last: end,
        },
        (Ok(Some(_)), Ok(_), _) | (Ok(None), Ok(Some(_)), _) => Wanted::Unsatisfiable,
        // Several of them, or nonsense.
        _ => Wanted::Whole,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_or_ignored() {
        let part = |first, last| Wanted::Part { first, last };
        for (header, expected) in [
            ("bytes=0-3", part(0, 3)),
            ("bytes=4-", part(4, 9)),
            ("bytes=4-99", part(4, 9)),
            ("bytes=-3", part(7, 9)),
            ("bytes=-30", part(0, 9)),
            ("bytes=10-", Wanted::Unsatisfiable),
            ("bytes=-0", Wanted::Unsatisfiable),
            ("bytes=3-2", Wanted::Whole),
            ("bytes=0-1,3-4", Wanted::Whole),
            ("bytes=-", Wanted::Whole),
            ("lines=1-2", Wanted::Whole),
        ] {
            assert_eq!(wanted(Some(header), 10), expected, "{header}");
        }
        assert_eq!(wanted(None, 10), Wanted::Whole);
        assert_eq!(wanted(Some("bytes=0-0"), 0), Wanted::Unsatisfiable);
    }
}
