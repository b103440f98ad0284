//! Text from a model or a sandbox, made visible for the person who reads it.
//!
//! A terminal interprets control characters, and some characters have no width or change the order of
//! others, so that text can look like something else. User interfaces pass every foreign text through
//! this module.

/// Escapes everything but visible characters and ASCII spaces, as `\u{…}`.
///
/// For text that a person reads to decide on it, such as a command to approve. Controls, line ends, tabs,
/// combining marks, bidirectional controls, zero-width and tag characters and spaces other than ASCII's are
/// escaped; a `\u{` in the text itself is, too, so that it can't pass for an escape.
///
/// ```
/// use cantle_core::escape::for_decision;
///
/// assert_eq!(for_decision("ls\u{9d}; rm -r .\u{9c}"), r"ls\u{9d}; rm -r .\u{9c}");
/// assert_eq!(for_decision("echo 'größer'\n"), r"echo 'größer'\u{a}");
/// assert_eq!(for_decision(r"\u{a}"), r"\u{5c}u{a}");
/// ```
pub fn for_decision(text: &str) -> String {
    escape(text, false)
}

/// Escapes what a terminal would interpret or hide, as `\u{…}`, and keeps ordinary prose.
///
/// Unlike [`for_decision`] it keeps line feeds, tabs, spaces of other scripts, combining marks, and the joiners
/// and variation selectors within words and emoji.
///
/// ```
/// use cantle_core::escape::for_display;
///
/// assert_eq!(for_display("a\tb\n\u{1b}[2J"), "a\tb\n\\u{1b}[2J");
/// assert_eq!(for_display("👩\u{200d}🔧 l\u{200b}s"), "👩\u{200d}🔧 l\\u{200b}s");
/// ```
pub fn for_display(text: &str) -> String {
    escape(text, true)
}

