//! Identifiers in events, journals and histories.

use std::fmt;

use uuid::Uuid;

/// Identifies a run. Sorts by creation time (UUID version 7).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId(Uuid);

impl RunId {
    /// Creates a unique identifier.
    #[expect(
        clippy::new_without_default,
        reason = "a default that differs each time surprises"
    )]
    pub fn new() -> Self {
        Self(Uuid::now_v7())
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_simple().fmt(f)
    }
}

impl fmt::Debug for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::str::FromStr for RunId {
    type Err = InvalidRunId;

    fn from_str(text: &str) -> Result<Self, InvalidRunId> {
        Uuid::parse_str(text).map(Self).map_err(|_| InvalidRunId)
    }
}

serialize_as_text!(RunId);

/// The error of text that is not a run id: 32 hexadecimal digits, hyphens allowed.
#[derive(Debug, thiserror::Error)]
#[error("not a run id: expected 32 hexadecimal digits")]
#[non_exhaustive]
pub struct InvalidRunId;

/// Creates a unique identifier of 32 hexadecimal digits.
pub fn unique_id() -> String {
    Uuid::now_v7().as_simple().to_string()
}

#[cfg(test)]
mod tests;
