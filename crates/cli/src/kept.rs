//! What is left of a run that did not finish: its conversation and its files, so that another run can
//! go on from there. Only where there is an output directory to leave it in.

use std::collections::VecDeque;
use std::path::Path;

use anyhow::{Context as _, bail};
use cantle::agent::Outcome;
use cantle::core::message::{Message, history};
use cantle::core::sandbox::{FileKind, Sandbox, SandboxExt as _, SandboxPath};

use crate::display::{plural, size};
use crate::record;

const HISTORY: &str = "cantle-history.json";
const FILES: &str = "cantle-unfinished";

/// More than this is not copied out: the run is over, and somebody waits.
const MAX_FILES: usize = 20_000;
const MAX_BYTES: u64 = 1_000_000_000;

/// Keeps what can be kept, and says what that is, a line each.
pub(crate) async fn keep(
    outcome: &Outcome,
    sandbox: Option<&dyn Sandbox>,
    output_dir: Option<&Path>,
) -> Vec<String> {
    // Before the model's first turn there was nothing but the task.
    let answered = |message: &Message| matches!(message, Message::Assistant(_));
    if !outcome.history.iter().any(|message| answered(message)) {
        return Vec::new();
    }
    let Some(output_dir) = output_dir else {
        let nothing = "nothing: with --output-dir, the conversation and the files would be";
        return vec![nothing.to_owned()];
    };
    let mut kept = Vec::new();
    let conversation = output_dir.join(HISTORY);
    match keep_history(outcome, &conversation) {
        Ok(()) => kept.push(format!(
            "{}: the conversation; --history goes on from it",
            conversation.display()
        )),
        Err(error) => kept.push(format!("not the conversation: {error:#}")),
    }
    if let Some(sandbox) = sandbox.filter(|_| !outcome.ledger.tools.is_empty()) {
        let files = output_dir.join(FILES);
        match keep_files(sandbox, &files).await {
            Ok((0, _)) => {}
            Ok((count, bytes)) => kept.push(format!(
                "{}/: the working directory, {}, {}; --input brings it back",
                files.display(),
                plural(count, "file", "files"),
                size(bytes)
            )),
            Err(error) => kept.push(format!("not the files: {error:#}")),
        }
    }
    kept
}

fn keep_history(outcome: &Outcome, path: &Path) -> anyhow::Result<()> {
    let messages: Vec<Message> = outcome
        .history
        .iter()
        .map(|message| (**message).clone())
        .collect();
    record::write_whole(path, &history::to_json(&messages)?)
}

/// Copies the regular files of the working directory out. Returns how many, and how large.
async fn keep_files(sandbox: &dyn Sandbox, directory: &Path) -> anyhow::Result<(u64, u64)> {
    let mut paths = Vec::new();
    let mut bytes = 0_u64;
    let mut directories = VecDeque::from([SandboxPath::working_directory()]);
    while let Some(above) = directories.pop_front() {
        for entry in sandbox.list(&above).await? {
            let path = above.join(entry.path.relative_bytes())?;
            match entry.kind {
                FileKind::Directory => directories.push_back(path),
                FileKind::File => {
                    bytes = bytes.saturating_add(entry.size_bytes);
                    paths.push(path.to_string());
                }
                FileKind::Symlink | FileKind::Other => {}
            }
        }
        if paths.len() > MAX_FILES || bytes > MAX_BYTES {
            let limit = size(MAX_BYTES);
            bail!("there are more than {MAX_FILES} of them, or more than {limit}");
        }
    }
    if paths.is_empty() {
        return Ok((0, 0));
    }
    match std::fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error)
                .with_context(|| format!("failed to replace {}", directory.display()));
        }
        _ => {}
    }
    let saved = sandbox.save_outputs(&paths, directory).await?.saved;
    Ok((
        saved.len() as u64,
        saved.iter().map(|file| file.size_bytes).sum(),
    ))
}
