//! Colours, line width and truncation.

use crate::text::{fit, fold, wrap};

/// Maximum width of a line of output without a terminal.
const PLAIN_COLUMNS: usize = 200;

/// How text is formatted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Style {
    pub(super) paint: Paint,
    /// Width of the terminal; `None` for plain lines.
    pub(super) columns: Option<usize>,
    /// Nothing is folded or truncated.
    pub(super) verbose: bool,
}

impl Style {
    pub(super) fn is_live(self) -> bool {
        self.columns.is_some()
    }

    /// Wraps a line of text so that it fits beside `indent` columns.
    pub(super) fn wrap(self, line: &str, indent: usize) -> Vec<String> {
        match self.columns {
            Some(columns) => wrap(line, columns.saturating_sub(indent + 1)),
            None => vec![line.to_owned()],
        }
    }

    /// Truncates a line of output so that it fits beside `indent` columns.
    pub(super) fn truncate(self, line: &str, indent: usize) -> String {
        if self.verbose {
            return line.to_owned();
        }
        let columns = self.columns.unwrap_or(PLAIN_COLUMNS);
        fit(line, columns.saturating_sub(indent + 1))
    }

    /// Returns the lines of a text without its middle.
    pub(super) fn fold(self, text: &str, head: usize, tail: usize) -> Vec<String> {
        if self.verbose {
            return text.trim_end().split('\n').map(str::to_owned).collect();
        }
        fold(text.trim_end(), head, tail)
    }
}

/// Colours, if `on`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Paint {
    pub(crate) on: bool,
}

impl Paint {
    pub(crate) fn dim(self, text: &str) -> String {
        self.with("2", text)
    }

    pub(crate) fn bold(self, text: &str) -> String {
        self.with("1", text)
    }

    pub(crate) fn green(self, text: &str) -> String {
        self.with("32", text)
    }

    pub(crate) fn yellow(self, text: &str) -> String {
        self.with("33", text)
    }

    pub(crate) fn red(self, text: &str) -> String {
        self.with("31", text)
    }

    pub(super) fn cyan(self, text: &str) -> String {
        self.with("36", text)
    }

    fn with(self, code: &str, text: &str) -> String {
        if self.on && !text.is_empty() {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}
