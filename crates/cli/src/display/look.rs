//! How things look where they are shown: colours, the width of the terminal if there is one, and how
//! much of a text is shown.

use super::text::{fit, fold, wrap};

/// Where there is no terminal, a line of output is shown up to here.
const PLAIN_COLUMNS: usize = 200;

/// How things look.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    pub(super) paint: Paint,
    /// The width of the terminal; `None` where there is none, and text comes as plain lines.
    pub(super) columns: Option<usize>,
    /// Nothing is folded or cut.
    pub(super) verbose: bool,
}

impl Look {
    pub(super) fn is_live(self) -> bool {
        self.columns.is_some()
    }

    /// A line of text, broken so that it fits beside `indent` columns.
    pub(super) fn wrap(self, line: &str, indent: usize) -> Vec<String> {
        match self.columns {
            Some(columns) => wrap(line, columns.saturating_sub(indent + 1)),
            None => vec![line.to_owned()],
        }
    }

    /// A line of output, cut so that it fits beside `indent` columns.
    pub(super) fn cut(self, line: &str, indent: usize) -> String {
        if self.verbose {
            return line.to_owned();
        }
        let columns = self.columns.unwrap_or(PLAIN_COLUMNS);
        fit(line, columns.saturating_sub(indent + 1))
    }

    /// The lines of a text, its middle folded away.
    pub(super) fn fold(self, text: &str, head: usize, tail: usize) -> Vec<String> {
        if self.verbose {
            return text.trim_end().split('\n').map(str::to_owned).collect();
        }
        fold(text.trim_end(), head, tail)
    }
}

/// Colours, where they are wanted.
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
