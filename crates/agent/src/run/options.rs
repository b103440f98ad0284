//! The options of a session's runs.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cantle_core::ids::RunId;
use cantle_core::principal::Principal;
use cantle_core::sandbox::OutputOptions;
use cantle_core::tool::Progress;

use crate::budget::Budget;
use crate::environment::UserDirectory;
use crate::scope::{OutputDir, ParentRun};

/// The options that a session has, whether it is opened for new runs or to resume one.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct RunOptions {
    /// The directory in which the files of a finished run are saved.
    pub output_dir: Option<PathBuf>,
    /// Whether the files of each run are in a directory of their own below it, which has the run's id as its name
    /// and is created with the first file.
    pub has_output_dir_per_run: bool,
    /// How the files are saved.
    pub outputs: OutputOptions,
    /// The user's directory that the runs work on. The first message names it, and its changes as the result.
    pub user_directory: Option<UserDirectory>,
    /// The budget of each run.
    pub budget: Budget,
    /// Whether the holder of a run decides on calls that need approval. Otherwise the agent's user
    /// does; without a user, those calls don't run.
    pub answers_approvals: bool,
    /// On whose behalf the runs are.
    pub principal: Option<Principal>,
    /// Receives progress while the session opens, a line each.
    pub progress: Option<Arc<dyn Progress>>,
    /// The run that calls this agent as a sub-agent.
    pub(crate) parent: Option<ParentRun>,
}

impl RunOptions {
    /// Returns the output directory that all runs share, if they do.
    pub fn shared_output_dir(&self) -> Option<&Path> {
        let directory = self.output_dir.as_deref();
        directory.filter(|_| !self.has_output_dir_per_run)
    }

    /// Returns where the files of this run are saved.
    pub(crate) fn output_dir_of(&self, run: RunId) -> Option<OutputDir> {
        let mut path = self.output_dir.clone()?;
        if self.has_output_dir_per_run {
            path.push(run.to_string());
        }
        let options = self.outputs.clone();
        Some(OutputDir { path, options })
    }
}
