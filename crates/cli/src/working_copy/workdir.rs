//! The directory of a run with `--workdir`, from the copy to the user's decision.

use std::fs::File;

use anyhow::{Context as _, bail};
use cantle::agent::{InputOptions, SessionOptions, UserDirectory};
use cantle::core::ids::RunId;
use cantle::core::sandbox::Sandbox;
use tokio_util::sync::CancellationToken;

use super::WorkingCopy;
use super::changes::Changes;
use super::review::{Decision, decide};
use crate::args::WorkdirArgs;
use crate::ask::TerminalUser;
use crate::display::Paint;
use crate::exit::{Failure, FailureExt as _, cancelled_early};
use crate::state_dir::StateDir;

/// The directory that a run works on.
#[derive(Debug)]
pub(crate) struct Workdir {
    pub(crate) copy: WorkingCopy,
    args: WorkdirArgs,
    /// The selection of files to copy; `None` if they have been copied.
    options: Option<InputOptions>,
    /// Keeps other processes from working on the copy.
    lock: Option<File>,
}

impl Workdir {
    /// Returns the directory that a new run works on, if one is given, and makes its copy the run's input.
    ///
    /// # Errors
    /// If the directory can't be used, or there are flags for its changes but no directory.
    pub(crate) fn new(
        args: &WorkdirArgs,
        options: &mut SessionOptions,
    ) -> anyhow::Result<Option<Self>> {
        let Some(origin) = args.workdir.as_ref().filter(|_| !args.in_place) else {
            check_flags(args)?;
            return Ok(None);
        };
        // Without a state directory, the run is not kept either.
        let parent = StateDir::find().map(|state| state.working_copies());
        let parent = parent.unwrap_or_else(|_| std::env::temp_dir());
        let copy = WorkingCopy::new(origin, &parent, &options.inputs)?;
        let chosen = options.inputs.clone();
        options.input_files.push(copy.input());
        // What is in the copy has been chosen, by rules of directories that it is not in. The others hold for further inputs.
        options.inputs.include_ignored = true;
        options.runs.user_directory =
            Some(UserDirectory::Copied(copy.origin.display().to_string()));
        Ok(Some(Self {
            copy,
            args: args.clone(),
            options: Some(chosen),
            lock: None,
        }))
    }

    /// Returns the directory that a resumed run works on.
    ///
    /// # Errors
    /// If there are flags for its changes, but the run has no directory; or if its copy is in use or gone.
    pub(crate) fn resumed(
        args: &WorkdirArgs,
        copy: Option<WorkingCopy>,
        fresh_sandbox: bool,
    ) -> anyhow::Result<Option<Self>> {
        let Some(copy) = copy else {
            check_flags(args)?;
            return Ok(None);
        };
        if fresh_sandbox {
            bail!(
                "a run with --workdir can't be resumed in a new sandbox, which would be empty: begin a new run on {}",
                copy.origin.display()
            );
        }
        Ok(Some(Self {
            lock: Some(copy.lock()?),
            copy,
            args: args.clone(),
            options: None,
        }))
    }

    /// Copies the files of a new run. Returns warnings.
    ///
    /// # Errors
    /// If they can't be copied, or it is cancelled; nothing is left then.
    pub(crate) async fn take(
        &mut self,
        cancellation: &CancellationToken,
    ) -> Result<Vec<String>, Failure> {
        let Some(options) = self.options.clone() else {
            return Ok(Vec::new());
        };
        let (copy, token) = (self.copy.clone(), cancellation.clone());
        let taken = tokio::task::spawn_blocking(move || {
            copy.take(&options, &token).inspect_err(|_| {
                // Here, so that a second interrupt, after which the copy is not awaited, leaves nothing either. What remains is
                // removed by `cantle gc`.
                let _ = copy.remove();
            })
        });
        let (lock, warnings) = match taken.await.internal()? {
            Err(_) if cancellation.is_cancelled() => return Err(cancelled_early()),
            taken => taken.usage()?,
        };
        self.lock = Some(lock);
        Ok(warnings)
    }

    /// Removes the copy of a run that did not begin.
    pub(crate) fn discard(&self) {
        if self.options.is_some() {
            // What remains is removed by `cantle gc`.
            let _ = self.copy.remove();
        }
    }

    /// Notes what the sandbox holds before a new run begins.
    ///
    /// # Errors
    /// If it can't be listed.
    pub(crate) async fn note_before(&self, sandbox: Option<&dyn Sandbox>) -> anyhow::Result<()> {
        match (sandbox, &self.options) {
            (Some(sandbox), Some(_)) => self.copy.note_before(sandbox).await,
            _ => Ok(()),
        }
    }

    /// Decides on the changes of a run that has ended. An interrupt ends the question, and keeps them. `kept_run`: the run,
    /// if its changes are kept with it.
    ///
    /// # Errors
    /// If the diff can't be made or written.
    pub(crate) async fn decide(
        &self,
        mut changes: Changes,
        kept_run: Option<RunId>,
        user: (Option<&TerminalUser>, bool),
        paint: Paint,
        cancellation: &CancellationToken,
    ) -> anyhow::Result<Decision> {
        let how_later = match kept_run {
            Some(run) => format!("cantle runs apply {run}"),
            None => "the run is not kept (--no-keep), and its changes are dropped".to_owned(),
        };
        let decision = decide(
            &self.args,
            &self.copy,
            &mut changes,
            user,
            &how_later,
            paint,
            cancellation,
        )
        .await;
        if kept_run.is_some() {
            return decision;
        }
        // Nothing else has the changes.
        let kept = || {
            format!(
                "the changed files are in {}",
                self.copy.new_files().display()
            )
        };
        let decision = decision.with_context(kept)?;
        self.copy.remove()?;
        Ok(decision)
    }
}

fn check_flags(args: &WorkdirArgs) -> anyhow::Result<()> {
    if args.apply || args.reject || args.diff.is_some() {
        bail!("--apply, --diff and --reject need --workdir");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Code;

    #[tokio::test]
    async fn cancelled_copy_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let origin = directory.path().join("origin");
        std::fs::create_dir(&origin).unwrap();
        std::fs::write(origin.join("notes.txt"), "").unwrap();
        let options = InputOptions::default();
        let parent = directory.path().join("copies");
        let copy = WorkingCopy::new(&origin, &parent, &options).unwrap();
        let args = WorkdirArgs {
            workdir: Some(origin),
            in_place: false,
            apply: false,
            diff: None,
            reject: false,
        };
        let mut workdir = Workdir {
            copy,
            args,
            options: Some(options),
            lock: None,
        };
        let token = CancellationToken::new();
        token.cancel();
        let failure = workdir.take(&token).await.unwrap_err();
        assert_eq!(failure.code, Code::Cancelled as u8);
        assert!(!workdir.copy.directory.exists());
    }
}
