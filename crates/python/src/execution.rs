//! The result of executed code.

use std::time::Duration;

use cantle_core::code::{CodeError, RichResult};
use cantle_core::sandbox::{Artifacts, Captured, Enforcement, ExitStatus, SpillFile};

/// The result of one piece of code.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Execution {
    /// How it ended.
    pub outcome: ExecutionOutcome,
    /// The exit status of the interpreter, if it ended with this code.
    pub exit: Option<ExitStatus>,
    /// Head and tail of standard output, also after a timeout.
    pub stdout: Captured,
    /// Head and tail of standard error.
    pub stderr: Captured,
    /// The file in the sandbox with all of a long standard output.
    pub stdout_file: Option<SpillFile>,
    /// The file in the sandbox with all of a long standard error.
    pub stderr_file: Option<SpillFile>,
    /// Displayed values, in order. One-shot runs have none.
    pub results: Vec<RichResult>,
    /// The exception of a kernel's call; a one-shot run has its traceback in `stderr`.
    pub error: Option<CodeError>,
    /// The files that changed since the session's previous call, or since the start of its first one, if the interpreter
    /// collects them. Overlapping calls in one sandbox may both report a file.
    pub artifacts: Artifacts,
    /// The enforcement of the policy by the sandbox.
    pub enforcement: Vec<Enforcement>,
    /// Sentences for the reader: why code was refused or stopped, and whether variables are lost.
    pub notes: Vec<String>,
    /// Time from start to end.
    pub duration: Duration,
}

/// How executed code ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ExecutionOutcome {
    /// It ran to its end.
    Completed,
    /// It ended with an exception, or a one-shot run with a status other than 0.
    Raised,
    /// It was stopped at its time limit.
    TimedOut,
    /// It was stopped at another limit of the policy.
    LimitReached,
    /// The interpreter ended: by a signal, or because the code ended its process.
    Killed,
    /// It was stopped because the call was cancelled.
    Cancelled,
    /// It was not started: a syntax error, or an import that is not allowed.
    Refused,
    /// There is no usable Python, or it did not start.
    SetupFailed,
    /// It was only analysed.
    #[default]
    NotExecuted,
}

impl Execution {
    pub(crate) fn new(outcome: ExecutionOutcome) -> Self {
        Self {
            outcome,
            ..Self::default()
        }
    }

    pub(crate) fn with_note(mut self, note: impl Into<String>) -> Self {
        self.notes.push(note.into());
        self
    }

    /// Returns whether the code ran to its end.
    pub fn success(&self) -> bool {
        self.outcome == ExecutionOutcome::Completed
    }
}
