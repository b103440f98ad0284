//! The files of a directory that the demo copies into its sandbox.

use std::fmt::Write as _;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use cantle::agent::Session;
use cantle::core::sandbox::{SandboxErrorKind, SandboxExt as _, SandboxPath};
use walkdir::WalkDir;

use crate::exit::{Code, Failure, FailureExt as _};
use crate::text::{plural, size};

const MAX_FILES: u64 = 20_000;
const MAX_BYTES: u64 = 100_000_000;

/// Names of directories with generated or third-party files.
const EXCLUDED: [&str; 3] = [".git", "node_modules", "target"];

/// The content of a directory that is to be copied.
#[derive(Debug)]
pub(super) struct Survey {
    root: PathBuf,
    directories: Vec<SandboxPath>,
    files: Vec<(PathBuf, SandboxPath)>,
    bytes: u64,
    /// Directories that are not copied.
    excluded: Vec<String>,
    /// Number of links, pipes and other special files.
    special: u64,
    /// Number of entries that can't be read.
    unreadable: u64,
}

impl Survey {
    /// Surveys the tree below `root`. Blocks.
    pub(super) fn of(root: &Path, output_dir: &Path) -> anyhow::Result<Self> {
        let metadata = std::fs::metadata(root)
            .with_context(|| format!("failed to read {}", root.display()))?;
        if !metadata.is_dir() {
            bail!("{} is not a directory", root.display());
        }
        let output = std::fs::metadata(output_dir).ok().map(|it| identity(&it));
        let mut survey = Self {
            root: root.to_owned(),
            directories: Vec::new(),
            files: Vec::new(),
            bytes: 0,
            excluded: Vec::new(),
            special: 0,
            unreadable: 0,
        };
        let mut entries = WalkDir::new(root).sort_by_file_name().into_iter();
        while let Some(entry) = entries.next() {
            let (entry, metadata) = match entry.and_then(|it| it.metadata().map(|meta| (it, meta)))
            {
                Ok(entry) => entry,
                Err(error) if error.depth() == 0 => {
                    return Err(error)
                        .with_context(|| format!("failed to read {}", root.display()));
                }
                Err(_) => {
                    survey.unreadable += 1;
                    continue;
                }
            };
            if entry.depth() == 0 {
                continue;
            }
            let path = entry.path().strip_prefix(root).unwrap_or(entry.path());
            let to = SandboxPath::new(path.as_os_str().as_encoded_bytes())?;
            if metadata.is_dir() {
                let is_excluded = EXCLUDED.iter().any(|name| entry.file_name() == *name);
                if is_excluded || output == Some(identity(&metadata)) {
                    survey.excluded.push(to.to_string());
                    entries.skip_current_dir();
                } else {
                    survey.directories.push(to);
                }
            } else if metadata.is_file() {
                survey.bytes = survey.bytes.saturating_add(metadata.len());
                survey.files.push((entry.into_path(), to));
                survey.check_limits()?;
            } else {
                survey.special += 1;
            }
        }
        survey.excluded.sort();
        Ok(survey)
    }

    fn check_limits(&self) -> anyhow::Result<()> {
        if self.files.len() as u64 > MAX_FILES || self.bytes > MAX_BYTES {
            bail!(
                "{} is too large for the demo, which copies at most {MAX_FILES} files and {} (counted so far: \
                 {}, {}). Name a smaller directory: cantle demo PATH",
                self.root.display(),
                size(MAX_BYTES),
                plural(self.files.len() as u64, "file", "files"),
                size(self.bytes),
            );
        }
        Ok(())
    }

    /// Copies the files into the session's sandbox, and returns a summary for the user.
    pub(super) async fn copy(&self, session: &Session) -> Result<String, Failure> {
        let sandbox = session.sandbox();
        let sandbox = sandbox.context("the session has no sandbox").internal()?;
        for directory in &self.directories {
            sandbox.mkdir(directory).await.internal()?;
        }
        let mut unreadable = self.unreadable;
        for (from, to) in &self.files {
            match sandbox.upload(from, to).await {
                Ok(uploaded) => unreadable += uploaded.refused.len() as u64,
                Err(error) if error.kind() == SandboxErrorKind::StorageFull => {
                    return Err(error)
                        .context("the sandbox has no space for the files")
                        .internal();
                }
                Err(error) if error.kind() == SandboxErrorKind::Gone => {
                    return Err(Failure::new(Code::Sandbox, error));
                }
                // It was removed since the survey, or this user may not read it.
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
        let mut omitted: Vec<String> = self.excluded.iter().take(5).cloned().collect();
        if let Some(more @ 1..) = self.excluded.len().checked_sub(5) {
            omitted.push(plural(more as u64, "more directory", "more directories"));
        }
        if self.special > 0 {
            omitted.push(plural(
                self.special,
                "link or special file",
                "links and special files",
            ));
        }
        if unreadable > 0 {
            omitted.push(plural(unreadable, "unreadable entry", "unreadable entries"));
        }
        if !omitted.is_empty() {
            let _ = write!(text, "; not copied: {}", omitted.join(", "));
        }
        text
    }
}

/// Returns the identity of a directory, independent of its path.
fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}
