//! Text for people: without control sequences, wrapped, with short numbers.

use std::fmt::Write as _;
use std::time::Duration;

use cantle::core::usage::TokenUsage;
use console::{measure_text_width, truncate_str};
use serde_json::Value;

const TAB_COLUMNS: usize = 8;

/// The start of the line that stands for the middle of a command's output.
const CUT_OUTPUT: &str = "… [the output has ";

/// Removes escape sequences, control characters and bidirectional overrides from text.
///
/// A carriage return ends a line, so that each state of a progress bar is a line. Text may come in
/// chunks that are split anywhere.
#[derive(Debug, Default)]
pub(crate) struct Cleaner {
    state: CleanerState,
    /// Column in the line, for tabs.
    column: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum CleanerState {
    #[default]
    Text,
    /// After a carriage return.
    Return,
    /// After ESC.
    Escape,
    /// In a control sequence, up to its final byte.
    Sequence,
    /// In a control string (a title, a link), up to BEL or ST.
    Quoted,
}

impl Cleaner {
    /// Appends the cleaned `text` to `clean`.
    pub(crate) fn push(&mut self, text: &str, clean: &mut String) {
        for c in text.chars() {
            self.state = match (self.state, c) {
                (CleanerState::Escape, '[') | (_, '\u{9b}') => CleanerState::Sequence,
                (CleanerState::Escape, ']' | 'P' | 'X' | '^' | '_')
                | (_, '\u{9d}' | '\u{90}' | '\u{98}' | '\u{9e}' | '\u{9f}') => CleanerState::Quoted,
                (_, '\u{1b}') => CleanerState::Escape,
                // An unterminated string must not swallow the following lines.
                (CleanerState::Sequence | CleanerState::Quoted, '\n') => self.show('\n', clean),
                (CleanerState::Sequence, '\u{40}'..='\u{7e}')
                | (CleanerState::Quoted, '\u{7}' | '\u{9c}') => CleanerState::Text,
                (CleanerState::Sequence | CleanerState::Quoted, _) => self.state,
                // An intermediate byte, as in `ESC ( B`, then the final one.
                (CleanerState::Escape, ' '..='/') => CleanerState::Escape,
                (CleanerState::Escape, '0'..='~') => CleanerState::Text,
                (CleanerState::Return, '\n') => CleanerState::Text,
                _ => self.show(c, clean),
            };
        }
    }

