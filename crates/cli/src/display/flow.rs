//! The model's text and reasoning on their way: pieces in, lines out.

use super::look::Look;
use super::text::{Cleaner, clean, one_line};

/// Characters of reasoning that are kept for `--verbose`.
const REASONING_CHARS: usize = 20_000;
/// Characters of its end that are shown while it comes.
const THOUGHT_CHARS: usize = 60;

/// Text of one turn. Empty lines count only where more follows, and several are one.
#[derive(Debug, Default)]
pub(super) struct Flow {
    cleaner: Cleaner,
    /// The line that is not complete yet.
    line: String,
    begun: bool,
    gap: bool,
}

impl Flow {
    /// Takes a piece; returns the lines it completed, with an empty one before the first of all.
    pub(super) fn push(&mut self, text: &str, look: Look) -> Vec<String> {
        let mut cleaned = std::mem::take(&mut self.line);
        self.cleaner.push(text, &mut cleaned);
        let mut complete: Vec<&str> = cleaned.split('\n').collect();
        let rest = complete.pop().unwrap_or_default();
        let mut lines = Vec::new();
        for line in complete {
            self.add(line, look, &mut lines);
        }
        // What is longer than a line is shown as far as it fills lines.
        let mut parts = look.wrap(rest, 0);
        self.line = parts.pop().unwrap_or_default();
        for part in parts {
            self.add(&part, look, &mut lines);
        }
        lines
    }

    /// Ends the text; returns what was not shown of it.
    pub(super) fn end(&mut self, look: Look) -> Vec<String> {
        let mut lines = Vec::new();
        let line = std::mem::take(&mut self.line);
        self.add(&line, look, &mut lines);
        *self = Self::default();
        lines
    }

    /// Whether there was any.
    pub(super) fn is_empty(&self) -> bool {
        !self.begun && self.line.is_empty()
    }

    /// The line that is not complete yet.
    pub(super) fn line(&self) -> &str {
        &self.line
    }

    fn add(&mut self, line: &str, look: Look, lines: &mut Vec<String>) {
        if line.trim().is_empty() {
            self.gap = self.begun;
            return;
        }
        if !self.begun || self.gap {
            lines.push(String::new());
        }
        (self.begun, self.gap) = (true, false);
        let parts = look.wrap(line, 0);
        lines.extend(parts.iter().map(|part| part.trim_end().to_owned()));
    }
}

/// What the model thinks before it answers.
#[derive(Debug, Default)]
pub(super) struct Thought(String);

impl Thought {
    pub(super) fn push(&mut self, text: &str) {
        self.0.push_str(text);
        if let Some(excess) = self.0.len().checked_sub(REASONING_CHARS) {
            let cut = (excess..).find(|at| self.0.is_char_boundary(*at));
            self.0.drain(..cut.unwrap_or_default());
        }
    }

    /// Its last words, as far as they fit a line; `None` where there are none.
    pub(super) fn last_words(&self) -> Option<String> {
        let line = one_line(&self.0);
        let skip = line.chars().count().saturating_sub(THOUGHT_CHARS);
        let words: String = line.chars().skip(skip).collect();
        (!words.is_empty()).then_some(words)
    }

    /// Ends it; returns it as lines, where that is wanted.
    pub(super) fn end(&mut self, look: Look) -> Vec<String> {
        let thought = std::mem::take(&mut self.0);
        if !look.verbose || thought.trim().is_empty() {
            return Vec::new();
        }
        let mut lines = vec![String::new()];
        for line in clean(&thought).trim().lines() {
            let parts = look.wrap(line, 0);
            lines.extend(parts.iter().map(|part| look.paint.dim(part)));
        }
        lines
    }
}
