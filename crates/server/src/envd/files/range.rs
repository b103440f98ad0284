//! The `Range` header (RFC 9110, section 14) with one range of bytes.

use http::{HeaderName, StatusCode, header};

/// The requested part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RangeRequest {
    /// The whole file: no range, or an unsupported one.
    Whole,
    /// An inclusive range.
    Part { first: u64, last: u64 },
    /// No byte of the range exists.
    Unsatisfiable,
}

impl RangeRequest {
    /// Returns the status of a response with the requested part of a file, and the headers that describe the part.
    pub(crate) fn head(self, size_bytes: u64) -> (StatusCode, Vec<(HeaderName, String)>) {
        let (status, length, range) = match self {
            Self::Whole => (StatusCode::OK, Some(size_bytes), None),
            Self::Part { first, last } => {
                let range = format!("bytes {first}-{last}/{size_bytes}");
                let length = Some(last - first + 1);
                (StatusCode::PARTIAL_CONTENT, length, Some(range))
            }
            Self::Unsatisfiable => {
                let range = format!("bytes */{size_bytes}");
                (StatusCode::RANGE_NOT_SATISFIABLE, None, Some(range))
            }
        };
        let mut headers = vec![(header::ACCEPT_RANGES, "bytes".to_owned())];
        headers.extend(length.map(|length| (header::CONTENT_LENGTH, length.to_string())));
        headers.extend(range.map(|range| (header::CONTENT_RANGE, range)));
        (status, headers)
    }
}

/// Parses the header for a file of `size_bytes`.
pub(crate) fn parse(header: Option<&str>, size_bytes: u64) -> RangeRequest {
    let Some(range) = header.and_then(|header| header.trim().strip_prefix("bytes=")) else {
        return RangeRequest::Whole;
    };
    let Some((first, last)) = range.trim().split_once('-') else {
        return RangeRequest::Whole;
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
                return RangeRequest::Whole;
            }
            RangeRequest::Part {
                first,
                last: last.min(end),
            }
        }
        (Ok(None), Ok(Some(length @ 1..)), Some(end)) => RangeRequest::Part {
            first: size_bytes.saturating_sub(length),
            last: end,
        },
        (Ok(Some(_)), Ok(_), _) | (Ok(None), Ok(Some(_)), _) => RangeRequest::Unsatisfiable,
        // Several ranges, or invalid syntax.
        _ => RangeRequest::Whole,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_parsed_or_ignored() {
        let part = |first, last| RangeRequest::Part { first, last };
        for (header, expected) in [
            ("bytes=0-3", part(0, 3)),
            ("bytes=4-", part(4, 9)),
            ("bytes=4-99", part(4, 9)),
            ("bytes=-3", part(7, 9)),
            ("bytes=-30", part(0, 9)),
            ("bytes=10-", RangeRequest::Unsatisfiable),
            ("bytes=-0", RangeRequest::Unsatisfiable),
            ("bytes=3-2", RangeRequest::Whole),
            ("bytes=0-1,3-4", RangeRequest::Whole),
            ("bytes=-", RangeRequest::Whole),
            ("lines=1-2", RangeRequest::Whole),
        ] {
            assert_eq!(parse(Some(header), 10), expected, "{header}");
        }
        assert_eq!(parse(None, 10), RangeRequest::Whole);
        assert_eq!(parse(Some("bytes=0-0"), 0), RangeRequest::Unsatisfiable);
    }
}
