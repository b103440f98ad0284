//! `cantle runs`: lists, shows and removes kept runs.

use std::io::{self, ErrorKind, IsTerminal as _};
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, anyhow};
use cantle::agent::{KeptRun, KeptStatus, StoreErrorKind};
use cantle::core::escape::{for_decision, shorten};
use cantle::core::event::{Event, EventKind, RunStatus};
use serde_json::{Value, json};
use tempfile::TempDir;
use walkdir::WalkDir;

use super::print;
use crate::args::{ApplyArgs, DisplayArgs, RunFilter, RunsCommand, TranscriptFormat};
use crate::ask::TerminalUser;
use crate::comparison;
use crate::delivery::{StoreArgs, StoreTarget};
use crate::display::{Display, Paint};
use crate::earlier_run;
use crate::exit::{Code, Failure, FailureExt as _};
use crate::export::{self, status_name as status};
use crate::kept_sandbox::{self, reattach, remove_sandbox};
use crate::messages::warn;
use crate::result_file::write_atomically;
use crate::saved_settings::{self, SavedSettings};
use crate::state_dir::{StateDir, check_idle};
use crate::text::{clean, dollars, duration, one_line, plural, size};
use crate::transcript;
use crate::undelivered;
use crate::unfinished::Unfinished;
use crate::working_copy::{self, Status};

/// Maximum number of characters of a task in the list.
const TASK_CHARS: usize = 60;

/// Performs a subcommand of `runs`, and returns the exit code.
pub(crate) async fn perform(command: RunsCommand) -> Result<u8, Failure> {
    let state = StateDir::find().usage()?;
    match command {
        RunsCommand::List { which, json } => list(&state, which, json)?,
        RunsCommand::Show {
            run,
            json,
            log,
            verbose,
            format,
            output,
            store,
        } => {
            let run = state.find_run(&run).usage()?;
            if json {
                let (all, _) = state.runs().list().internal()?;
                print(format!("{:#}\n", to_json(&state, &all, &run)))?;
            } else if let Some(format) = format {
                show_as(format, &state, run, (output.as_deref(), &store)).await?;
            } else {
                let events = state.runs().events(run.run).internal()?;
                print(&match log {
                    true => Display::log(&events, verbose),
                    false => show(&state, &state.runs().list().internal()?.0, &run, &events),
                })?;
            }
        }
        RunsCommand::Diff { old, new } => diff(&state, &old, &new)?,
        RunsCommand::Export {
            run,
            directory,
            journal,
            store,
        } => {
            let run = state.find_idle_run(&run).usage()?;
            let copy = async |to: &Path| match journal {
                true => copy_journal(&run, to).internal(),
                false => export(&state, &run, to).await,
            };
            let Some(target) = StoreTarget::of(&directory) else {
                check_empty(&directory)?;
                return copy(&directory).await.map(|()| 0);
            };
            let store = store.open(&target).await.usage()?;
            let staged = TempDir::with_prefix("cantle-export-").internal()?;
            copy(staged.path()).await?;
            let stored = store.put_tree(run.run, staged.path()).await.internal()?;
            print(format!("Stored {}\n", plural(stored, "file", "files")))?;
        }
        RunsCommand::Apply { run, how } => return apply(&state, &run, how).await,
        RunsCommand::Rm { runs, which } => remove(&state, &runs, which).await?,
        // `main` replaces it by `cantle run --resume`.
        RunsCommand::Resume { .. } => {}
    }
    Ok(0)
}

impl RunFilter {
    /// Returns whether the filter is one at all.
    fn is_given(self) -> bool {
        self.finished || self.failed || self.older_than.is_some()
    }

    fn matches(self, run: &KeptRun) -> bool {
        let is_finished = matches!(
            run.status,
            KeptStatus::Ended(RunStatus::Finished | RunStatus::AnsweredInText)
        );
        let is_old = self.older_than.is_none_or(|time| age(run.latest) >= time);
        let has_failed = !is_finished && run.status != KeptStatus::Running;
        is_old && (!self.finished || is_finished) && (!self.failed || has_failed)
    }
}

fn list(state: &StateDir, which: RunFilter, as_json: bool) -> Result<(), Failure> {
    let (all, unreadable) = state.runs().list().internal()?;
    let matching = all.iter().filter(|run| which.matches(run));
    let mut text = String::new();
    if as_json {
        let runs = matching.map(|run| to_json(state, &all, run));
        text = format!("{:#}\n", Value::Array(runs.collect()));
    } else {
        text.extend(matching.map(|run| line(state, run)));
        if text.is_empty() {
            let none = match which.is_given() {
                true => "No kept run matches.\n",
                false => "No runs are kept.\n",
            };
            text.push_str(none);
        }
    }
    for error in unreadable {
        warn(&error.to_string());
    }
    print(&text)
}

