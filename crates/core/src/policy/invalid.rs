//! Errors in policy text.

use thiserror::Error;

use crate::escape::shorten;

/// Maximum characters of the invalid text in an error.
const MAX_SHOWN_CHARS: usize = 80;

/// The error of an invalid host, limit or preset, with advice.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{text}` is not {expected}: {advice}")]
pub struct InvalidPolicy {
    text: String,
    expected: &'static str,
    advice: String,
}

impl InvalidPolicy {
    /// Creates an error: `text` is not what was `expected` ("a host name").
    pub(super) fn new(text: &str, expected: &'static str, advice: impl Into<String>) -> Self {
        Self {
            text: shorten(text, MAX_SHOWN_CHARS).escape_debug().to_string(),
            expected,
            advice: advice.into(),
        }
    }

    /// Returns the reason and the advice.
    pub fn advice(&self) -> &str {
        &self.advice
    }
}
