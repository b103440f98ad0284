//! Refused commands.

use cantle_core::metadata::Metadata;
use cantle_core::sandbox::render_refusal;
use cantle_core::tool::ToolOutput;

/// The reason that a command is refused, with advice for the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CommandRefusal {
    kind: &'static str,
    details: String,
    advice: String,
}

impl CommandRefusal {
    /// Creates a refusal of text that is not a valid command.
    pub(super) fn invalid(details: impl Into<String>, advice: impl Into<String>) -> Self {
        Self {
            kind: "invalid_argument",
            details: details.into(),
            advice: advice.into(),
        }
    }

    /// Creates a refusal of a command that is not allowed.
    pub(super) fn not_allowed(details: impl Into<String>, advice: impl Into<String>) -> Self {
        Self {
            kind: "command_not_allowed",
            ..Self::invalid(details, advice)
        }
    }

    /// Refuses text that cannot be executed even by a shell.
    pub(super) fn for_text(cmd: &str) -> Option<Self> {
        if cmd.trim().is_empty() {
            Some(Self::invalid(
                "The command is empty.",
                "Give a command, for example `ls -la`.",
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

    /// Returns the text for the model.
    pub(super) fn text(&self) -> String {
        render_refusal(self.kind, &self.details, &self.advice)
    }
}

impl From<CommandRefusal> for ToolOutput {
    fn from(refusal: CommandRefusal) -> Self {
        Self::failure(refusal.text()).with_metadata(Metadata::uses(1))
    }
}