fn line(state: &StateDir, run: &KeptRun) -> String {
    let task = shorten(&one_line(&run.task), TASK_CHARS);
    let workspace = kept_sandbox::size_of_finished(run);
    format!(
        "{}  {:13}  {:>9} ago  {:>9}  {:>8}  {task}\n",
        run.run,
        match undelivered::of(state, run) {
            Some(_) => "undelivered",
            None => status(run.status),
        },
        duration(age(run.latest)),
        plural(u64::from(run.turns), "turn", "turns"),
        workspace.map(size).unwrap_or_default(),
    )
}

/// Writes all of a run in a format: to a file, into a store, or to standard output.
async fn show_as(
    format: TranscriptFormat,
    state: &StateDir,
    run: KeptRun,
    (output, store): (Option<&Path>, &StoreArgs),
) -> Result<(), Failure> {
    if format == TranscriptFormat::Html && output.is_none() && io::stdout().is_terminal() {
        let advice = "a page is for a browser: name its file with -o FILE";
        return Err(anyhow!(advice)).usage();
    }
    let id = run.run;
    let text = export::export(&state.runs(), run, format, &Default::default()).internal()?;
    let Some(target) = output.and_then(StoreTarget::of) else {
        return write(output, &text);
    };
    let store = store.open(&target).await.usage()?;
    let name = format!("run.{}", format.extension());
    let address = store.put_text(id, &name, text).await.internal()?;
    print(format!("Wrote {}\n", for_decision(&address)))
}

/// Writes an export to a file, or prints it.
fn write(path: Option<&Path>, text: &str) -> Result<(), Failure> {
    let Some(path) = path else {
        return print(text);
    };
    write_atomically(path, text.as_bytes()).internal()?;
    print(format!(
        "Wrote {} ({})\n",
        for_decision(&path.display().to_string()),
        size(text.len() as u64)
    ))
}

fn show(state: &StateDir, all: &[KeptRun], run: &KeptRun, events: &[Event]) -> String {
    let mut rows = vec![
        ("run", run.run.to_string()),
        ("status", status(run.status).to_owned()),
        ("task", clean(&run.task)),
        ("agent", one_line(&run.agent)),
        ("model", one_line(&run.model)),
        ("turns", run.turns.to_string()),
        ("tokens", run.tokens.to_string()),
    ];
    rows.extend(run.cost_usd.map(|cost| {
        let list = run
            .list_price
            .as_ref()
            .map(|(part, date)| format!(", of which {} list price of {date}", dollars(*part)));
        ("cost", dollars(cost) + &list.unwrap_or_default())
    }));
    rows.extend(run.error.as_ref().map(|error| ("error", clean(error))));
    rows.push(("begun", format!("{} ago", duration(age(run.begun)))));
    rows.push(("latest", format!("{} ago", duration(age(run.latest)))));
    let answer = transcript::final_answer(events);
    rows.extend(answer.map(|answer| ("answer", clean(answer.trim()))));
    for event in events.iter().filter(|event| event.depth == 0) {
        if let EventKind::OutputRefused { source, reason } = &event.kind {
            rows.push(("refused", one_line(&format!("{source}: {reason}"))));
        }
        if let EventKind::OutputSaved { source, path, .. } = &event.kind {
            let is_stored = undelivered::is_stored(state, Path::new(path));
            let path = if path.is_empty() || is_stored {
                source
            } else {
                path
            };
            let name = if is_stored { "stored" } else { "file" };
            rows.push((name, for_decision(path)));
        }
    }
    if let Some(copy) = saved_settings::working_copy(run) {
        rows.push(("workdir", copy.origin.display().to_string()));
        let state = copy.changes().ok().flatten().map(|it| it.describe());
        rows.extend(state.map(|state| ("changes", state)));
    }
    if let Some(size_bytes) = kept_sandbox::size_of_finished(run) {
        let continued = format!(
            "{}; cantle run --continue {} continues in it",
            size(size_bytes),
            run.run
        );
        rows.push(("kept", continued));
        if rows.iter().any(|(name, _)| *name == "refused") {
            rows.push(("export", format!("cantle runs export {} DIR", run.run)));
        }
    }
    rows.push(("journal", run.directory.display().to_string()));
    if kept_sandbox::is_resumable(all, run) {
        rows.push(("resume", format!("cantle run --resume {}", run.run)));
    }
    if undelivered::of(state, run).is_some() {
        rows.push(("deliver", format!("cantle run --resume {}", run.run)));
    }
    let rows = rows.iter();
    rows.map(|(name, value)| format!("{name:8} {}\n", value.replace('\n', "\n         ")))
        .collect()
}

