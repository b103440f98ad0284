//! The earlier run that `cantle run --continue` continues.

use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, bail};
use cantle::agent::{KeptRun, KeptStatus, RunStore, SessionOptions, UserDirectory};
use cantle::core::event::EventKind;
use cantle::core::ids::RunId;
use cantle::core::message::Message;
use cantle::core::sandbox::SandboxHandle;
use tempfile::TempDir;

use crate::args::RunArgs;
use crate::kept_sandbox::{is_directory_gone, is_kept_of_finished, successor};
use crate::saved_settings::SavedSettings;
use crate::state_dir::StateDir;
use crate::text::plural;

/// A kept run that gets another task.
pub(crate) struct EarlierRun {
    pub(crate) saved: SavedSettings,
    run: KeptRun,
    conversation: Vec<Message>,
    /// The delivered files: their paths in the sandbox, and where they were saved.
    delivered: Vec<(String, PathBuf)>,
    /// The sandbox, unless it is gone or another run has it.
    sandbox: Option<SandboxHandle>,
}

impl EarlierRun {
    /// Returns the run of this name. Blocks.
    ///
    /// # Errors
    /// If there is none, it is in progress, or it can't be continued.
    pub(crate) fn find(name: &str, fresh_sandbox: bool) -> anyhow::Result<Self> {
        let state = StateDir::find()?;
        let store = state.runs();
        let run = state.find_idle_run(name)?;
        let saved = SavedSettings::read(run.note.clone())
            .with_context(|| format!("run {} was not started by `cantle run`", run.run))?;
        if saved.is_replay() {
            bail!(
                "run {} replayed a recording, which has no answer to another task",
                run.run
            );
        }
        let is_kept = run.status.is_resumable() || is_kept_of_finished(&run);
        let sandbox = run
            .sandbox
            .clone()
            .filter(|handle| is_kept && !fresh_sandbox && !is_directory_gone(handle));
        let sandbox = match sandbox {
            Some(_) if successor(&store, &run)?.is_some() => None,
            sandbox => sandbox,
        };
        Ok(Self {
            delivered: delivered(&store, run.run, &saved.started_in)?,
            conversation: store.conversation(run.run)?,
            saved,
            run,
            sandbox,
        })
    }

    /// Returns the id of the run.
    pub(crate) fn id(&self) -> RunId {
        self.run.run
    }

    /// Replaces the conversation by a summary of it.
    pub(crate) fn summarized(mut self, summary: &str) -> Self {
        let text = format!("A summary of the conversation so far, which it replaces:\n\n{summary}");
        self.conversation = vec![Message::user(text)];
        self
    }

    /// Returns the arguments of the new run: those of the earlier run hold where none are given.
    pub(crate) fn complete(&self, args: &RunArgs) -> RunArgs {
        let (mut args, saved) = (args.clone(), &self.saved);
        let or = |given: &mut Option<PathBuf>, saved: Option<&PathBuf>| {
            *given = given.take().or_else(|| saved.cloned());
        };
        or(&mut args.output_dir, saved.output_dir.as_ref());
        or(&mut args.skills, saved.skills.as_ref());
        or(&mut args.mcp, saved.mcp.as_ref());
        if let (Some(in_place), None) = (&saved.in_place, &args.workdir.workdir) {
            args.workdir.workdir = Some(in_place.directory.clone());
            args.workdir.in_place = true;
            args.inputs.include_secrets |= in_place.include_secrets;
        }
        if let (Some(copy), None) = (&saved.working_copy, &args.workdir.workdir) {
            args.workdir.workdir = Some(copy.origin.clone());
            copy.choose_again(&mut args.inputs);
        }
        args.approve = args.approve.or_else(|| saved.approve.clone());
        args
    }

    /// Completes what a run that was killed could not do: to rename what it left in the directory that it changed
    /// itself. Returns a remark about it. Blocks.
    ///
    /// # Errors
    /// If the directory can't be read.
    pub(crate) fn set_aside(&self) -> anyhow::Result<Option<String>> {
        let was_killed = self.run.status == KeptStatus::Interrupted;
        let Some(in_place) = self.saved.in_place.as_ref().filter(|_| was_killed) else {
            return Ok(None);
        };
        let lines = in_place.set_aside(self.saved.output_dir.as_deref())?;
        Ok((!lines.is_empty()).then(|| lines.trim_end().to_owned()))
    }

