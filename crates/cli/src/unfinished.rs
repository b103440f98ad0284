//! The history and the files of a run that did not finish.
//!
//! They are saved in the output directory, so that another run can continue from them, or the same one, which
//! removes them when it finishes. The sandbox is closed afterwards, so what could not be saved is reported with the reason.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use cantle::agent::Outcome;
use cantle::core::ids::RunId;
use cantle::core::message::{Message, history};
use cantle::core::sandbox::{
    FileInfo, FileKind, Sandbox, SandboxErrorKind, SandboxExt as _, SandboxPath,
};

use crate::result_file;
use crate::state_dir::removed;
use crate::text::{one_line, plural, size};
use crate::trust::read_regular;

pub(crate) const HISTORY: &str = "cantle-history.json";
pub(crate) const FILES: &str = "cantle-unfinished";

/// The file that names the run which left the others.
const OWNER: &str = ".cantle-unfinished";

// The run is over and the user waits, so large working directories are saved in part.
const MAX_FILES: usize = 20_000;
const MAX_BYTES: u64 = 1_000_000_000;

/// Number of lost files that are listed.
const MAX_LOST_LISTED: usize = 8;

/// The saved and the lost parts of an unfinished run, a line each.
#[derive(Debug, Default)]
pub(crate) struct Unfinished {
    pub(crate) kept: Vec<String>,
    pub(crate) lost: Vec<String>,
}

impl Unfinished {
    /// Saves the history and the working directory as far as possible.
    pub(crate) async fn save(
        outcome: &Outcome,
        sandbox: Option<&dyn Sandbox>,
        output_dir: Option<&Path>,
        is_resumable: bool,
    ) -> Self {
        let mut unfinished = Self::default();
        // Before the model's first answer there is nothing but the task.
        let is_answer = |message: &Message| matches!(message, Message::Assistant(_));
        if !outcome.history.iter().any(|message| is_answer(message)) {
            return unfinished;
        }
        if is_resumable {
            let line = format!(
                "everything; resume with: cantle run --resume {}",
                outcome.run
            );
            unfinished.kept.push(line);
        }
        let Some(output_dir) = output_dir else {
            if !is_resumable {
                let line = "nothing; --output-dir would keep the conversation and the files";
                unfinished.kept.push(line.to_owned());
            }
            return unfinished;
        };
        // Without it, they are not removed.
        let _ = result_file::write_atomically(
            &output_dir.join(OWNER),
            outcome.run.to_string().as_bytes(),
        );
        let path = output_dir.join(HISTORY);
        match save_history(outcome, &path) {
            Ok(()) => unfinished.kept.push(format!(
                "{}: the conversation; continue it with --history",
                path.display()
            )),
            Err(error) => unfinished.lost.push(format!("the conversation: {error:#}")),
        }
        if let Some(sandbox) = sandbox.filter(|_| !outcome.ledger.tools.is_empty()) {
            unfinished.copy(sandbox, output_dir.join(FILES), true).await;
        }
        unfinished
    }

    /// Copies the files of a sandbox's working directory into a directory.
    pub(crate) async fn export(sandbox: &dyn Sandbox, to: PathBuf) -> Self {
        let mut unfinished = Self::default();
        unfinished.copy(sandbox, to, false).await;
        unfinished
    }

    async fn copy(&mut self, sandbox: &dyn Sandbox, to: PathBuf, replaces: bool) {
        let mut copy = WorkingDirectoryCopy {
            sandbox,
            to,
            replaces,
            files: 0,
            size_bytes: 0,
            lost: Vec::new(),
        };
        let ended = copy.run().await;
        copy.report(ended, self);
    }

    /// Removes what a run left in the output directory before it was resumed.
    pub(crate) fn remove(output_dir: &Path, run: RunId) -> anyhow::Result<()> {
        let owner = output_dir.join(OWNER);
        let is_own = read_regular(&owner)
            .is_ok_and(|read| read.is_some_and(|(text, _)| text == run.to_string()));
        if !is_own {
            return Ok(());
        }
        remove_earlier(&output_dir.join(FILES))?;
        for file in [output_dir.join(HISTORY), owner] {
            let failed = || format!("failed to remove {}", file.display());
            removed(std::fs::remove_file(&file)).with_context(failed)?;
        }
        Ok(())
    }
}