    fn show(&mut self, c: char, clean: &mut String) -> CleanerState {
        self.column += 1;
        match c {
            '\r' | '\n' => {
                clean.push('\n');
                self.column = 0;
                if c == '\r' {
                    return CleanerState::Return;
                }
            }
            '\t' => {
                let stop = self.column.next_multiple_of(TAB_COLUMNS);
                clean.extend(std::iter::repeat_n(' ', stop + 1 - self.column));
                self.column = stop;
            }
            c if is_control(c) => {}
            c => clean.push(c),
        }
        CleanerState::Text
    }
}

/// Returns whether a character is a control character or a bidirectional override.
fn is_control(c: char) -> bool {
    c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Cleans a whole text; see [`Cleaner`].
pub(crate) fn clean(text: &str) -> String {
    let mut cleaned = String::with_capacity(text.len());
    Cleaner::default().push(text, &mut cleaned);
    cleaned
}

/// Formats JSON, indented, with control characters escaped.
pub(crate) fn clean_json(value: &Value) -> String {
    let mut cleaned = String::new();
    for c in format!("{value:#}").chars() {
        if is_control(c) && c != '\n' {
            let _ = write!(cleaned, "\\u{:04x}", u32::from(c));
        } else {
            cleaned.push(c);
        }
    }
    cleaned
}

/// Returns a text without the mark with which editors of Windows begin UTF-8 files.
pub(crate) fn without_byte_order_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

/// Cleans a whole text and joins its lines.
pub(crate) fn one_line(text: &str) -> String {
    clean(text).split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Truncates a line to `width` columns.
pub(crate) fn fit(line: &str, width: usize) -> String {
    truncate_str(line, width, "…").into_owned()
}

/// Returns the end of a line that fits in `width` columns.
pub(crate) fn fit_end(line: &str, width: usize) -> &str {
    let mut used = 0;
    let fits = |&(_, c): &(usize, char)| {
        used += measure_text_width(c.encode_utf8(&mut [0; 4]));
        used <= width
    };
    let first = line.char_indices().rev().take_while(fits).last();
    first.and_then(|(at, _)| line.get(at..)).unwrap_or_default()
}

/// Wraps a line at `width` columns, between words if possible.
pub(crate) fn wrap(line: &str, width: usize) -> Vec<String> {
    let width = width.max(8);
    let mut lines = vec![String::new()];
    let mut used = 0;
    for word in line.split_inclusive(' ') {
        let columns = measure_text_width(word);
        if used + measure_text_width(word.trim_end()) > width && used > 0 {
            lines.push(String::new());
            used = 0;
        }
        // Attributes of a terminal can't be split; it wraps such a word itself.
        if columns <= width || word.contains('\u{1b}') {
            push_last(&mut lines, word);
            used += columns;
            continue;
        }
        // A word that is wider than a line.
        for c in word.chars() {
            let columns = measure_text_width(c.encode_utf8(&mut [0; 4]));
            if used + columns > width && used > 0 {
                lines.push(String::new());
                used = 0;
            }
            push_last(&mut lines, c.encode_utf8(&mut [0; 4]));
            used += columns;
        }
    }
    lines
}

fn push_last(lines: &mut [String], text: &str) {
    if let Some(last) = lines.last_mut() {
        last.push_str(text);
    }
}

/// Returns the first `head` and the last `tail` lines, and a line that counts those between, unless a line
/// of theirs says that output is left out there, too: that line is returned instead.
pub(crate) fn fold(text: &str, head: usize, tail: usize) -> Vec<String> {
    let lines: Vec<&str> = text.trim_end_matches('\n').split('\n').collect();
    let hidden = lines.len().saturating_sub(head + tail);
    // The line that counts takes as much room as one hidden line.
    if hidden < 2 {
        return lines.into_iter().map(str::to_owned).collect();
    }
    let (first, rest) = lines.split_at(head);
    let (between, last) = rest.split_at(hidden);
    let count = format!("… {hidden} more lines");
    let note = between.iter().find(|line| line.starts_with(CUT_OUTPUT));
    let note = note.copied().unwrap_or(&count);
    let shown = first
        .iter()
        .copied()
        .chain([note])
        .chain(last.iter().copied());
    shown.map(str::to_owned).collect()
}

/// Formats a number as `999`, `12.4k` or `3.1M`.
pub(crate) fn count(n: u64) -> String {
    let n_f = n as f64;
    match n {
        0..1000 => n.to_string(),
        1000..99_950 => format!("{:.1}k", n_f / 1e3),
        99_950..999_500 => format!("{:.0}k", n_f / 1e3),
        _ => format!("{:.1}M", n_f / 1e6),
    }
}

/// Formats a number of bytes, in units of powers of 1000.
pub(crate) fn size(bytes: u64) -> String {
    if bytes < 1000 {
        return format!("{bytes} B");
    }
    let (mut n, mut unit) = (bytes as f64 / 1000.0, "kB");
    for larger in ["MB", "GB", "TB"] {
        if n >= 999.95 {
            (n, unit) = (n / 1000.0, larger);
        }
    }
    format!("{n:.1} {unit}")
}

/// Formats a count as `1 file` or `2 files`.
pub(crate) fn plural(n: u64, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

/// Formats a duration as `0.04 s`, `12.3 s`, `1:05` or `2:00:00`.
pub(crate) fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    match seconds {
        0.0..0.9995 => format!("{seconds:.2} s"),
        0.9995..59.95 => format!("{seconds:.1} s"),
        _ => clock(duration),
    }
}

/// Formats an elapsed time as `0:42`, `12:05` or `1:02:03`.
pub(crate) fn clock(elapsed: Duration) -> String {
    let seconds = elapsed.as_secs();
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours > 0 {
        format!("{hours}:{minutes:02}:{seconds:02}")
    } else {
        format!("{minutes}:{seconds:02}")
    }
}

/// Formats an amount of US dollars.
pub(crate) fn dollars(amount: f64) -> String {
    format!("${amount:.4}")
}

/// Adds costs of which some are unknown; `None` if all are.
pub(crate) fn add_costs(sum: Option<f64>, more: Option<f64>) -> Option<f64> {
    [sum, more].into_iter().flatten().reduce(|a, b| a + b)
}

/// Formats tokens as `12.4k in (8.0k cached) · 1.2k out`, with `~` for estimates.
pub(crate) fn tokens(usage: &TokenUsage, estimated: bool) -> String {
    let about = if estimated { "~" } else { "" };
    let mut text = format!("{about}{} in", count(usage.input_total()));
    if usage.cache_read > 0 {
        let _ = write!(text, " ({} cached)", count(usage.cache_read));
    }
    let _ = write!(text, " · {about}{} out", count(usage.output_total()));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clean_removes_escape_sequences() {
        let cases = [
            ("\x1b[31mred\x1b[0m", "red"),
            ("\x1b]0;title\x07after", "after"),
            ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
            ("\u{9b}2Jcleared", "cleared"),
            ("a\x08b\x7f\0c", "abc"),
            ("10%\r20%\r\nend", "10%\n20%\nend"),
            ("a\tb\n12345678\tc", "a       b\n12345678        c"),
            ("\u{202e}txt.exe", "txt.exe"),
            ("\x1b]0;never ended\nnext", "\nnext"),
            ("\x1bcreset \x1b7saved \x1b(Bset", "reset saved set"),
            ("ünïcödé 漢字 🙂\n", "ünïcödé 漢字 🙂\n"),
        ];
        for (raw, expected) in cases {
            assert_eq!(clean(raw), expected, "{raw:?}");
            // The result does not depend on chunks.
            let (mut cleaner, mut chunks) = (Cleaner::default(), String::new());
            for c in raw.chars() {
                cleaner.push(&c.to_string(), &mut chunks);
            }
            assert_eq!(chunks, expected, "{raw:?} in chunks");
        }
    }

    #[test]
    fn clean_json_keeps_the_value() {
        let value = serde_json::json!({"a\u{9b}2J": "\u{1b}[2J\u{202e}\u{7f}", "ü": ["漢\n"]});
        let cleaned = clean_json(&value);
        assert!(
            !cleaned.contains(|c| is_control(c) && c != '\n'),
            "{cleaned:?}"
        );
        assert_eq!(serde_json::from_str::<Value>(&cleaned).unwrap(), value);
    }

    #[test]
    fn wrap_breaks_between_words() {
        assert_eq!(
            wrap("one two three four", 9),
            ["one two ", "three ", "four"]
        );
        assert_eq!(wrap("abcdefghijkl mn", 8), ["abcdefgh", "ijkl mn"]);
        assert_eq!(wrap("漢字漢字漢字", 8), ["漢字漢字", "漢字"]);
        assert_eq!(wrap("", 8), [""]);
        let ends = [
            ("abc", 5),
            ("abcdef", 3),
            ("漢字漢字", 5),
            ("", 3),
            ("a", 0),
        ];
        let ends = ends.map(|(line, width)| fit_end(line, width));
        assert_eq!(ends, ["abc", "def", "漢字", "", ""]);
    }

    #[test]
    fn fold_keeps_head_and_tail() {
        let text = "1\n2\n3\n4\n5\n6\n7\n";
        assert_eq!(fold(text, 2, 2), ["1", "2", "… 3 more lines", "6", "7"]);
        assert_eq!(fold(text, 3, 3), ["1", "2", "3", "4", "5", "6", "7"]);
        assert_eq!(fold("", 2, 2), [""]);
        let cut = "… [the output has 90 bytes; its middle is left out here] …";
        let text = format!("1\n2\n3\n{cut}\n8\n9\n");
        assert_eq!(fold(&text, 1, 1), ["1", cut, "9"]);
    }

    #[test]
    fn numbers_are_shortened() {
        assert_eq!(
            [0, 999, 1000, 12_449, 99_949, 99_950, 1_500_000].map(count),
            ["0", "999", "1.0k", "12.4k", "99.9k", "100k", "1.5M"]
        );
        assert_eq!(
            [0, 999, 1000, 999_949, 999_950, 2_500_000_000].map(size),
            ["0 B", "999 B", "1.0 kB", "999.9 kB", "1.0 MB", "2.5 GB"]
        );
        assert_eq!(size(7_000_000_000_000_000), "7000.0 TB");
        assert_eq!(
            [1, 0, 2].map(|n| plural(n, "file", "files")),
            ["1 file", "0 files", "2 files"]
        );
        let times = [0.0, 0.042, 0.9996, 12.34, 59.94, 59.96, 125.0, 7384.0];
        assert_eq!(
            times.map(|s| duration(Duration::from_secs_f64(s))),
            [
                "0.00 s", "0.04 s", "1.0 s", "12.3 s", "59.9 s", "0:59", "2:05", "2:03:04"
            ]
        );
    }

    #[test]
    fn tokens_include_cache_reads() {
        let mut usage = TokenUsage {
            input: 4_400,
            cache_read: 8_000,
            answer: 1_200,
            ..TokenUsage::default()
        };
        assert_eq!(tokens(&usage, false), "12.4k in (8.0k cached) · 1.2k out");
        usage.cache_read = 0;
        assert_eq!(tokens(&usage, true), "~4.4k in · ~1.2k out");
    }
}
