//! `cantle runs` and `cantle gc`: the runs that are kept, and what others left behind.

use std::io::Write as _;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use cantle::agent::{KeptRun, KeptStatus, StoreErrorKind};
use cantle::backends::local::LocalBackend;
use cantle::core::event::RunStatus;
use cantle::core::policy::{Policy, Strictness};
use cantle::core::sandbox::{SandboxContext, SandboxErrorKind};
use serde_json::{Value, json};

use crate::args::{GcArgs, RunsCommand};
use crate::display::{clean, duration, one_line, plural};
use crate::exit::{Failure, FailureExt as _};
use crate::leftovers;
use crate::note::Note;
use crate::place;
use crate::state::State;

/// What is younger may belong to a process that is just starting.
const GRACE: Duration = Duration::from_secs(60);

/// Characters of a task in a list.
const TASK_CHARS: usize = 60;

/// Does what is asked about kept runs.
pub(crate) async fn perform(command: RunsCommand) -> Result<u8, Failure> {
    let state = State::find().usage()?;
    match command {
        RunsCommand::List { json } => list(&state, json),
        RunsCommand::Show { run, json } => {
            let run = state.find_run(&run).usage()?;
            show(&run, json)
        }
        RunsCommand::Rm { runs, finished } => remove(&state, &runs, finished).await,
        // `main` makes a run of it.
        RunsCommand::Resume { .. } => Ok(0),
    }
}

fn list(state: &State, as_json: bool) -> Result<u8, Failure> {
    let (runs, unreadable) = state.runs().list().internal()?;
    let mut text = String::new();
    if as_json {
        let runs: Vec<Value> = runs.iter().map(to_json).collect();
        text = format!("{:#}\n", Value::Array(runs));
    } else {
        for run in &runs {
            text.push_str(&line(run));
        }
        if runs.is_empty() {
            text.push_str("No runs are kept.\n");
        }
    }
    for error in unreadable {
        // The others are shown all the same.
        let _ = writeln!(std::io::stderr(), "cantle: {}", clean(&error.to_string()));
    }
    write(&text)
}

fn line(run: &KeptRun) -> String {
    let task = one_line(&run.task);
    let short: String = task.chars().take(TASK_CHARS).collect();
    let more = if short.len() < task.len() { "…" } else { "" };
    format!(
        "{}  {:13}  {:>9} ago  {:>9}  {short}{more}\n",
        run.run,
        status(run.status),
        duration(age(run.latest)),
        plural(u64::from(run.turns), "turn", "turns"),
    )
}

fn show(run: &KeptRun, as_json: bool) -> Result<u8, Failure> {
    if as_json {
        return write(&format!("{:#}\n", to_json(run)));
    }
    let mut rows = vec![
        ("run", run.run.to_string()),
        ("status", status(run.status).to_owned()),
        ("task", clean(&run.task)),
        ("agent", one_line(&run.agent)),
        ("model", one_line(&run.model)),
        ("turns", run.turns.to_string()),
        ("tokens", run.tokens.to_string()),
    ];
    rows.extend(run.cost_usd.map(|cost| ("cost", format!("${cost:.4}"))));
    rows.extend(run.error.as_ref().map(|error| ("error", clean(error))));
    rows.push(("begun", format!("{} ago", duration(age(run.begun)))));
    rows.push(("latest", format!("{} ago", duration(age(run.latest)))));
    rows.push(("journal", run.directory.display().to_string()));
    if run.status.is_resumable() {
        rows.push(("resume", format!("cantle run --resume {}", run.run)));
    }
    let rows = rows.iter();
    let text: String = rows
        .map(|(name, value)| format!("{name:8} {}\n", value.replace('\n', "\n         ")))
        .collect();
    write(&text)
}

fn to_json(run: &KeptRun) -> Value {
    let seconds = |time: SystemTime| {
        let since = time.duration_since(SystemTime::UNIX_EPOCH);
        since.unwrap_or_default().as_secs_f64()
    };
    json!({
        "run": run.run,
        "status": status(run.status),
        "resumable": run.status.is_resumable(),
        "error": run.error,
        "task": run.task,
        "agent": run.agent,
        "model": run.model,
        "turns": run.turns,
        "tokens": run.tokens,
        "cost_usd": run.cost_usd,
        "begun": seconds(run.begun),
        "latest": seconds(run.latest),
        "directory": run.directory,
    })
}

