//! The result of a command, in a sandbox or unconfined.

use std::time::Duration;

use cantle_core::sandbox::{CommandOutput, ExitStatus, SandboxError};

/// The result of a command.
#[derive(Debug, Default)]
pub(crate) struct CommandResult {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) took: Duration,
    /// Its status, in a sandbox.
    pub(crate) status: Option<ExitStatus>,
    /// The error, if it did not run.
    pub(crate) error: Option<SandboxError>,
}

impl CommandResult {
    pub(crate) fn new(result: Result<CommandOutput, SandboxError>, took: Duration) -> Self {
        match result {
            Ok(output) => Self {
                stdout: output.stdout.text(),
                stderr: output.stderr.text(),
                took,
                status: Some(output.exit.status),
                error: None,
            },
            Err(error) => Self {
                took,
                error: Some(error),
                ..Self::default()
            },
        }
    }

    /// Returns a one-line summary.
    pub(crate) fn summary(&self) -> String {
        let tail = |text: &str| {
            let skipped = text.chars().count().saturating_sub(600);
            text.chars().skip(skipped).collect::<String>()
        };
        format!(
            "{:?} after {:?}, stdout {:?}, stderr {:?}{}",
            self.status,
            self.took,
            tail(&self.stdout),
            tail(&self.stderr),
            match &self.error {
                Some(error) => format!(", {error}"),
                None => String::new(),
            }
        )
    }
}
