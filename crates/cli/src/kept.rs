//! What is left of a run that did not finish: its conversation and its files, so that another run can
//! go on from there. Only where there is an output directory to leave it in. The sandbox is gone
//! afterwards, so what could not be kept is said, with its reason.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use cantle::agent::Outcome;
use cantle::core::message::{Message, history};
use cantle::core::sandbox::{
    FileInfo, FileKind, Sandbox, SandboxErrorKind, SandboxExt as _, SandboxPath,
};

use crate::display::{one_line, plural, size};
use crate::record;

const HISTORY: &str = "cantle-history.json";
const FILES: &str = "cantle-unfinished";

/// More than this is not copied out: the run is over, and somebody waits.
const MAX_FILES: usize = 20_000;
const MAX_BYTES: u64 = 1_000_000_000;

/// Files that are lost and named one by one.
const LOST_NAMED: usize = 8;

/// What was kept of a run and what is lost, a line each.
#[derive(Debug, Default)]
pub(crate) struct Remains {
    pub(crate) kept: Vec<String>,
    pub(crate) lost: Vec<String>,
}

/// Keeps what can be kept.
pub(crate) async fn keep(
    outcome: &Outcome,
    sandbox: Option<&dyn Sandbox>,
    output_dir: Option<&Path>,
    resumable: bool,
) -> Remains {
    let mut remains = Remains::default();
    // Before the model's first turn there was nothing but the task.
    let answered = |message: &Message| matches!(message, Message::Assistant(_));
    if !outcome.history.iter().any(|message| answered(message)) {
        return remains;
    }
    if resumable {
        let line = format!("all of it: cantle run --resume {} goes on", outcome.run);
        remains.kept.push(line);
    }
    let Some(output_dir) = output_dir else {
        if !resumable {
            let nothing = "nothing: with --output-dir, the conversation and the files would be";
            remains.kept.push(nothing.to_owned());
        }
        return remains;
    };
    let conversation = output_dir.join(HISTORY);
    match keep_history(outcome, &conversation) {
        Ok(()) => remains.kept.push(format!(
            "{}: the conversation; --history goes on from it",
            conversation.display()
        )),
        Err(error) => remains.lost.push(format!("the conversation: {error:#}")),
    }
    if let Some(sandbox) = sandbox.filter(|_| !outcome.ledger.tools.is_empty()) {
        let mut copies = Copies::new(sandbox, output_dir.join(FILES));
        let ended = copies.make().await;
        copies.tell(ended, &mut remains);
    }
    remains
}

fn keep_history(outcome: &Outcome, path: &Path) -> anyhow::Result<()> {
    let messages: Vec<Message> = outcome
        .history
        .iter()
        .map(|message| (**message).clone())
        .collect();
    record::write_whole(path, &history::to_json(&messages)?)
}

/// Copies of the working directory's regular files, the outermost first: where there are too many,
/// those deep down are rather what somebody installed.
struct Copies<'a> {
    sandbox: &'a dyn Sandbox,
    to: PathBuf,
    files: usize,
    size_bytes: u64,
    /// What could not be copied, each with its reason.
    lost: Vec<(SandboxPath, String)>,
}

impl<'a> Copies<'a> {
    fn new(sandbox: &'a dyn Sandbox, to: PathBuf) -> Self {
        Self {
            sandbox,
            to,
            files: 0,
            size_bytes: 0,
            lost: Vec::new(),
        }
    }

    /// Copies one file after the other. Fails where there is no going on.
    async fn make(&mut self) -> anyhow::Result<()> {
        let mut directories = VecDeque::from([SandboxPath::working_directory()]);
        while let Some(directory) = directories.pop_front() {
            let mut entries = match self.sandbox.list(&directory).await {
                Ok(entries) => entries,
                Err(error) if directory.is_start() || error.kind() == SandboxErrorKind::Gone => {
                    return Err(error.into());
                }
                Err(error) => {
                    self.lost.push((directory, error.to_string()));
                    continue;
                }
            };
            entries.sort_by(|a, b| a.path.cmp(&b.path));
            for entry in entries {
                if self.files + self.lost.len() >= MAX_FILES {
                    bail!("at most {MAX_FILES} are copied");
                }
                let path = directory.join(entry.path.relative_bytes())?;
                match entry.kind {
                    FileKind::Directory => directories.push_back(path),
                    FileKind::File => self.file(path, &entry).await?,
                    FileKind::Symlink => self.lost.push((path, "it is a link".to_owned())),
                    FileKind::Other => {
                        let reason = "it is a pipe, socket or device";
                        self.lost.push((path, reason.to_owned()));
                    }
                }
            }
        }
        Ok(())
    }

    async fn file(&mut self, path: SandboxPath, info: &FileInfo) -> anyhow::Result<()> {
        if self.size_bytes.saturating_add(info.size_bytes) > MAX_BYTES {
            let (own, limit) = (size(info.size_bytes), size(MAX_BYTES));
            let reason = format!("with its {own}, there would be more than {limit}");
            self.lost.push((path, reason));
            return Ok(());
        }
        if self.files == 0 {
            make_way(&self.to)?;
        }
        let to = self.to.join(OsStr::from_bytes(path.relative_bytes()));
        let directory = to.parent().unwrap_or(&self.to);
        if let Err(error) = std::fs::create_dir_all(directory) {
            self.lost.push((path, error.to_string()));
            return Ok(());
        }
        match self.sandbox.download(&path, &to).await {
            Ok(size_bytes) => {
                self.files += 1;
                self.size_bytes = self.size_bytes.saturating_add(size_bytes);
            }
            Err(error) if error.kind() == SandboxErrorKind::Gone => return Err(error.into()),
            Err(error) => self.lost.push((path, error.to_string())),
        }
        Ok(())
    }

    /// Says what came of it.
    fn tell(self, ended: anyhow::Result<()>, remains: &mut Remains) {
        if self.files > 0 {
            remains.kept.push(format!(
                "{}/: the working directory, {}, {}; --input brings it back",
                self.to.display(),
                plural(self.files as u64, "file", "files"),
                size(self.size_bytes)
            ));
        }
        let named = self.lost.iter().take(LOST_NAMED);
        let named = named.map(|(path, reason)| one_line(&format!("{path}: {reason}")));
        remains.lost.extend(named);
        if let Some(more @ 1..) = self.lost.len().checked_sub(LOST_NAMED) {
            remains.lost.push(format!("{more} more such files"));
        }
        if let Err(error) = ended {
            let all = if self.files == 0 {
                "the files"
            } else {
                "the other files"
            };
            remains.lost.push(format!("{all}: {error:#}"));
        }
    }
}

/// Removes what an earlier run left there.
fn make_way(directory: &Path) -> anyhow::Result<()> {
    match std::fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("failed to replace {}", directory.display()))
        }
        _ => Ok(()),
    }
}
