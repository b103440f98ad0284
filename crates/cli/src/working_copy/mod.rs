//! Work on a copy of a directory (`--workdir`): the copy, what a run changed in it, and its way back.
//!
//! The copy is taken once, on the host, and uploaded from there: it is what the run's changes are compared with, and what
//! the user's files have to equal for a change to be applied.

mod apply;
mod changes;
mod diff;
mod review;
mod workdir;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use cantle::agent::InputOptions;
use cantle::core::escape::join_up_to;
use cantle::core::ids::RunId;
use cantle::core::sandbox::{Sandbox, SandboxPath, Walk};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

pub(crate) use self::changes::{Changes, Status};
pub(crate) use self::review::{apply, patch_for_terminal, revert, summary};
pub(crate) use self::workdir::Workdir;
use crate::args::InputArgs;
use crate::environment::variable;
use crate::json_file;
use crate::state_dir::{create_private, removed, try_lock};

/// The files as they were copied. After the run has ended, only those that it changed.
const BASE: &str = "base";
/// The changed files as the run left them.
const NEW: &str = "new";
/// The files in the sandbox when the run began.
const BEFORE: &str = "before.json";
/// The links of the directory, which are files in the copy, and the files that they lead to.
const LINKS: &str = "links.json";
const LOCK: &str = "lock";

/// Maximum number of files of a working directory.
const MAX_ENTRIES: usize = 200_000;

/// Maximum number of files that a message names.
const MAX_NAMED: usize = 10;

/// A directory of the user, and where its copy is kept.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct WorkingCopy {
    /// The user's directory.
    pub(crate) origin: PathBuf,
    /// The directory of the copy and of the run's changes.
    pub(crate) directory: PathBuf,
    /// Whether files that are ignored by git count.
    include_ignored: bool,
    /// Whether files that look like secrets count.
    include_secrets: bool,
    /// Patterns of files that were left out.
    #[serde(default)]
    exclude: Vec<String>,
}

/// Whether a process works on the copy in this directory.
pub(crate) fn is_locked(directory: &Path) -> bool {
    !matches!(try_lock(&directory.join(LOCK)), Ok(Some(_)))
}