fn to_json(state: &StateDir, all: &[KeptRun], run: &KeptRun) -> Value {
    let seconds = |time: SystemTime| {
        let since = time.duration_since(SystemTime::UNIX_EPOCH);
        since.unwrap_or_default().as_secs_f64()
    };
    json!({
        "run": run.run,
        "status": status(run.status),
        "resumable": kept_sandbox::is_resumable(all, run),
        "undelivered": undelivered::of(state, run).is_some(),
        "error": run.error,
        "task": run.task,
        "agent": run.agent,
        "model": run.model,
        "turns": run.turns,
        "tokens": run.tokens,
        "cost_usd": run.cost_usd,
        "list_price_usd": run.list_price.as_ref().map(|(part, _)| part),
        "list_price_date": run.list_price.as_ref().map(|(_, date)| date),
        "begun": seconds(run.begun),
        "latest": seconds(run.latest),
        "directory": run.directory,
        "workspace_bytes": kept_sandbox::size_of_finished(run),
    })
}

fn diff(state: &StateDir, old: &str, new: &str) -> Result<(), Failure> {
    let (old, new) = (state.find_run(old).usage()?, state.find_run(new).usage()?);
    let store = state.runs();
    let old_events = store.events(old.run).internal()?;
    let new_events = store.events(new.run).internal()?;
    let diff = comparison::diff((&old, &old_events), (&new, &new_events));
    print(match diff.is_empty() {
        true => "The runs do not differ.\n",
        false => &diff,
    })
}

fn age(time: SystemTime) -> Duration {
    SystemTime::now().duration_since(time).unwrap_or_default()
}

async fn remove(state: &StateDir, names: &[String], which: RunFilter) -> Result<(), Failure> {
    let mut runs = Vec::new();
    let mut count = 0;
    for name in names {
        match state.find_run(name) {
            Ok(run) => runs.push(run),
            // A damaged run has no sandbox that is known.
            Err(error) => match name.parse().map(|run| state.runs().remove(run)) {
                Ok(Ok(())) => count += 1,
                _ => return Err(error).usage(),
            },
        }
    }
    if which.is_given() {
        let (all, _) = state.runs().list().internal()?;
        let is_idle = |run: &KeptRun| run.status != KeptStatus::Running;
        runs.extend(
            all.into_iter()
                .filter(|run| which.matches(run) && is_idle(run)),
        );
    }
    let store = state.runs();
    for run in &runs {
        check_idle(run).usage()?;
        let locked = match store.lock(run.run) {
            // It was given twice.
            Err(error) if error.kind() == StoreErrorKind::NotFound => continue,
            locked => locked.usage()?,
        };
        // Another process may have resumed it since.
        let run = store.get(run.run).internal()?;
        let mut all = vec![run.clone()];
        while let Some(run) = all.pop() {
            if !kept_sandbox::hand_over(&store, &run).internal()? {
                remove_sandbox(&run).await.internal()?;
            }
            all.extend(run.sub_agents().0);
        }
        if let Some(copy) = saved_settings::working_copy(&run) {
            copy.remove().internal()?;
        }
        undelivered::remove(state, run.run).internal()?;
        locked.remove().internal()?;
        count += 1;
    }
    print(format!("{} removed\n", plural(count, "run", "runs")))
}

/// Whether the changes of a run are applied to its directory.
pub(crate) fn is_applied(run: &KeptRun) -> bool {
    let changes = saved_settings::working_copy(run).and_then(|copy| copy.changes().ok().flatten());
    changes.is_some_and(|changes| changes.status == Status::Applied)
}

/// Applies the changes of a run, or does with them what `how` says.
pub(crate) async fn apply(state: &StateDir, name: &str, how: ApplyArgs) -> Result<u8, Failure> {
    let run = state.find_idle_run(name).usage()?;
    let Some(copy) = saved_settings::working_copy(&run) else {
        let message = format!("run {} did not work on a directory (--workdir)", run.run);
        return Err(anyhow!(message)).usage();
    };
    let _lock = copy.lock().usage()?;
    let mut changes = match copy.changes().internal()? {
        Some(changes)
            if !run.status.is_resumable()
                || how.revert
                || how.reject
                || matches!(changes.status, Status::Applying | Status::Reverting) =>
        {
            changes
        }
        // An unfinished run may have been resumed since.
        earlier => match reattach(&run).await.internal()? {
            Some(sandbox) => {
                sandbox.persist().await.internal()?;
                copy.collect(&*sandbox, false, true).await.internal()?
            }
            None => {
                let gone = || format!("the working directory of run {} is gone", run.run);
                earlier.with_context(gone).usage()?
            }
        },
    };
    let files = changes.clone();
    let files = copy.diff(&files).internal()?;
    if how.diff {
        let paint = Display::new(DisplayArgs::default()).paint;
        for file in &files {
            let patch = copy.patch(file).internal()?;
            match io::stdout().is_terminal() {
                true => print(working_copy::patch_for_terminal(&patch, paint))?,
                false => print(patch)?,
            }
        }
        return Ok(0);
    }
    if how.revert {
        print(&working_copy::revert(&copy, &mut changes).usage()?)?;
        return Ok(0);
    }
    if how.reject {
        if matches!(changes.status, Status::Applied | Status::Applying) {
            let message = "the changes are applied; --revert restores the files";
            return Err(anyhow!(message)).usage();
        }
        copy.reject(&mut changes).internal()?;
        print("Rejected: nothing was written.\n")?;
        return Ok(0);
    }
    print(working_copy::summary(&changes, &files, Paint { on: false }))?;
    let user = TerminalUser::find().internal()?.map(|(_, user)| user);
    let applied = working_copy::apply(&copy, &mut changes, user.as_ref()).await;
    print(&applied.text)?;
    Ok(match applied.is_complete {
        true => Code::Finished,
        false => Code::Limit,
    } as u8)
}

