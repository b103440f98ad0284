//! The files of the demo: which of a directory are copied into the sandbox, and which are not.

use std::fmt::Write as _;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use cantle::agent::Session;
use cantle::core::sandbox::{SandboxErrorKind, SandboxExt as _, SandboxPath};

use crate::display::{plural, size};
use crate::exit::{Code, Failure, FailureExt as _};

const MAX_FILES: u64 = 20_000;
const MAX_BYTES: u64 = 100_000_000;

/// Directories that others fill and nobody wants surveyed.
const LEFT_OUT: [&str; 3] = [".git", "node_modules", "target"];

/// What is to be copied of a directory.
#[derive(Debug)]
pub(super) struct Survey {
    root: PathBuf,
    directories: Vec<SandboxPath>,
    files: Vec<(PathBuf, SandboxPath)>,
    bytes: u64,
    /// Paths of the directories that are left out.
    left_out: Vec<String>,
    /// Links, pipes and the like.
    special: u64,
    /// What can't be read.
    unreadable: u64,
}

impl Survey {
    /// Looks through `root`. Reads directories, so it blocks.
    pub(super) fn of(root: &Path, output_dir: &Path) -> anyhow::Result<Self> {
        let metadata =
            std::fs::metadata(root).with_context(|| format!("{} can't be read", root.display()))?;
        if !metadata.is_dir() {
            bail!("{} is not a directory; give one to survey", root.display());
        }
        let output = std::fs::metadata(output_dir).ok().map(|it| identity(&it));
        let mut survey = Self {
            root: root.to_owned(),
            directories: Vec::new(),
            files: Vec::new(),
            bytes: 0,
            left_out: Vec::new(),
            special: 0,
            unreadable: 0,
        };
        let mut waiting = vec![(root.to_owned(), SandboxPath::working_directory())];
        while let Some((directory, to)) = waiting.pop() {
            let entries = match std::fs::read_dir(&directory) {
                Ok(entries) => entries,
                Err(error) if to.is_start() => {
                    return Err(error).with_context(|| format!("{} can't be read", root.display()));
                }
                Err(_) => {
                    survey.unreadable += 1;
                    continue;
                }
            };
            for entry in entries {
                let Ok((entry, metadata)) = entry.and_then(|entry| {
                    let metadata = entry.metadata()?;
                    Ok((entry, metadata))
                }) else {
                    survey.unreadable += 1;
                    continue;
                };
                let to = to.join(entry.file_name().as_encoded_bytes())?;
                if metadata.is_dir() {
                    let name = entry.file_name();
                    let skipped = LEFT_OUT.iter().any(|skipped| name == *skipped);
                    if skipped || output == Some(identity(&metadata)) {
                        survey.left_out.push(to.to_string());
                    } else {
                        survey.directories.push(to.clone());
                        waiting.push((entry.path(), to));
                    }
                } else if metadata.is_file() {
                    survey.bytes = survey.bytes.saturating_add(metadata.len());
                    survey.files.push((entry.path(), to));
                } else {
                    survey.special += 1;
                }
            }
            survey.check_limits()?;
        }
        survey.left_out.sort();
        Ok(survey)
    }

    fn check_limits(&self) -> anyhow::Result<()> {
        if self.files.len() as u64 > MAX_FILES || self.bytes > MAX_BYTES {
            bail!(
                "{} is too large for the demo, which copies at most {MAX_FILES} files and {} ({} and {} \
                 were counted so far). Give it a smaller directory: cantle demo PATH",
                self.root.display(),
                size(MAX_BYTES),
                plural(self.files.len() as u64, "file", "files"),
                size(self.bytes),
            );
        }
        Ok(())
    }

    /// Copies everything into the session's sandbox. Returns what to tell about it.
    pub(super) async fn copy(&self, session: &Session) -> Result<String, Failure> {
        let Some(sandbox) = session.sandbox() else {
            return Err(Failure::new(
                Code::Internal,
                anyhow::anyhow!("there is no sandbox"),
            ));
        };
        for directory in &self.directories {
            sandbox.mkdir(directory).await.internal()?;
        }
        let mut unreadable = self.unreadable;
        for (from, to) in &self.files {
            match sandbox.upload(from, to).await {
                Ok(uploaded) => unreadable += uploaded.refused.len() as u64,
                Err(error) if error.kind() == SandboxErrorKind::StorageFull => {
                    return Err(error).context("the files don't fit").internal();
                }
                Err(error) if error.kind() == SandboxErrorKind::Gone => {
                    return Err(Failure::new(Code::Sandbox, error));
                }
                // It went away since, or it is not ours to read.
                Err(_) => unreadable += 1,
            }
        }
        Ok(self.summary(unreadable))
    }

    fn summary(&self, unreadable: u64) -> String {
        let copied = (self.files.len() as u64).saturating_sub(unreadable - self.unreadable);
        let mut text = format!(
            "Copied {} ({}) of {}",
            plural(copied, "file", "files"),
            size(self.bytes),
            self.root.display()
        );
        let mut rest: Vec<String> = self.left_out.iter().take(5).cloned().collect();
        if let Some(more @ 1..) = self.left_out.len().checked_sub(5) {
            rest.push(plural(
                more as u64,
                "more such directory",
                "more such directories",
            ));
        }
        if self.special > 0 {
            rest.push(plural(
                self.special,
                "link or special file",
                "links and special files",
            ));
        }
        if unreadable > 0 {
            rest.push(plural(unreadable, "unreadable entry", "unreadable entries"));
        }
        if !rest.is_empty() {
            let _ = write!(text, "; left out: {}", rest.join(", "));
        }
        text
    }
}

/// What tells one directory of this machine from another, by whatever path it is reached.
fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}