impl WorkingCopy {
    /// A copy of a directory, to be kept in a new directory below `parent`.
    ///
    /// # Errors
    /// If the directory can't be read, or holds everything of a user or of the machine.
    pub(crate) fn new(
        origin: &Path,
        parent: &Path,
        options: &InputOptions,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            directory: parent.join(RunId::new().to_string()),
            origin: project_directory(origin)?,
            include_ignored: options.include_ignored,
            include_secrets: options.include_secrets,
            exclude: options.exclude.clone(),
        })
    }

    /// Has a new copy of the directory leave out what this one does, unless flags say otherwise.
    pub(crate) fn choose_again(&self, inputs: &mut InputArgs) {
        inputs.no_ignore |= self.include_ignored;
        inputs.include_secrets |= self.include_secrets;
        if inputs.exclude.is_empty() {
            inputs.exclude.clone_from(&self.exclude);
        }
    }

    /// Copies the files. Returns warnings about those that are left out. Blocks.
    ///
    /// # Errors
    /// If they can't be read or copied, or are too many, or it is cancelled.
    pub(crate) fn take(
        &self,
        options: &InputOptions,
        cancellation: &CancellationToken,
    ) -> anyhow::Result<(File, Vec<String>)> {
        let entries = options.entries(&self.origin)?;
        if entries.paths.len() > MAX_ENTRIES {
            bail!(
                "{} has {} files, and at most {MAX_ENTRIES} are copied: leave some out with --exclude",
                self.origin.display(),
                entries.paths.len()
            );
        }
        let failed = |path: &Path| format!("failed to copy {}", path.display());
        create_private(&self.base()).with_context(|| failed(&self.origin))?;
        let lock = self.lock()?;
        let mut warnings = Vec::new();
        let mut links = BTreeMap::new();
        for (path, is_directory) in &entries.paths {
            if cancellation.is_cancelled() {
                bail!("cancelled");
            }
            let copied = self.copy_entry(path, *is_directory, &mut links);
            if let Some(reason) = copied.with_context(|| failed(path))? {
                warnings.push(format!("{} is left out: {reason}", path.display()));
            }
        }
        json_file::write(&self.directory.join(LINKS), &links)?;
        if !entries.secrets.is_empty() {
            let names = entries.secrets.iter().map(|path| path.display());
            warnings.push(format!(
                "files that look like secrets are left out (--include-secrets): {}",
                join_up_to(MAX_NAMED, names)
            ));
        }
        Ok((lock, warnings))
    }

    /// Copies an entry, and notes a link; returns why it is left out otherwise.
    fn copy_entry(
        &self,
        path: &Path,
        is_directory: bool,
        links: &mut BTreeMap<String, String>,
    ) -> io::Result<Option<&'static str>> {
        let (from, to) = (self.origin.join(path), self.base().join(path));
        if is_directory {
            fs::create_dir_all(to)?;
            return Ok(None);
        }
        let metadata = match fs::metadata(&from) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Some("it is gone, or a link to nothing"));
            }
            Err(error) => return Err(error),
        };
        if metadata.is_dir() {
            return Ok(Some("a link to a directory is not followed"));
        }
        if !metadata.is_file() {
            return Ok(Some("it is neither a file nor a directory"));
        }
        let real = from.canonicalize().unwrap_or_default();
        let Ok(real) = real.strip_prefix(&self.origin) else {
            return Ok(Some("the link leads out of the directory"));
        };
        let (name, target) = (path.to_str(), real.to_str());
        if name.is_some() && target.is_none() {
            return Ok(Some("the name of the link's target is not UTF-8"));
        }
        match fs::copy(&from, &to) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Ok(Some("it can't be read"));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Some("it was removed meanwhile"));
            }
            Err(error) => return Err(error),
        }
        // Changes of a name that is not UTF-8 are not applied.
        if let (Some(name), Some(target)) = (name, target)
            && name != target
        {
            links.insert(name.to_owned(), target.to_owned());
        }
        // A file that its owner may not read would be lost to us, too.
        let mode = metadata.permissions().mode() & 0o777 | 0o600;
        fs::set_permissions(&to, fs::Permissions::from_mode(mode))?;
        Ok(None)
    }

    /// Returns the copied files, as an input of the run.
    pub(crate) fn input(&self) -> PathBuf {
        // With a slash, the contents are copied.
        self.base().join("")
    }

    fn base(&self) -> PathBuf {
        self.directory.join(BASE)
    }

    fn new_files(&self) -> PathBuf {
        self.directory.join(NEW)
    }

    /// Keeps other processes from working on the copy until the file is dropped.
    ///
    /// # Errors
    /// If one does, or the copy is gone.
    pub(crate) fn lock(&self) -> anyhow::Result<File> {
        let lock = try_lock(&self.directory.join(LOCK))
            .with_context(|| format!("the changes in {} are gone", self.directory.display()))?;
        lock.with_context(|| format!("another process works on {}", self.directory.display()))
    }

    /// Notes what the sandbox holds before the run begins.
    pub(crate) async fn note_before(&self, sandbox: &dyn Sandbox) -> anyhow::Result<()> {
        let walk = sandbox
            .walk(&SandboxPath::working_directory(), MAX_ENTRIES)
            .await?;
        json_file::write(&self.directory.join(BEFORE), &walk)
    }

    fn before(&self) -> anyhow::Result<Walk> {
        let path = self.directory.join(BEFORE);
        json_file::read(&path)?.with_context(|| format!("{} is gone", path.display()))
    }

    /// Returns the links of the directory, with the files that they lead to.
    fn links(&self) -> anyhow::Result<BTreeMap<String, String>> {
        // Earlier versions did not note them.
        Ok(json_file::read(&self.directory.join(LINKS))?.unwrap_or_default())
    }

    /// Removes the copy and the changes.
    pub(crate) fn remove(&self) -> anyhow::Result<()> {
        // A process that applies them would miss its files.
        let lock = try_lock(&self.directory.join(LOCK));
        if let (Ok(Some(changes)), Ok(Some(_lock))) = (self.changes(), lock) {
            self.sweep(&changes);
        }
        removed(fs::remove_dir_all(&self.directory))
            .with_context(|| format!("failed to remove {}", self.directory.display()))
    }
}

/// Returns the canonical path of a directory to work on.
///
/// # Errors
/// If it can't be read, or holds everything of a user or of the machine.
pub(crate) fn project_directory(directory: &Path) -> anyhow::Result<PathBuf> {
    let found = directory
        .canonicalize()
        .with_context(|| format!("the directory {} can't be read", directory.display()))?;
    if !found.is_dir() {
        bail!("{} is not a directory", found.display());
    }
    let home = variable("HOME").and_then(|home| PathBuf::from(home).canonicalize().ok());
    if found.parent().is_none() || home.is_some_and(|home| home == found) {
        bail!(
            "--workdir takes a whole directory, and {} is too large: name the directory of a project",
            found.display()
        );
    }
    Ok(found)
}
