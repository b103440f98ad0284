//! Exit codes, and failures with an exit code.

use std::error::Error;
use std::fmt;
use std::iter;

use anyhow::anyhow;
use cantle::agent::{SessionError, SessionErrorKind};
use cantle::core::event::RunStatus;
use cantle::core::sandbox::SandboxError;

use crate::policy;

/// The exit codes of `cantle run`. Scripts rely on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    Finished = 0,
    Internal = 1,
    Usage = 2,
    Limit = 3,
    Cancelled = 4,
    Model = 5,
    Sandbox = 6,
}

impl From<RunStatus> for Code {
    fn from(status: RunStatus) -> Self {
        match status {
            RunStatus::Finished | RunStatus::AnsweredInText => Self::Finished,
            RunStatus::LimitReached => Self::Limit,
            RunStatus::Cancelled => Self::Cancelled,
            RunStatus::ModelFailed => Self::Model,
            RunStatus::SandboxFailed => Self::Sandbox,
            _ => Self::Internal,
        }
    }
}

/// The reason why a command failed before it started its work, with an exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    pub(crate) error: anyhow::Error,
}

impl Failure {
    pub(crate) fn new(code: Code, error: impl Into<anyhow::Error>) -> Self {
        Self {
            code: code as u8,
            error: error.into(),
        }
    }
}

impl fmt::Display for Failure {
    /// Formats the error and those causes that its message does not contain.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.error.to_string();
        f.write_str(&with_causes(text, self.error.chain().skip(1)))
    }
}

impl From<SessionError> for Failure {
    fn from(error: SessionError) -> Self {
        let code = match error.kind() {
            SessionErrorKind::Input
            | SessionErrorKind::Output
            | SessionErrorKind::Tools
            | SessionErrorKind::Approvals
            | SessionErrorKind::Budget
            | SessionErrorKind::Journal
            | SessionErrorKind::Identity => Code::Usage,
            SessionErrorKind::Sandbox => Code::Sandbox,
            _ => Code::Internal,
        };
        let hint = error.sandbox_error().and_then(policy::hint);
        let message = hint.map(|hint| format!("{error}. {hint}"));
        let error = anyhow::Error::new(error);
        Self::new(
            code,
            match message {
                Some(message) => error.context(message),
                None => error,
            },
        )
    }
}

/// Assigns exit codes to errors.
pub(crate) trait FailureExt<T>: Sized {
    fn with_code(self, code: u8) -> Result<T, Failure>;

    /// The command line or a setting is invalid.
    fn usage(self) -> Result<T, Failure> {
        self.with_code(Code::Usage as u8)
    }

    /// Something unexpected failed.
    fn internal(self) -> Result<T, Failure> {
        self.with_code(Code::Internal as u8)
    }
}

impl<T, E: Into<anyhow::Error>> FailureExt<T> for Result<T, E> {
    fn with_code(self, code: u8) -> Result<T, Failure> {
        self.map_err(|error| Failure {
            code,
            error: error.into(),
        })
    }
}

/// Adds those causes of an error that its message does not contain.
fn with_causes<'e>(
    mut text: String,
    causes: impl Iterator<Item = &'e (dyn Error + 'static)>,
) -> String {
    for cause in causes {
        let cause = cause.to_string();
        if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
}

/// Returns the failure of a sandbox, with its causes and what to do about it.
pub(crate) fn sandbox_failure(code: u8, error: &SandboxError) -> Failure {
    let advice = error.advice().map(|advice| format!(". {advice}"));
    let hint = policy::hint(error).map(|hint| format!(" {hint}"));
    let (advice, hint) = (advice.unwrap_or_default(), hint.unwrap_or_default());
    let causes = iter::successors(error.source(), |&cause| cause.source());
    let text = with_causes(error.to_string(), causes);
    let error = anyhow!("{text}{advice}{hint}");
    Failure { code, error }
}

/// Returns the failure of a command that was cancelled during its preparation.
pub(crate) fn cancelled_early() -> Failure {
    Failure::new(Code::Cancelled, anyhow!("cancelled before the run began"))
}

#[cfg(test)]
mod tests {
    use cantle::core::sandbox::SandboxErrorKind;

    use super::*;

    #[test]
    fn failure_of_a_sandbox_has_its_cause_and_advice() {
        let cause = std::io::Error::other("no certificate");
        let error = SandboxError::new(SandboxErrorKind::Unavailable, "no engine")
            .with_source(cause)
            .with_advice("Start it.");
        let failure = sandbox_failure(Code::Sandbox as u8, &error);
        assert_eq!(failure.to_string(), "no engine: no certificate. Start it.");
    }
}