fn status(status: KeptStatus) -> &'static str {
    match status {
        KeptStatus::Running => "running",
        KeptStatus::Ended(RunStatus::Finished) => "finished",
        KeptStatus::Ended(RunStatus::LimitReached) => "limit_reached",
        KeptStatus::Ended(RunStatus::Cancelled) => "cancelled",
        KeptStatus::Ended(RunStatus::ModelFailed) => "model_failed",
        KeptStatus::Ended(RunStatus::SandboxFailed) => "sandbox_failed",
        KeptStatus::Ended(_) => "internal_error",
        _ => "interrupted",
    }
}

fn age(time: SystemTime) -> Duration {
    SystemTime::now().duration_since(time).unwrap_or_default()
}

async fn remove(state: &State, names: &[String], finished: bool) -> Result<u8, Failure> {
    let mut runs = Vec::new();
    for name in names {
        runs.push(state.find_run(name).usage()?);
    }
    if finished {
        let (all, _) = state.runs().list().internal()?;
        let is_finished = |run: &KeptRun| run.status == KeptStatus::Ended(RunStatus::Finished);
        runs.extend(all.into_iter().filter(is_finished));
    }
    let store = state.runs();
    for run in &runs {
        if run.status == KeptStatus::Running {
            let message = format!("a process works on run {}; end that first", run.run);
            return Err(anyhow::anyhow!(message)).usage();
        }
        let mut all = vec![run.clone()];
        while let Some(run) = all.pop() {
            remove_sandbox(&run).await.internal()?;
            all.extend(run.sub_agents());
        }
        match store.remove(run.run) {
            // It was named twice.
            Err(error) if error.kind() == StoreErrorKind::NotFound => {}
            removed => removed.internal()?,
        }
    }
    write(&format!(
        "{} removed\n",
        plural(runs.len() as u64, "run", "runs")
    ))
}

/// Removes the sandbox that a run left, with its files.
async fn remove_sandbox(run: &KeptRun) -> anyhow::Result<()> {
    let Some(handle) = &run.sandbox else {
        return Ok(());
    };
    // Under the policy that it had: its files may be another user's, whom only that one names.
    let note: Option<Note> = serde_json::from_value(run.note.clone()).ok();
    let mut policy = note.map_or_else(Policy::default, |note| note.policy);
    policy.strictness = Strictness::BestEffort;
    let cx = SandboxContext::new(run.run, policy);
    match place::of(handle)?.reattach(handle, cx).await {
        Ok(sandbox) => Ok(sandbox.close().await?),
        Err(error) if error.kind() == SandboxErrorKind::Gone => Ok(()),
        Err(error) => Err(error).context("the run's working directory can't be removed"),
    }
}

/// Removes what processes left that were killed.
pub(crate) async fn collect(args: GcArgs) -> Result<u8, Failure> {
    let mut places = vec![LocalBackend::new()];
    if let Ok(state) = State::find() {
        let kept = [state.workspaces(), state.served()].into_iter();
        places.extend(
            kept.filter(|directory| directory.is_dir())
                .map(|directory| LocalBackend::new().in_directory(directory)),
        );
    }
    let mut removed = Vec::new();
    let mut problems = Vec::new();
    for backend in places {
        let reclaimed = backend.reclaim(GRACE).await;
        removed.extend(reclaimed.removed);
        problems.extend(reclaimed.failed);
    }
    if let Ok(state) = State::find() {
        leftovers::collect(&state, GRACE, &mut removed, &mut problems).await;
    }
    let shown = |path: PathBuf| path.display().to_string();
    let directories = removed.len() as u64;
    let mut removed: Vec<String> = removed.into_iter().map(shown).collect();
    let mut problems: Vec<(String, String)> = problems
        .into_iter()
        .map(|(path, error)| (shown(path), error))
        .collect();
    // Where no engine answers, nothing of ours is on it that could be asked for.
    let containers = place::containers().reclaim().await.unwrap_or_default();
    let container_count = containers.removed.len() as u64;
    removed.extend(containers.removed);
    problems.extend(containers.failed);
    let mut text = String::new();
    if args.verbose {
        for name in &removed {
            text.push_str(&format!("{}\n", one_line(name)));
        }
    }
    for (name, error) in &problems {
        let line = format!("{name}: {error}");
        let _ = writeln!(std::io::stderr(), "cantle: {}", clean(&line));
    }
    text.push_str(&plural(directories, "directory", "directories"));
    if container_count > 0 {
        text.push_str(&format!(
            " and {}",
            plural(container_count, "container", "containers")
        ));
    }
    text.push_str(" removed\n");
    write(&text)?;
    Ok(u8::from(!problems.is_empty()))
}

fn write(text: &str) -> Result<u8, Failure> {
    match std::io::stdout().write_all(text.as_bytes()) {
        // A reader that goes away has read enough.
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(error).context("failed to write the result").internal()
        }
        _ => Ok(0),
    }
}
