//! Streamed text and reasoning: deltas in, lines out.

use super::markdown::Markdown;
use super::style::{Paint, Style};
use crate::text::{Cleaner, clean, one_line};

/// Maximum number of bytes of reasoning kept for `--verbose`.
const MAX_REASONING_BYTES: usize = 20_000;
/// Number of its last characters that are displayed while it streams.
const LIVE_REASONING_CHARS: usize = 60;

/// The text of one turn. Empty lines at the end are dropped, and several in a row are merged.
#[derive(Debug, Default)]
pub(super) struct TextStream {
    cleaner: Cleaner,
    /// The incomplete last line.
    line: String,
    has_text: bool,
    /// Whether an empty line precedes the next text.
    gap: bool,
    markdown: Markdown,
    /// Whether a part of the current line was displayed.
    is_begun: bool,
}

impl TextStream {
    /// Adds a delta, and returns the completed lines, with an empty one before the first.
    pub(super) fn push(&mut self, text: &str, style: Style) -> Vec<String> {
        let mut cleaned = std::mem::take(&mut self.line);
        self.cleaner.push(text, &mut cleaned);
        let mut complete: Vec<&str> = cleaned.split('\n').collect();
        let rest = complete.pop().unwrap_or_default();
        let mut lines = Vec::new();
        for line in complete {
            self.add(line, style, &mut lines);
            self.is_begun = false;
        }
        // An incomplete line that is wrapped is displayed up to its last part.
        let mut parts = style.wrap(rest, 0);
        self.line = parts.pop().unwrap_or_default();
        for part in parts {
            self.add(&part, style, &mut lines);
            self.is_begun = true;
        }
        lines
    }

    /// Ends the text, and returns its remaining lines.
    pub(super) fn end(&mut self, style: Style) -> Vec<String> {
        let mut lines = Vec::new();
        let line = std::mem::take(&mut self.line);
        self.add(&line, style, &mut lines);
        *self = Self::default();
        lines
    }

    /// Returns whether there was no text.
    pub(super) fn is_empty(&self) -> bool {
        !self.has_text && self.line.is_empty()
    }

    /// Returns the incomplete last line.
    pub(super) fn line(&self) -> &str {
        &self.line
    }

    fn add(&mut self, line: &str, style: Style, lines: &mut Vec<String>) {
        if line.trim().is_empty() {
            self.gap = self.has_text;
            return;
        }
        if !self.has_text || self.gap {
            lines.push(String::new());
        }
        (self.has_text, self.gap) = (true, false);
        let paint = Paint {
            on: style.paint.on && style.is_live(),
        };
        let line = self.markdown.line(line, !self.is_begun, paint);
        let parts = style.wrap(&line, 0);
        lines.extend(parts.iter().map(|part| part.trim_end().to_owned()));
    }
}

/// The reasoning of one turn.
#[derive(Debug, Default)]
pub(super) struct ReasoningStream(String);

impl ReasoningStream {
    pub(super) fn push(&mut self, text: &str) {
        self.0.push_str(text);
        if let Some(excess) = self.0.len().checked_sub(MAX_REASONING_BYTES) {
            let cut = (excess..).find(|at| self.0.is_char_boundary(*at));
            self.0.drain(..cut.unwrap_or_default());
        }
    }

    /// Returns its end, if there is text.
    pub(super) fn tail(&self) -> Option<String> {
        let line = one_line(&self.0);
        let skip = line.chars().count().saturating_sub(LIVE_REASONING_CHARS);
        let tail: String = line.chars().skip(skip).collect();
        (!tail.is_empty()).then_some(tail)
    }

    /// Ends the reasoning, and returns its lines for `--verbose`.
    pub(super) fn end(&mut self, style: Style) -> Vec<String> {
        let reasoning = std::mem::take(&mut self.0);
        if !style.verbose || reasoning.trim().is_empty() {
            return Vec::new();
        }
        let mut lines = vec![String::new()];
        for line in clean(&reasoning).trim().lines() {
            let parts = style.wrap(line, 0);
            lines.extend(parts.iter().map(|part| style.paint.dim(part)));
        }
        lines
    }
}
