//! The entries of an input directory that are copied: without ignored files and those that look like secrets.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use cantle_core::sandbox::looks_secret;
use ignore::overrides::{Override, OverrideBuilder};
use ignore::{DirEntry, WalkBuilder};

use crate::error::{SessionError, SessionErrorKind};

/// The default directory of results.
const RESULTS: &str = "cantle-out";

/// The part of a file in which a private key begins.
const KEY_BYTES: u64 = 16 * 1024;

/// Maximum number of links that lead to each other, as the kernel has it.
const MAX_LINKS: usize = 40;

/// The selection of files in input directories and patterns. A file that is named itself is always copied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct InputOptions {
    /// Patterns of files to leave out, as in a `.gitignore`.
    pub exclude: Vec<String>,
    /// Copies files that `.gitignore` and git's other ignore files exclude, and `.git`.
    pub include_ignored: bool,
    /// Copies directories of results, `cantle-out`.
    pub include_results: bool,
    /// Copies files that look like secrets, such as `.env` and private keys.
    pub include_secrets: bool,
}

/// The entries of a directory that are copied, by their paths relative to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct InputEntries {
    /// Entries of any type, and whether each is a directory. A directory comes before its entries.
    pub paths: Vec<(PathBuf, bool)>,
    /// Files that were left out because they look like secrets.
    pub secrets: Vec<PathBuf>,
}

impl InputOptions {
    /// Lists the entries of a directory that are copied. Those that can't be read are passed over. Blocks.
    ///
    /// # Errors
    /// If a pattern to exclude is invalid, or the directory can't be read.
    pub fn entries(&self, directory: &Path) -> Result<InputEntries, SessionError> {
        list(directory, None, self)
    }
}

/// Lists the entries below a directory, at most `max_depth` below it. Blocks.
///
/// # Errors
/// As [`InputOptions::entries`].
pub(super) fn list(
    base: &Path,
    max_depth: Option<usize>,
    options: &InputOptions,
) -> Result<InputEntries, SessionError> {
    walk(base, max_depth, options).map_err(|cause| {
        let message = match cause.io_error() {
            Some(cause) => format!("`{}` can't be read: {cause}", base.display()),
            None => format!("a pattern to exclude is not valid: {cause}"),
        };
        SessionError::new(SessionErrorKind::Input, message)
    })
}

fn walk(
    base: &Path,
    max_depth: Option<usize>,
    options: &InputOptions,
) -> Result<InputEntries, ignore::Error> {
    let (ignores, results) = (!options.include_ignored, options.include_results);
    let is_in_repository = repository_of(base).is_some();
    let mut walk = WalkBuilder::new(base);
    walk.hidden(false)
        .ignore(false)
        .git_ignore(ignores)
        .git_global(ignores)
        .git_exclude(ignores)
        // Without a repository, the ignore files of the directories above are about something else.
        .parents(ignores && is_in_repository)
        .require_git(is_in_repository)
        .max_depth(max_depth)
        .overrides(excluded(base, &options.exclude)?)
        .filter_entry(move |entry| {
            let name = entry.file_name();
            let is_left_out = (!results && name == RESULTS) || (ignores && name == ".git");
            entry.depth() == 0 || !is_left_out
        });
    let mut entries = InputEntries::default();
    for entry in walk.build() {
        let entry = match entry {
            Ok(entry) if entry.depth() == 0 => continue,
            Ok(entry) => entry,
            Err(error) if error.depth() == Some(0) => return Err(error),
            Err(_) => continue,
        };
        let Ok(path) = entry.path().strip_prefix(base) else {
            continue;
        };
        if !options.include_secrets && is_secret(base, path, &entry) {
            entries.secrets.push(path.to_owned());
        } else {
            let is_directory = entry.file_type().is_some_and(|kind| kind.is_dir());
            entries.paths.push((path.to_owned(), is_directory));
        }
    }
    entries.secrets.sort();
    Ok(entries)
}

fn excluded(base: &Path, patterns: &[String]) -> Result<Override, ignore::Error> {
    let mut excluded = OverrideBuilder::new(base);
    for pattern in patterns {
        excluded.add(&format!("!{pattern}"))?;
    }
    excluded.build()
}

/// Returns the top of the repository that a directory is in.
pub(super) fn repository_of(directory: &Path) -> Option<PathBuf> {
    let directory = directory.canonicalize().ok()?;
    let mut above = directory.ancestors();
    let top = above.find(|directory| directory.join(".git").exists());
    top.map(Path::to_owned)
}

/// Whether a file looks like a secret, or a link leads to one.
fn is_secret(base: &Path, path: &Path, entry: &DirEntry) -> bool {
    if entry.file_type().is_some_and(|kind| kind.is_dir()) {
        return false;
    }
    if looks_secret(&path.to_string_lossy()) {
        return true;
    }
    if !entry.path_is_symlink() {
        return is_key(entry.path());
    }
    // The target of each link, whose name decides as that of a file does, and then the file.
    let mut link = entry.path().to_owned();
    for _ in 0..MAX_LINKS {
        let Ok(target) = std::fs::read_link(&link) else {
            break;
        };
        if looks_secret(&target.to_string_lossy()) {
            return true;
        }
        link.pop();
        link.push(target);
    }
    let real = entry.path().canonicalize().ok();
    real.is_some_and(|real| {
        // The directories above do not tell about the files of this one.
        let base = base.canonicalize();
        let below = base.ok().and_then(|base| real.strip_prefix(base).ok());
        looks_secret(&below.unwrap_or(&real).to_string_lossy()) || is_key(&real)
    })
}

/// Whether a regular file of the name of a key or a certificate has a private key.
fn is_key(file: &Path) -> bool {
    let may_be_key = file
        .extension()
        .is_some_and(|end| end == "pem" || end == "key");
    may_be_key && file.is_file() && has_private_key(file)
}

fn has_private_key(file: &Path) -> bool {
    let mut start = Vec::new();
    let read = File::open(file).and_then(|file| file.take(KEY_BYTES).read_to_end(&mut start));
    let marker = b"PRIVATE KEY-----";
    read.is_ok() && start.windows(marker.len()).any(|bytes| bytes == marker)
}
