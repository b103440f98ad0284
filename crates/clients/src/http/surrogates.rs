//! Surrogate pairs that a server split over two strings.
//!
//! A server that cuts text between UTF-16 code units, as programs in JavaScript do, sends the halves of a pair as
//! escapes in two deltas. JSON with half a pair is refused by parsers that return UTF-8.

use std::borrow::Cow;

/// Joins the split pairs of one stream.
#[derive(Debug, Default)]
pub(super) struct SplitPairs {
    /// The escape of a first half that ended a string, until another string begins with a second half.
    first_half: Option<String>,
}

impl SplitPairs {
    /// Moves a first half at the end of a string to the string of a later event that begins with the second half, as if
    /// the text had not been split. Other halves of pairs become U+FFFD, and all other text stays as it is.
    pub(super) fn join<'t>(&mut self, json: Cow<'t, str>) -> Cow<'t, str> {
        // A half can only be an escape: there is none in UTF-8.
        if !json.contains("\\u") {
            return json;
        }
        let earlier = self.first_half.take();
        let (mut is_joined, mut last) = (false, None);
        let mut joined = String::with_capacity(json.len());
        let (mut rest, mut in_string, mut at_start) = (&*json, false, false);
        while let Some(at) = rest.find(['"', '\\']) {
            let (plain, special) = rest.split_at(at);
            joined.push_str(plain);
            at_start &= plain.is_empty();
            if let Some(after) = special.strip_prefix('"') {
                joined.push('"');
                in_string = !in_string;
                (rest, at_start) = (after, in_string);
                continue;
            }
            let (escape, after) = split_escape(special);
            rest = after;
            match code_unit(escape) {
                Some(0xD800..=0xDBFF) => {
                    let (second, beyond) = split_escape(after);
                    if matches!(code_unit(second), Some(0xDC00..=0xDFFF)) {
                        joined.extend([escape, second]);
                        rest = beyond;
                    } else if after.starts_with('"') {
                        last = Some(escape.to_owned());
                    } else {
                        joined.push(char::REPLACEMENT_CHARACTER);
                    }
                }
                Some(0xDC00..=0xDFFF) => match earlier.as_deref().filter(|_| at_start) {
                    Some(first) => {
                        joined.extend([first, escape]);
                        is_joined = true;
                    }
                    None => joined.push(char::REPLACEMENT_CHARACTER),
                },
                _ => joined.push_str(escape),
            }
            at_start = false;
        }
        joined.push_str(rest);
        self.first_half = last.or(earlier.filter(|_| !is_joined));
        Cow::Owned(joined)
    }
}

/// Splits text after the escape that it begins with.
fn split_escape(text: &str) -> (&str, &str) {
    let length = if text.starts_with("\\u") { 6 } else { 2 };
    let end = text.char_indices().nth(length);
    text.split_at(end.map_or(text.len(), |(at, _)| at))
}

/// Returns the UTF-16 code unit of an escape, if it is one of a code unit.
fn code_unit(escape: &str) -> Option<u16> {
    u16::from_str_radix(escape.strip_prefix("\\u")?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::SplitPairs;

    #[test]
    fn halves_of_pairs_are_joined_or_replaced() {
        for (events, expected) in [
            // In other strings of the events, and after an event without text.
            (
                &[
                    r#"{"a":"x\ud83d","b":"\uD83D"}"#,
                    r#"{"c":[]}"#,
                    r#"{"a":"\ude00y","b":"\uDE00"}"#,
                    r#"{"a":"\ude00"}"#,
                ][..],
                &[
                    r#"{"a":"x","b":""}"#,
                    r#"{"c":[]}"#,
                    r#"{"a":"\uD83D\ude00y","b":"\uD83D\uDE00"}"#,
                    "{\"a\":\"\u{fffd}\"}",
                ][..],
            ),
            // Several pairs in a row.
            (
                &[r#"["\ud83d"]"#, r#"["\ude00\ud83d"]"#, r#"["\ude01"]"#][..],
                &[r#"[""]"#, r#"["\ud83d\ude00"]"#, r#"["\ud83d\ude01"]"#][..],
            ),
            // What is no half, and what has no other half.
            (
                &[
                    r#"["\ud83d\ude00 \u00fc ü \\ud83d \"\\"]"#,
                    r#"["\ud83dx\ude00","x\ud83d\ud83d\ude00"]"#,
                    r#"["x\ude00"]"#,
                ][..],
                &[
                    r#"["\ud83d\ude00 \u00fc ü \\ud83d \"\\"]"#,
                    "[\"\u{fffd}x\u{fffd}\",\"x\u{fffd}\\ud83d\\ude00\"]",
                    "[\"x\u{fffd}\"]",
                ][..],
            ),
            // No JSON.
            (
                &["\\u", "\\ud8", "\"\\", "\\uü"][..],
                &["\\u", "\\ud8", "\"\\", "\\uü"][..],
            ),
        ] {
            let mut pairs = SplitPairs::default();
            let joined: Vec<_> = events.iter().map(|it| pairs.join((*it).into())).collect();
            assert_eq!(joined, expected);
        }
    }
}
