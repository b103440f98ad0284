//! What is wrong with a piece of a policy that somebody wrote, and what to write instead.

use thiserror::Error;

/// How much of what was written is repeated: it may be anything.
const SHOWN_CHARS: usize = 80;

/// A host, limit or preset that makes no sense. Its text says what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{written}` is not {meant}: {advice}")]
pub struct InvalidPolicy {
    written: String,
    meant: &'static str,
    advice: String,
}

impl InvalidPolicy {
    /// `written` is not what was `meant` ("a host name"); `advice` says why and what to write.
    pub(super) fn new(written: &str, meant: &'static str, advice: impl Into<String>) -> Self {
        let end = written.char_indices().nth(SHOWN_CHARS);
        let written = match end.and_then(|(end, _)| written.get(..end)) {
            Some(start) => format!("{}…", start.escape_debug()),
            None => written.escape_debug().to_string(),
        };
        Self {
            written,
            meant,
            advice: advice.into(),
        }
    }

    /// Why, and what to write instead.
    #[must_use]
    pub fn advice(&self) -> &str {
        &self.advice
    }
}