/// Copies the files that a run delivered, and those that it changed in its copy of a directory, as far as they are kept.
fn export_results(
    state: &StateDir,
    run: &KeptRun,
    directory: &Path,
    reason: &str,
) -> Result<(), Failure> {
    let id = run.run;
    let saved = SavedSettings::read(run.note.clone()).ok();
    let started_in = saved.as_ref().map(|saved| saved.started_in.as_path());
    let mut files = earlier_run::delivered(&state.runs(), id, started_in.unwrap_or(Path::new("")))
        .internal()?;
    if let Some(copy) = saved.as_ref().and_then(|saved| saved.working_copy.as_ref()) {
        files.extend(copy.changed_files().internal()?);
    }
    let (mut count, mut missing) = (0, Vec::new());
    for (name, kept) in &files {
        match earlier_run::copy(kept, directory, Path::new(name)).internal()? {
            true => count += 1,
            false => missing.push(clean(&format!("{name}: {} is not there", kept.display()))),
        }
    }
    if count > 0 {
        let copied = plural(count, "file", "files");
        print(format!(
            "{}; copied {copied} that the run delivered or changed\n",
            clean(reason)
        ))?;
    }
    match missing.is_empty() {
        true if count > 0 => Ok(()),
        true => Err(anyhow!(
            "{reason}, and it delivered nothing: cantle runs show {id}"
        ))
        .usage(),
        false => Err(anyhow!("{reason}; not copied: {}", missing.join("\n  "))).internal(),
    }
}

/// Refuses a directory that has files.
fn check_empty(directory: &Path) -> Result<(), Failure> {
    match std::fs::read_dir(directory).map(|mut entries| entries.next().is_none()) {
        Ok(true) => Ok(()),
        Ok(false) => {
            let message = format!(
                "{} has files: name a new or empty directory",
                directory.display()
            );
            Err(anyhow!(message)).usage()
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => {
            let message = format!("{} can't be read", directory.display());
            Err(error).context(message).usage()
        }
    }
}

/// Copies the journal of a run with its media, and those of its sub-agents.
fn copy_journal(run: &KeptRun, directory: &Path) -> anyhow::Result<()> {
    for entry in WalkDir::new(&run.directory) {
        let entry = entry?;
        let to = directory.join(entry.path().strip_prefix(&run.directory)?);
        let kind = entry.file_type();
        let copied = match kind.is_dir() {
            true => std::fs::create_dir_all(&to),
            false if kind.is_file() => std::fs::copy(entry.path(), &to).map(drop),
            false => continue,
        };
        copied.with_context(|| format!("failed to copy {}", entry.path().display()))?;
    }
    Ok(())
}

/// Copies the working directory of a run, or if that is not there any more, the files that are.
async fn export(state: &StateDir, run: &KeptRun, directory: &Path) -> Result<(), Failure> {
    let sandbox = match reattach(run).await {
        Ok(Some(sandbox)) => sandbox,
        Ok(None) => {
            let reason = format!("the working directory of run {} is gone", run.run);
            return export_results(state, run, directory, &reason);
        }
        Err(error) => return export_results(state, run, directory, &format!("{error:#}")),
    };
    // The working directory remains once the sandbox is dropped.
    sandbox.persist().await.internal()?;
    let Unfinished { kept, lost } = Unfinished::export(&*sandbox, directory.to_owned()).await;
    if kept.is_empty() && lost.is_empty() {
        return print("Nothing was copied: the working directory has no files.\n");
    }
    let kept = kept.iter().map(|line| format!("{}\n", clean(line)));
    print(kept.collect::<String>())?;
    if lost.is_empty() {
        return Ok(());
    }
    let lost: Vec<_> = lost.iter().map(|line| clean(line)).collect();
    Err(anyhow!("not copied: {}", lost.join("\n  "))).internal()
}
