//! A kept run as a file for others: Markdown, events, a page, or a format of other programs.
//!
//! Every form is made from a [`RunRecord`] or a [`Trajectory`], which have no secrets that are known.

mod atif;
mod chart;
mod content;
mod fine_tuning;
mod html;
mod inspect;
mod markup;
mod page_data;
mod redaction;

use std::collections::BTreeMap;

use anyhow::Context as _;
use cantle::agent::{KeptRun, KeptStatus, RunStore, Trajectory};
use cantle::core::event::{Event, RunStatus};
use cantle::core::message;
use cantle::core::secret::SecretText;
use cantle::core::tool::ToolSpec;

pub(crate) use self::redaction::Redactor;
use crate::args::TranscriptFormat;
use crate::messages::warn;
use crate::saved_settings;
use crate::text::one_line;
use crate::transcript;

/// Maximum size of all patches and of all images in an export.
const MAX_ATTACHED_BYTES: usize = 32 << 20;

/// All of a kept run that an export shows, without known secrets.
struct RunRecord {
    run: KeptRun,
    events: Vec<Event>,
    redactor: Redactor,
}

/// Returns a run in a format, without these values of variables and those that the environment has. Blocks.
///
/// Names on standard error the variables of the run that have no value here.
///
/// # Errors
/// If its journal can't be read.
pub(crate) fn export(
    store: &RunStore,
    run: KeptRun,
    format: TranscriptFormat,
    values: &BTreeMap<String, SecretText>,
) -> anyhow::Result<String> {
    let redactor = Redactor::new(&run, values);
    if let Some(names) = redactor.unknown() {
        warn(&format!(
            "the values of {names} are not known here, so they are not redacted; set them to have them redacted"
        ));
    }
    let as_trajectory = |write: fn(&Trajectory) -> String| {
        let trajectory = store.trajectory(run.clone())?;
        anyhow::Ok(write(&redact_trajectory(trajectory, &redactor)?))
    };
    match format {
        TranscriptFormat::Atif => as_trajectory(|it| format!("{:#}\n", atif::document(it))),
        TranscriptFormat::Inspect => as_trajectory(|it| format!("{:#}\n", inspect::log(it))),
        TranscriptFormat::FineTuning => as_trajectory(fine_tuning::lines),
        TranscriptFormat::Markdown => {
            Ok(transcript::markdown(&record(store, run, redactor)?.events))
        }
        TranscriptFormat::Json => record(store, run, redactor)?.json_lines(),
        TranscriptFormat::Html => html::page(&record(store, run, redactor)?),
    }
}

/// Returns the conversation of a run as a history, without these values of variables and those that the environment has.
/// Blocks.
///
/// # Errors
/// If its journal can't be read.
pub(crate) fn history(
    store: &RunStore,
    run: &KeptRun,
    values: &BTreeMap<String, SecretText>,
) -> anyhow::Result<Vec<u8>> {
    let redactor = Redactor::new(run, values);
    let messages = store.conversation(run.run)?.into_iter();
    let redacted: Vec<_> = messages
        .map(|message| redactor.redact(message))
        .collect::<Result<_, _>>()?;
    Ok(message::history::to_json(&redacted)?)
}

/// Reads the events of a run.
fn record(store: &RunStore, mut run: KeptRun, redactor: Redactor) -> anyhow::Result<RunRecord> {
    let mut events = Vec::new();
    for event in store.events(run.run)? {
        events.push(redactor.redact(event)?);
    }
    redact_run(&mut run, &redactor)?;
    Ok(RunRecord {
        run,
        events,
        redactor,
    })
}

fn redact_run(run: &mut KeptRun, redactor: &Redactor) -> anyhow::Result<()> {
    run.task = redactor.redact(std::mem::take(&mut run.task))?;
    run.error = redactor.redact(run.error.take())?;
    Ok(())
}

