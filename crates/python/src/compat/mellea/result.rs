//! Mellea's result, and the artifacts of a directory.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use cantle_core::sandbox::{SandboxPath, media_type};
use tempfile::TempDir;

use crate::source::SourceFacts;

/// Maximum number of artifacts, and of directory entries that are looked at.
const MAX_ARTIFACTS: usize = 1000;
const MAX_ENTRIES: usize = 100_000;
/// Bytes by which a media type is recognized.
const MAGIC_BYTES: u64 = 4096;

const TRUNCATED: &str = "... [truncated]";

/// The result of executing code, with Mellea's fields.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ExecutionResult {
    /// Whether the code ended with exit code 0; for the static tier, whether it may be executed.
    pub success: bool,
    /// Standard output without surrounding white space; partial after a timeout, `None` if nothing was executed.
    pub stdout: Option<String>,
    /// Length of the whole standard output in characters, without surrounding white space; `stdout` may lack a part.
    pub(super) stdout_chars: usize,
    /// Standard error, likewise.
    pub stderr: Option<String>,
    /// Whether the code was not executed or did not end by itself.
    pub skipped: bool,
    /// The reason why it was skipped.
    pub skip_message: Option<String>,
    /// The analysis of the static tier.
    pub analysis_result: Option<SourceFacts>,
    /// The exit code; negative for a signal.
    pub exit_code: Option<i32>,
    /// Whether the time limit ended it.
    pub timed_out: bool,
    /// The files that a successful call created or changed.
    pub artifacts: Vec<MelleaArtifact>,
    /// The tier.
    pub execution_mode: String,
    /// The directory of the host in which the code ran, if it was given.
    pub working_directory: Option<PathBuf>,
    /// The directory of the artifacts if none was given, removed with the last clone of the result.
    pub(super) directory: Option<Arc<TempDir>>,
}

impl Default for ExecutionResult {
    fn default() -> Self {
        Self {
            success: false,
            stdout: None,
            stdout_chars: 0,
            stderr: None,
            skipped: false,
            skip_message: None,
            analysis_result: None,
            exit_code: None,
            timed_out: false,
            artifacts: Vec::new(),
            execution_mode: "unknown".to_owned(),
            working_directory: None,
            directory: None,
        }
    }
}

impl ExecutionResult {
    pub(super) fn skipped(mode: &str, message: impl Into<String>) -> Self {
        Self {
            skipped: true,
            skip_message: Some(message.into()),
            execution_mode: mode.to_owned(),
            ..Self::default()
        }
    }

    /// Returns the text that explains the result: why it was skipped, or what the code printed.
    pub fn to_validationresult_reason(&self) -> String {
        let skipped = self.skip_message.as_deref().filter(|it| !it.is_empty());
        let printed = match self.success {
            true => self.stdout.as_deref(),
            false => self.stderr.as_deref(),
        };
        skipped.or(printed).unwrap_or_default().to_owned()
    }
}

/// A file or directory that a call produced.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MelleaArtifact {
    /// Its path on the host.
    pub path: PathBuf,
    /// Its size; `None` for a directory.
    pub size_bytes: Option<u64>,
    /// Its media type by its bytes or its name.
    pub content_type: Option<String>,
}

impl MelleaArtifact {
    pub(super) fn of_file(path: &Path) -> Option<Self> {
        let metadata = fs::symlink_metadata(path).ok()?;
        let mut magic = Vec::new();
        // A file that can't be read has the type of its name.
        let _ = File::open(path).and_then(|file| file.take(MAGIC_BYTES).read_to_end(&mut magic));
        let name = SandboxPath::new(path.file_name()?.to_string_lossy().as_ref()).ok()?;
        Some(Self {
            path: path.to_owned(),
            size_bytes: Some(metadata.len()),
            content_type: media_type(&name, &magic).map(str::to_owned),
        })
    }
}

/// Returns the regular files below a directory, sorted by path. Links are not followed; there are at most 1000.
pub fn scan_artifacts(directory: &Path) -> Vec<MelleaArtifact> {
    let files = Listing::of(directory);
    let files = files.0.keys().take(MAX_ARTIFACTS);
    files
        .filter_map(|path| MelleaArtifact::of_file(path))
        .collect()
}

/// The regular files below a directory with what changes when they change.
#[derive(Default)]
pub(super) struct Listing(BTreeMap<PathBuf, (u64, Option<SystemTime>, i64)>);

impl Listing {
    pub(super) fn of(directory: &Path) -> Self {
        let mut files = BTreeMap::new();
        let mut directories = vec![directory.to_owned()];
        let mut left = MAX_ENTRIES;
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
                left = left.saturating_sub(1);
                let Ok(metadata) = fs::symlink_metadata(entry.path()) else {
                    continue;
                };
                if left == 0 {
                    return Self(files);
                } else if metadata.is_dir() {
                    directories.push(entry.path());
                } else if metadata.is_file() {
                    // Code can't set the time of the latest change.
                    let changed = metadata.ctime() * 1_000_000_000 + metadata.ctime_nsec();
                    let stamp = (metadata.len(), metadata.modified().ok(), changed);
                    files.insert(entry.path(), stamp);
                }
            }
        }
        Self(files)
    }

    /// Returns the files that were created or changed after `before`.
    pub(super) fn changed_since(&self, before: &Self) -> Vec<MelleaArtifact> {
        let changed = self.0.iter();
        let changed = changed.filter(|(path, stamp)| before.0.get(*path) != Some(stamp));
        let changed = changed.take(MAX_ARTIFACTS);
        changed
            .filter_map(|(path, _)| MelleaArtifact::of_file(path))
            .collect()
    }
}

/// Shortens text to a number of bytes, marker included; a limit without room for the marker just cuts.
pub fn truncate(text: &str, max_bytes: Option<usize>) -> String {
    let Some(max) = max_bytes.filter(|max| text.len() > *max) else {
        return text.to_owned();
    };
    let (kept, marker) = match max.checked_sub(TRUNCATED.len()) {
        None | Some(0) => (max, ""),
        Some(kept) => (kept, TRUNCATED),
    };
    let kept = text.get(..text.floor_char_boundary(kept));
    format!("{}{marker}", kept.unwrap_or_default())
}
