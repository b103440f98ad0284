//! Commands that are not run, and what the model is told instead of a result.

use std::borrow::Cow;

use cantle_core::metadata::Metadata;
use cantle_core::sandbox::render_refusal;
use cantle_core::tool::ToolOutput;

/// Why a command is not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    kind: &'static str,
    details: Cow<'static, str>,
    advice: Cow<'static, str>,
}

impl Refusal {
    /// The text is no command.
    pub(super) fn invalid(
        details: impl Into<Cow<'static, str>>,
        advice: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self {
            kind: "invalid_argument",
            details: details.into(),
            advice: advice.into(),
        }
    }

    /// It is one, but not one that may be run.
    pub(super) fn not_allowed(
        details: impl Into<Cow<'static, str>>,
        advice: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self {
            kind: "command_not_allowed",
            details: details.into(),
            advice: advice.into(),
        }
    }

    /// What nothing can run, with or without a shell.
    pub(super) fn of_text(cmd: &str) -> Option<Self> {
        if cmd.trim().is_empty() {
            Some(Self::invalid(
                "The command is empty.",
                "Give a command in `cmd`, for example `ls -la`.",
            ))
        } else if cmd.contains('\0') {
            Some(Self::invalid(
                "The command contains a NUL character.",
                "Leave it out, or write `printf '\\0'` for one.",
            ))
        } else {
            None
        }
    }

    /// What the model reads.
    pub(super) fn text(&self) -> String {
        render_refusal(self.kind, &self.details, &self.advice)
    }
}

impl From<Refusal> for ToolOutput {
    fn from(refusal: Refusal) -> Self {
        Self::failure(refusal.text()).with_metadata(Metadata::uses(1))
    }
}
