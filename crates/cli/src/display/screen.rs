//! Live lines at the end of a terminal, redrawn in place below text that stays.

use crate::text::fit;

/// The live lines on a terminal.
#[derive(Debug, Default)]
pub(super) struct Screen {
    drawn: Vec<String>,
}

impl Screen {
    /// Returns the output that adds `text` and replaces the live lines below it by `lines`, as far as they fit in the
    /// terminal: what has scrolled out of it can't be removed.
    pub(super) fn draw(
        &mut self,
        text: &str,
        lines: &[String],
        (rows, columns): (usize, usize),
    ) -> String {
        // Some terminals wrap as soon as the last column is written.
        let lines: Vec<String> = lines
            .iter()
            .skip(lines.len().saturating_sub(rows))
            .map(|line| fit(line, columns.saturating_sub(1)))
            .collect();
        if text.is_empty() && lines == self.drawn {
            return String::new();
        }
        let mut output = self.clear();
        output.push_str(text);
        output.push_str(&lines.join("\n"));
        self.drawn = lines;
        output
    }

    /// Returns the output that removes the live lines.
    pub(super) fn clear(&mut self) -> String {
        let rows = std::mem::take(&mut self.drawn).len();
        match rows {
            0 => String::new(),
            1 => "\r\x1b[J".to_owned(),
            // From the end of the last live line to the start of the first.
            rows => format!("\r\x1b[{}A\x1b[J", rows - 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(lines: &[&str]) -> Vec<String> {
        lines.iter().map(|line| (*line).to_owned()).collect()
    }

    /// Returns the rows of a terminal after `output`.
    fn rows_after(output: &str) -> Vec<String> {
        let mut rows = vec![Vec::new()];
        let (mut row, mut column) = (0, 0);
        let mut rest = output.chars();
        while let Some(c) = rest.next() {
            match c {
                '\r' => column = 0,
                '\n' => {
                    (row, column) = (row + 1, 0);
                    rows.resize_with(rows.len().max(row + 1), Vec::new);
                }
                '\x1b' => {
                    let sequence: Vec<char> = rest.by_ref().take(2).collect();
                    match *sequence {
                        ['[', up @ '1'..='9'] => {
                            row -= up.to_digit(10).unwrap() as usize;
                            assert_eq!(rest.next(), Some('A'));
                        }
                        ['[', 'J'] => {
                            rows.truncate(row + 1);
                            rows[row].truncate(column);
                        }
                        _ => panic!("{sequence:?}"),
                    }
                }
                c => {
                    rows[row].truncate(column);
                    rows[row].push(c);
                    column += 1;
                }
            }
        }
        rows.into_iter()
            .map(|row| row.into_iter().collect())
            .collect()
    }

    #[test]
    fn draw_replaces_live_lines_and_keeps_text() {
        let mut screen = Screen::default();
        let mut output = screen.draw("first\n", &lines(&["running", "status 1"]), (24, 40));
        assert_eq!(rows_after(&output), ["first", "running", "status 1"]);
        output += &screen.draw("second\n", &lines(&["status 2"]), (24, 40));
        assert_eq!(rows_after(&output), ["first", "second", "status 2"]);
        output += &screen.draw("", &lines(&["a long live line", "status 3"]), (24, 8));
        assert_eq!(
            rows_after(&output),
            ["first", "second", "a long…", "status…"]
        );
        output += &screen.draw("", &lines(&["hidden", "running", "status"]), (2, 8));
        assert_eq!(
            rows_after(&output),
            ["first", "second", "running", "status"]
        );
        output += &screen.clear();
        assert_eq!(rows_after(&output), ["first", "second", ""]);
    }

    #[test]
    fn draw_writes_nothing_without_changes() {
        let mut screen = Screen::default();
        assert_eq!(screen.draw("", &lines(&["status"]), (24, 40)), "status");
        assert_eq!(screen.draw("", &lines(&["status"]), (24, 40)), "");
    }
}