fn save_history(outcome: &Outcome, path: &Path) -> anyhow::Result<()> {
    let messages: Vec<Message> = outcome
        .history
        .iter()
        .map(|message| (**message).clone())
        .collect();
    result_file::write_atomically(path, &history::to_json(&messages)?)
}

/// A copy of the regular files in the working directory.
///
/// It proceeds breadth first: if there are too many files, the deepest ones are most likely
/// installed packages.
struct WorkingDirectoryCopy<'a> {
    sandbox: &'a dyn Sandbox,
    to: PathBuf,
    /// Whether the first file removes those of an earlier run.
    replaces: bool,
    files: usize,
    size_bytes: u64,
    /// Files that could not be copied, and why.
    lost: Vec<(SandboxPath, String)>,
}

impl WorkingDirectoryCopy<'_> {
    /// Copies files until all are copied, a limit is reached or the sandbox is gone.
    async fn run(&mut self) -> anyhow::Result<()> {
        let mut directories = VecDeque::from([SandboxPath::working_directory()]);
        while let Some(directory) = directories.pop_front() {
            let mut entries = match self.sandbox.list(&directory).await {
                Ok(entries) => entries,
                Err(error) if directory.is_base() || error.kind() == SandboxErrorKind::Gone => {
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
                    bail!("at most {MAX_FILES} files are copied");
                }
                let path = directory.join(entry.path.relative_bytes())?;
                let reason = match entry.kind {
                    FileKind::Directory => {
                        directories.push_back(path);
                        continue;
                    }
                    FileKind::File => match self.copy(&path, &entry).await? {
                        Ok(()) => continue,
                        Err(reason) => reason,
                    },
                    FileKind::Symlink => "it is a link".to_owned(),
                    FileKind::Other => "it is a pipe, socket or device".to_owned(),
                };
                self.lost.push((path, reason));
            }
        }
        Ok(())
    }

    /// Copies a file; returns why it is lost otherwise.
    async fn copy(
        &mut self,
        path: &SandboxPath,
        info: &FileInfo,
    ) -> anyhow::Result<Result<(), String>> {
        if self.size_bytes.saturating_add(info.size_bytes) > MAX_BYTES {
            let (own, limit) = (size(info.size_bytes), size(MAX_BYTES));
            let reason = format!("its {own} would exceed the total of {limit}");
            return Ok(Err(reason));
        }
        if std::mem::take(&mut self.replaces) {
            remove_earlier(&self.to)?;
        }
        let to = self.to.join(OsStr::from_bytes(path.relative_bytes()));
        if let Err(error) = std::fs::create_dir_all(to.parent().unwrap_or(&self.to)) {
            return Ok(Err(error.to_string()));
        }
        match self.sandbox.download(path, &to).await {
            Ok(size_bytes) => {
                self.files += 1;
                self.size_bytes = self.size_bytes.saturating_add(size_bytes);
                Ok(Ok(()))
            }
            Err(error) if error.kind() == SandboxErrorKind::Gone => Err(error.into()),
            Err(error) => Ok(Err(error.to_string())),
        }
    }

    fn report(self, ended: anyhow::Result<()>, unfinished: &mut Unfinished) {
        if self.files > 0 {
            unfinished.kept.push(format!(
                "{}/: the working directory, {}, {}; pass it with --input",
                self.to.display(),
                plural(self.files as u64, "file", "files"),
                size(self.size_bytes)
            ));
        }
        let listed = self.lost.iter().take(MAX_LOST_LISTED);
        let listed = listed.map(|(path, reason)| one_line(&format!("{path}: {reason}")));
        unfinished.lost.extend(listed);
        if let Some(more @ 1..) = self.lost.len().checked_sub(MAX_LOST_LISTED) {
            unfinished.lost.push(format!("{more} more files"));
        }
        if let Err(error) = ended {
            let which = if self.files == 0 { "the" } else { "the other" };
            unfinished.lost.push(format!("{which} files: {error:#}"));
        }
    }
}

/// Removes the files of an earlier run.
fn remove_earlier(directory: &Path) -> anyhow::Result<()> {
    removed(std::fs::remove_dir_all(directory))
        .with_context(|| format!("failed to replace {}", directory.display()))
}
