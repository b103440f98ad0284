//! A kept run as a file for others: Markdown, events, or a page.
//!
//! Every form is made from a [`RunRecord`], which has no secrets that are known.

mod chart;
mod html;
mod markup;
mod redaction;

use std::collections::BTreeMap;

use anyhow::Context as _;
use cantle::agent::{KeptRun, RunStore};
use cantle::core::content::MediaKind;
use cantle::core::event::Event;
use cantle::core::message::Message;

use self::redaction::Redactor;
use crate::args::TranscriptFormat;
use crate::saved_settings::SavedSettings;
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

/// Returns a run in a format. Blocks.
///
/// # Errors
/// If its journal can't be read.
pub(crate) fn export(
    store: &RunStore,
    mut run: KeptRun,
    format: TranscriptFormat,
) -> anyhow::Result<String> {
    let redactor = Redactor::new(&run);
    let mut events = Vec::new();
    for event in store.events(run.run)? {
        events.push(redactor.redact(event)?);
    }
    run.task = redactor.redact(run.task)?;
    run.error = redactor.redact(run.error)?;
    let record = RunRecord {
        run,
        events,
        redactor,
    };
    match format {
        TranscriptFormat::Markdown => Ok(transcript::markdown(&record.events)),
        TranscriptFormat::Json => record.json_lines(),
        TranscriptFormat::Html => html::page(&record),
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

    /// Returns the images that tools showed to the model, as `data:` addresses by run and call.
    fn images(&self) -> BTreeMap<String, Vec<String>> {
        let mut images: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut left = MAX_ATTACHED_BYTES;
        let mut runs = vec![self.run.clone()];
        while let Some(run) = runs.pop() {
            runs.extend(run.sub_agents());
            let Some(directory) = run.directory.parent() else {
                continue;
            };
            // The conversation of a sub-agent that never began can't be read, and has no images.
            let messages = RunStore::new(directory).conversation(run.run);
            for message in messages.unwrap_or_default() {
                let Message::Tool(message) = message else {
                    continue;
                };
                for media in message.content.media() {
                    let is_image = media.kind() == MediaKind::Image;
                    let url = format!("data:{};base64,{}", media.mime_type(), media.base64());
                    if is_image && url.len() <= left {
                        left -= url.len();
                        let call = format!("{} {}", run.run, message.tool_call_id);
                        images.entry(call).or_default().push(url);
                    }
                }
            }
        }
        images
    }

    /// Returns the changes to the directory that the run worked on (`--workdir`).
    fn patches(&self) -> anyhow::Result<Vec<FilePatch>> {
        let settings = SavedSettings::read(self.run.note.clone()).ok();
        let Some(copy) = settings.and_then(|settings| settings.working_copy) else {
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