    /// Adds the conversation and the files to the options of a session. Returns a remark for the user, and the
    /// directory of the files that are inputs now. Blocks.
    ///
    /// # Errors
    /// If the files can't be copied.
    pub(crate) fn add_to(
        self,
        options: &mut SessionOptions,
    ) -> anyhow::Result<(String, Option<TempDir>)> {
        let run = self.run.run;
        options.history = self.conversation;
        if let Some(UserDirectory::Copied(origin)) = &options.runs.user_directory {
            let note = "The working directory is a new copy of the user's directory as it is now: changes of the \
                        earlier task are in it as far as the user has applied them.";
            options.history.push(Message::user(in_new_sandbox(note)));
            let remark = format!("continues run {run} on a new copy of {origin}");
            return Ok((remark, None));
        }
        if let Some(sandbox) = self.sandbox {
            options.sandbox = Some(sandbox);
            let note = "The next task goes on in the same sandbox, with the files as they are. Processes that ran \
                        there have ended.";
            options.history.push(Message::user(note));
            return Ok((format!("continues run {run} in its sandbox"), None));
        }
        let directory = TempDir::with_prefix("cantle-delivered-")
            .context("no directory for the delivered files can be created")?;
        let mut missing = Vec::new();
        let mut count = 0;
        for (source, path) in &self.delivered {
            match copy(path, directory.path(), Path::new(source))? {
                true => count += 1,
                false => missing.push(source.as_str()),
            }
        }
        let mut note = match count {
            0 => "The working directory has no file of it.".to_owned(),
            _ => {
                "The files that it delivered are back where they were; others are gone.".to_owned()
            }
        };
        if !missing.is_empty() {
            note.push_str(" Of the delivered files, these are gone: ");
            note.push_str(&missing.join(", "));
            note.push('.');
        }
        options.history.push(Message::user(in_new_sandbox(&note)));
        let files = plural(count, "delivered file", "delivered files");
        let remark =
            format!("continues run {run} in a new sandbox, with {files}; its other files are gone");
        if count == 0 {
            return Ok((remark, None));
        }
        // The slash means the contents of the directory.
        options.input_files.push(directory.path().join(""));
        Ok((remark, Some(directory)))
    }
}

/// Returns the kept runs of the conversation up to a run, the earliest first: those of its session, and those from which the
/// session continues. Blocks.
///
/// # Errors
/// If the kept runs can't be listed.
pub(crate) fn conversation(store: &RunStore, run: RunId) -> anyhow::Result<Vec<RunId>> {
    let (kept, _) = store.list()?;
    let field = |run: &KeptRun, name: &str| run.note.get(name).filter(|it| !it.is_null()).cloned();
    let mut runs = Vec::new();
    let mut latest = Some(run);
    while let Some(run) = latest
        && !runs.contains(&run)
        && let Some(found) = kept.iter().find(|it| it.run == run)
    {
        let session = field(found, "session");
        let is_earlier =
            |it: &&KeptRun| session.is_some() && it.run < run && field(it, "session") == session;
        let mut of_session: Vec<_> = kept.iter().filter(is_earlier).map(|it| it.run).collect();
        of_session.push(run);
        of_session.sort_unstable_by(|left, right| right.cmp(left));
        runs.extend(of_session);
        latest = field(found, "continues").and_then(|it| serde_json::from_value(it).ok());
    }
    runs.reverse();
    Ok(runs)
}

fn in_new_sandbox(note: &str) -> String {
    format!("The next task begins in a new sandbox; that of the earlier task is gone. {note}")
}

/// Returns the delivered files of a run: their paths in the sandbox, and where they were saved. Blocks.
///
/// # Errors
/// If its journal can't be read.
pub(crate) fn delivered(
    store: &RunStore,
    run: RunId,
    started_in: &Path,
) -> anyhow::Result<Vec<(String, PathBuf)>> {
    let events = store.events(run)?.into_iter();
    let saved = events.filter(|event| event.depth == 0).filter_map(|event| {
        let EventKind::OutputSaved { source, path, .. } = event.kind else {
            return None;
        };
        Some((source, started_in.join(path)))
    });
    Ok(saved.collect())
}

/// Copies a delivered file to its place below a directory, and returns whether it still is a regular file.
///
/// # Errors
/// If it can't be copied.
pub(crate) fn copy(file: &Path, directory: &Path, source: &Path) -> anyhow::Result<bool> {
    let is_beneath = |part| matches!(part, Component::Normal(_) | Component::CurDir);
    let is_file = fs::symlink_metadata(file).is_ok_and(|found| found.is_file());
    if !is_file || !source.components().all(is_beneath) {
        return Ok(false);
    }
    let target = directory.join(source);
    let copied = || {
        fs::create_dir_all(target.parent().unwrap_or(directory))?;
        fs::copy(file, &target)
    };
    copied().with_context(|| format!("failed to copy {}", file.display()))?;
    Ok(true)
}