/// Returns the first `max_chars` characters of a text, followed by `…` if it is longer.
///
/// ```
/// use cantle_core::escape::shorten;
///
/// assert_eq!(shorten("größer", 3), "grö…");
/// assert_eq!(shorten("größer", 6), "größer");
/// ```
pub fn shorten(text: &str, max_chars: usize) -> String {
    match text.char_indices().nth(max_chars) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

/// Joins the first `max` items with commas, followed by the number of the others. Escapes nothing.
///
/// ```
/// use cantle_core::escape::join_up_to;
///
/// assert_eq!(join_up_to(2, ["a", "b", "c"]), "a, b and 1 more");
/// assert_eq!(join_up_to(3, ["a", "b", "c"]), "a, b, c");
/// ```
pub fn join_up_to(max: usize, items: impl IntoIterator<Item = impl ToString>) -> String {
    let mut items = items.into_iter();
    let named: Vec<_> = items
        .by_ref()
        .take(max)
        .map(|item| item.to_string())
        .collect();
    let named = named.join(", ");
    match items.count() {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

/// Replaces the halves of characters in a JSON text, such as `\ud83d` alone, with U+FFFD (`\ufffd`).
///
/// JavaScript cuts strings between the halves of a character and writes them so; no parser to a `str` accepts them.
///
/// ```
/// use cantle_core::escape::replace_lone_surrogates;
///
/// let mut json = br#"["\ud83d\ude00 \ud83d", "\\ud83d"]"#.to_vec();
/// replace_lone_surrogates(&mut json);
/// assert_eq!(json, br#"["\ud83d\ude00 \ufffd", "\\ud83d"]"#);
/// ```
pub fn replace_lone_surrogates(json: &mut [u8]) {
    let mut rest = json;
    while let Some(at) = rest.iter().position(|byte| *byte == b'\\') {
        let (_, escape) = std::mem::take(&mut rest).split_at_mut(at);
        let following = escape.get(6..).and_then(escaped_unit);
        let length = match (escaped_unit(escape), following) {
            (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => 12,
            (Some(0xd800..=0xdfff), _) => {
                if let Some(digits) = escape.get_mut(2..6) {
                    digits.copy_from_slice(b"fffd");
                }
                6
            }
            _ => 2,
        };
        rest = escape.get_mut(length..).unwrap_or_default();
    }
}

/// Returns the UTF-16 unit of the escape (`\u` and four digits) that a text begins with.
fn escaped_unit(text: &[u8]) -> Option<u16> {
    let digits = text.strip_prefix(b"\\u")?.get(..4)?;
    u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

fn escape(text: &str, is_prose: bool) -> String {
    let mut escaped = String::with_capacity(text.len());
    let mut chars = text.chars();
    let mut previous = ' ';
    while let Some(c) = chars.next() {
        let rest = chars.as_str();
        let next = rest.chars().next();
        let is_kept = match c {
            '\\' => is_prose || !rest.starts_with("u{"),
            '"' | '\'' => true,
            '\n' | '\t' => is_prose,
            // Letters and a symbol without a glyph.
            '\u{115f}' | '\u{1160}' | '\u{3164}' | '\u{ffa0}' | '\u{2800}' => false,
            // Joiners are part of words of several scripts and of emoji, which are not ASCII.
            '\u{200c}' | '\u{200d}' => {
                is_prose && !previous.is_ascii() && next.is_some_and(|next| !next.is_ascii())
            }
            // Tags, and variations of ideographs: both can carry a hidden text.
            '\u{e0000}'..='\u{e0fff}' => false,
            '\u{34f}' | '\u{17b4}' | '\u{17b5}' => false,
            '\u{fe00}'..='\u{fe0f}' => is_prose && !previous.is_ascii(),
            c if c.is_whitespace() && !c.is_control() && !matches!(c, '\u{2028}' | '\u{2029}') => {
                is_prose || c == ' '
            }
            // Not printable, or a combining mark; see `char::escape_debug`.
            c if c.escape_debug().len() > 1 => {
                is_prose && is_mark(c) && !previous.is_ascii_control()
            }
            _ => true,
        };
        if is_kept {
            escaped.push(c);
        } else {
            escaped.extend(c.escape_unicode());
        }
        previous = c;
    }
    escaped
}

/// Returns whether a character that `char::escape_debug` escapes is a combining mark: within a string it escapes
/// only those at the start.
fn is_mark(c: char) -> bool {
    let mut text = [0; 8];
    let Some(text) = text.get_mut(..1 + c.len_utf8()) else {
        return false;
    };
    let (first, mark) = text.split_at_mut(1);
    first.fill(b'a');
    c.encode_utf8(mark);
    std::str::from_utf8(text).is_ok_and(|text| text.escape_debug().eq(text.chars()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Characters that a terminal interprets, or that have no glyph.
    const HIDDEN: [char; 30] = [
        '\0',
        '\u{7}',
        '\u{8}',
        '\r',
        '\u{1b}',
        '\u{7f}',
        '\u{80}',
        '\u{9b}',
        '\u{9d}',
        '\u{9c}',
        '\u{ad}',
        '\u{61c}',
        '\u{180e}',
        '\u{200b}',
        '\u{200e}',
        '\u{200f}',
        '\u{202a}',
        '\u{202e}',
        '\u{2060}',
        '\u{2066}',
        '\u{2069}',
        '\u{2028}',
        '\u{2029}',
        '\u{feff}',
        '\u{fff9}',
        '\u{e0001}',
        '\u{e0041}',
        '\u{e0100}',
        '\u{3164}',
        '\u{2800}',
    ];

    #[test]
    fn hidden_characters_are_escaped_in_both_modes() {
        for c in HIDDEN {
            let expected = format!("a\\u{{{:x}}}b", u32::from(c));
            let text = format!("a{c}b");
            assert_eq!(for_decision(&text), expected);
            assert_eq!(for_display(&text), expected);
        }
    }

    #[test]
    fn prose_is_kept_for_display_and_visible_for_a_decision() {
        for (text, decision) in [
            ("grüße 漢字 🙂", "grüße 漢字 🙂"),
            ("a\tb\n", r"a\u{9}b\u{a}"),
            ("e\u{301}té", r"e\u{301}té"),
            ("10\u{202f}000\u{a0}€", r"10\u{202f}000\u{a0}€"),
            ("全角\u{3000}空白", r"全角\u{3000}空白"),
            ("می\u{200c}خواهم", r"می\u{200c}خواهم"),
            ("👩\u{200d}🔧 ❤\u{fe0f}", r"👩\u{200d}🔧 ❤\u{fe0f}"),
            (r"printf '\n\u001b' \\", r"printf '\n\u001b' \\"),
            (r"\u{1b}", r"\u{5c}u{1b}"),
        ] {
            assert_eq!(for_display(text), text);
            assert_eq!(for_decision(text), decision);
        }
        assert_eq!(for_display("rm\u{200d}x"), r"rm\u{200d}x");
        assert_eq!(for_display("l\u{200c}s"), r"l\u{200c}s");
    }
}