fn redact_trajectory(mut it: Trajectory, redactor: &Redactor) -> anyhow::Result<Trajectory> {
    redact_run(&mut it.run, redactor)?;
    for message in it.conversations.iter_mut().flatten() {
        *message = redactor.redact(message.clone())?;
    }
    for tool in &mut it.tools {
        let description = redactor.redact(tool.description().to_owned())?;
        let parameters = redactor.redact(tool.parameters().clone())?;
        *tool = ToolSpec::new(tool.name(), description, parameters);
    }
    let sub_agents = it.sub_agents.into_iter();
    let sub_agents = sub_agents.map(|sub_agent| redact_trajectory(sub_agent, redactor));
    it.sub_agents = sub_agents.collect::<anyhow::Result<_>>()?;
    Ok(it)
}

/// Returns the name of a status in JSON.
pub(crate) fn status_name(status: KeptStatus) -> &'static str {
    match status {
        KeptStatus::Running => "running",
        KeptStatus::Ended(RunStatus::Finished) => "finished",
        KeptStatus::Ended(RunStatus::AnsweredInText) => "answered_in_text",
        KeptStatus::Ended(RunStatus::LimitReached) => "limit_reached",
        KeptStatus::Ended(RunStatus::Cancelled) => "cancelled",
        KeptStatus::Ended(RunStatus::ModelFailed) => "model_failed",
        KeptStatus::Ended(RunStatus::SandboxFailed) => "sandbox_failed",
        KeptStatus::Ended(_) => "internal_error",
        _ => "interrupted",
    }
}

/// The difference that a run made to a file.
#[derive(serde::Serialize, serde::Deserialize)]
struct FilePatch {
    path: String,
    added: usize,
    removed: usize,
    patch: String,
}

impl RunRecord {
    fn json_lines(&self) -> anyhow::Result<String> {
        let lines = self.events.iter().map(|event| {
            let line = serde_json::to_string(event)?;
            Ok(line + "\n")
        });
        lines.collect()
    }

    /// Returns the images of tasks and of results, as `data:` addresses: by run, or by run and call.
    fn images(&self) -> BTreeMap<String, Vec<String>> {
        let mut images: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut left = MAX_ATTACHED_BYTES;
        let mut runs = vec![self.run.clone()];
        while let Some(run) = runs.pop() {
            runs.extend(run.sub_agents().0);
            let Some(directory) = run.directory.parent() else {
                continue;
            };
            // The journal of a sub-agent that never began can't be read, and has no images.
            let of_run = RunStore::new(directory).images(run.run);
            for (call, image) in of_run.unwrap_or_default() {
                let url = content::data_url(&image);
                if url.len() <= left {
                    left -= url.len();
                    let call = call.map_or_else(String::new, |call| format!(" {call}"));
                    let key = format!("{}{call}", run.run);
                    images.entry(key).or_default().push(url);
                }
            }
        }
        images
    }

    /// Returns the changes to the directory that the run worked on (`--workdir`).
    fn patches(&self) -> anyhow::Result<Vec<FilePatch>> {
        let Some(copy) = saved_settings::working_copy(&self.run) else {
            return Ok(Vec::new());
        };
        let Some(changes) = copy.changes()? else {
            return Ok(Vec::new());
        };
        let mut patches = Vec::new();
        let mut left = MAX_ATTACHED_BYTES;
        for file in copy.diff(&changes).context("failed to read the changes")? {
            let patch = String::from_utf8_lossy(&copy.patch(&file)?).into_owned();
            let patch = match left.checked_sub(patch.len()) {
                Some(rest) => {
                    left = rest;
                    patch
                }
                None => "The patch is too large for this page.".to_owned(),
            };
            patches.push(self.redactor.redact(FilePatch {
                path: one_line(&file.change.path),
                added: file.added_lines,
                removed: file.removed_lines,
                patch,
            })?);
        }
        Ok(patches)
    }
}
