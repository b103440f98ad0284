//! A command that has run, in a sandbox or beside it.

use std::time::Duration;

use cantle_core::sandbox::{CommandOutput, ExitStatus, SandboxError};

/// What is left of a command.
#[derive(Debug, Default)]
pub(crate) struct Ran {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) took: Duration,
    /// How it ended, where it ran in a sandbox.
    pub(crate) status: Option<ExitStatus>,
    /// Why it did not run.
    pub(crate) error: Option<SandboxError>,
}

impl Ran {
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

    /// The same in one line, for a report.
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
