//! Failures of calls.

use cantle_core::escape::shorten;
use cantle_core::sandbox::SandboxError;

/// The reason why a call fails.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The browser can't be used any longer, for this reason; the next call starts a new one.
    Lost(String),
    /// The call can't be done; the sentences are for the model.
    Refused(String),
    /// The sandbox failed.
    Sandbox(SandboxError),
}

impl Failure {
    pub(crate) fn lost(reason: impl Into<String>) -> Self {
        Self::Lost(reason.into())
    }

    pub(crate) fn refused(text: impl Into<String>) -> Self {
        Self::Refused(text.into())
    }
}

impl From<SandboxError> for Failure {
    fn from(error: SandboxError) -> Self {
        Self::Sandbox(error)
    }
}

/// Cuts text of a page or the browser after a number of characters, and replaces line ends and control characters.
pub(crate) fn clip(text: &str, chars: usize) -> String {
    shorten(text, chars).replace(char::is_control, " ")
}
