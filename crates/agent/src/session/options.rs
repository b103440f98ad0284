//! The options of a session.

use std::path::PathBuf;
use std::sync::Arc;

use cantle_core::message::Message;
use cantle_core::principal::Principal;
use cantle_core::sandbox::{OutputOptions, SandboxHandle};
use cantle_core::tool::Progress;
use serde_json::Value;

use crate::budget::Budget;
use crate::environment::UserDirectory;
use crate::inputs::InputOptions;
use crate::journal::RunStore;
use crate::run::RunOptions;

/// The options of a new session.
#[must_use]
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct SessionOptions {
    /// Files, directories and patterns on the host that are copied into the sandbox.
    pub input_files: Vec<PathBuf>,
    /// The selection of files in directories and patterns.
    pub inputs: InputOptions,
    /// The options of its runs.
    pub runs: RunOptions,
    /// A conversation to continue. A system message at its start is replaced.
    pub history: Vec<Message>,
    /// The sandbox of an earlier run to continue in, with its files, instead of a new one. Once a run
    /// has begun, it is removed as a new one is.
    pub sandbox: Option<SandboxHandle>,
    /// The store in which runs are kept, so that they can be resumed.
    pub store: Option<RunStore>,
    /// Data for the caller that resumes a run. Must not hold secrets.
    pub note: Value,
    /// A directory of skills on the host, each `NAME/SKILL.md`: copied into the sandbox as `skills`,
    /// and listed for the model.
    pub skills: Option<PathBuf>,
}

/// The options of a session that resumes a run.
#[must_use]
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ResumeOptions {
    /// The options of the run. Its budget includes earlier spending. The user's directory is in the message with which the
    /// run began, and is not sent again.
    pub runs: RunOptions,
    /// Whether a new sandbox is opened if the run's own is gone. Its files are lost, and the model is
    /// informed.
    pub fresh_sandbox: bool,
    /// The directory of skills with which the run began, for its sub-agents and for later runs. It is
    /// copied only into a new sandbox.
    pub skills: Option<PathBuf>,
}

/// Defines the setters of what both kinds of options have.
macro_rules! common_options {
    ($options:ident) => {
        impl $options {
            /// Sets the output directory, which is created if it does not exist.
            pub fn output_dir(mut self, directory: impl Into<PathBuf>) -> Self {
                self.runs.output_dir = Some(directory.into());
                self
            }

            /// Saves the files of each run in a directory below this one, which has the run's id as its name.
            /// Directories are created when a run delivers files.
            pub fn output_dir_per_run(mut self, directory: impl Into<PathBuf>) -> Self {
                self.runs.output_dir = Some(directory.into());
                self.runs.has_output_dir_per_run = true;
                self
            }

            /// Sets how files are saved in the output directory.
            pub fn outputs(mut self, outputs: OutputOptions) -> Self {
                self.runs.outputs = outputs;
                self
            }

            /// Sets the directory of skills.
            pub fn skills(mut self, directory: impl Into<PathBuf>) -> Self {
                self.skills = Some(directory.into());
                self
            }

            /// Sets the user's directory that the runs work on.
            pub fn user_directory(mut self, directory: UserDirectory) -> Self {
                self.runs.user_directory = Some(directory);
                self
            }

            /// Sets on whose behalf the runs are. Sub-agents act for the same principal. A resumed run acts for
            /// the one given to it, not for the earlier one.
            pub fn principal(mut self, principal: Principal) -> Self {
                self.runs.principal = Some(principal);
                self
            }

            /// Sets the receiver of progress while the session opens, such as an image pull.
            pub fn progress(mut self, progress: Arc<dyn Progress>) -> Self {
                self.runs.progress = Some(progress);
                self
            }

            /// Sets the budget of each run.
            pub fn budget(mut self, budget: Budget) -> Self {
                self.runs.budget = budget;
                self
            }

            /// Lets the holder of a run decide on calls that need approval
            /// ([`RunControl::decide`](crate::RunControl::decide)), including those of sub-agents.
            pub fn answers_approvals(mut self) -> Self {
                self.runs.answers_approvals = true;
                self
            }
        }
    };
}

common_options!(SessionOptions);
common_options!(ResumeOptions);

impl ResumeOptions {
    /// Opens a new sandbox if the run's own is gone.
    pub fn fresh_sandbox(mut self) -> Self {
        self.fresh_sandbox = true;
        self
    }
}

impl SessionOptions {
    /// Adds an input: a file, a directory (`data` is copied as `data/…`, `data/` as its contents) or a
    /// pattern (`*.csv`, `src/**/*.rs`).
    pub fn input_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.input_files.push(path.into());
        self
    }

    /// Sets the conversation to continue.
    pub fn history(mut self, messages: Vec<Message>) -> Self {
        self.history = messages;
        self
    }

    /// Sets the sandbox of an earlier run to continue in. No other session must use it.
    pub fn in_sandbox(mut self, sandbox: SandboxHandle) -> Self {
        self.sandbox = Some(sandbox);
        self
    }

    /// Keeps runs in `store`, with a note for the caller that resumes them. Their sandbox then outlives
    /// this process if its backend supports that.
    pub fn kept_in(mut self, store: RunStore, note: Value) -> Self {
        self.store = Some(store);
        self.note = note;
        self
    }
}
