//! Staging of output files: complete copies that are not in place yet.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::host::{HostThread, TemporaryFile, free_bytes, sha256_of};
use super::{OutputOptions, RefusedFile, SandboxError, SavedFile, SavedOutputs};
use crate::ids::unique_id;

/// The start of a staging directory's name.
const PREFIX: &str = ".cantle-";

/// Maximum number that is appended to an occupied name.
const MAX_NUMBER: u32 = 1000;

/// How long an unused staging directory is left alone: its owner may be about to lock it.
const ABANDONED_AFTER: Duration = Duration::from_secs(60);

/// A directory inside the output directory, so that putting a copy in place is a rename. Removed
/// when dropped, or by a later one if this process is killed.
#[derive(Debug)]
pub(super) struct Staging {
    output_directory: PathBuf,
    pub(super) directory: PathBuf,
    /// The number of bytes that its file system had free.
    pub(super) free_bytes: u64,
    /// Locked as long as the directory is in use.
    _lock: File,
}

/// A complete copy of one output file.
pub(super) struct StagedFile {
    pub(super) source: String,
    /// Its path below the output directory.
    pub(super) relative: PathBuf,
    pub(super) file: TemporaryFile,
    /// The SHA-256 of its content in hexadecimal.
    pub(super) sha256: String,
}

impl Staging {
    pub(super) async fn create(
        host: &HostThread,
        output_directory: PathBuf,
    ) -> Result<Self, SandboxError> {
        host.run(move || {
            let doing = format!(
                "failed to write in the output directory `{}`",
                output_directory.display()
            );
            let create = || {
                let directory = output_directory.join(format!("{PREFIX}{}", unique_id()));
                fs::create_dir_all(&directory)?;
                let lock = File::open(&directory)?;
                // Where directories can't be locked, none is taken for abandoned either.
                let _ = lock.try_lock();
                remove_abandoned(&output_directory)?;
                Ok(Self {
                    free_bytes: free_bytes(&directory)?,
                    output_directory,
                    directory,
                    _lock: lock,
                })
            };
            create().map_err(|error| SandboxError::io(doing, error))
        })
        .await
    }

    pub(super) fn output_directory(&self) -> &Path {
        &self.output_directory
    }

    /// Moves the copies to their final names.
    pub(super) async fn put_in_place(
        self,
        host: &HostThread,
        staged: Vec<StagedFile>,
        mut outputs: SavedOutputs,
        options: OutputOptions,
    ) -> Result<SavedOutputs, SandboxError> {
        host.run(move || {
            let mut placed = PlacedFiles::default();
            for file in staged {
                let source = file.source.clone();
                match placed.place(&self.output_directory, file, &options) {
                    Ok(file) => outputs.saved.push(file),
                    Err(error) => {
                        let refused = RefusedFile::new(source, error.to_string());
                        outputs.refused.push(refused);
                    }
                }
            }
            Ok(outputs)
        })
        .await
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// The files that were put in place, by identity: on a file system that ignores case, or through a
/// link, two names can be one file.
#[derive(Debug, Default)]
pub(super) struct PlacedFiles(HashMap<FileIdentity, String>);

impl PlacedFiles {
    pub(super) fn place(
        &mut self,
        output_directory: &Path,
        staged: StagedFile,
        options: &OutputOptions,
    ) -> io::Result<SavedFile> {
        let StagedFile {
            source,
            relative,
            file,
            sha256,
        } = staged;
        let mut path = output_directory.to_owned();
        for component in relative.parent().into_iter().flat_map(Path::components) {
            path = numbered(path.join(component), create_directory)?;
        }
        path.push(relative.file_name().unwrap_or_default());
        if let Some(other) = identity(&path).and_then(|identity| self.0.get(&identity))
            && *other != source
        {
            let message = format!("it would replace `{other}`, another output of this run");
            return Err(io::Error::other(message));
        }
        let replaces = || {
            // One that can't be read is another file.
            let existing = sha256_of(&path).ok().flatten();
            existing.is_some_and(|existing| {
                existing == sha256 || options.earlier.get(&relative) == Some(&existing)
            })
        };
        let mut size_bytes = None;
        if fs::symlink_metadata(&path).is_ok() && (options.overwrite || replaces()) {
            size_bytes = Some(file.rename(&path)?);
        } else {
            let mut waiting = Some(file);
            path = numbered(path, |path| {
                let Some(file) = waiting.take() else {
                    return Ok(true);
                };
                match file.rename_new(path)? {
                    Ok(size) => size_bytes = Some(size),
                    Err(file) => waiting = Some(file),
                }
                Ok(waiting.is_none())
            })?;
        }
        if let Some(identity) = identity(&path) {
            self.0.insert(identity, source.clone());
        }
        Ok(SavedFile {
            source,
            renamed: path != output_directory.join(&relative),
            path,
            size_bytes: size_bytes.unwrap_or_default(),
            sha256: Some(sha256),
        })
    }
}

/// Returns `path`, or the first of `path.1`, `path.2`, …, that `takes` accepts.
fn numbered(
    path: PathBuf,
    mut takes: impl FnMut(&Path) -> io::Result<bool>,
) -> io::Result<PathBuf> {
    if takes(&path)? {
        return Ok(path);
    }
    for number in 1..=MAX_NUMBER {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{number}"));
        let numbered = PathBuf::from(name);
        if takes(&numbered)? {
            return Ok(numbered);
        }
    }
    let message = format!("`{}` and {MAX_NUMBER} such names exist", path.display());
    Err(io::Error::other(message))
}

/// Creates a directory; returns false if something else has its name.
fn create_directory(path: &Path) -> io::Result<bool> {
    match fs::symlink_metadata(path) {
        Ok(metadata) => Ok(metadata.is_dir()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            fs::create_dir(path)?;
            Ok(true)
        }
        Err(error) => Err(error),
    }
}

/// Removes the staging directories of processes that were killed.
fn remove_abandoned(output_directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(output_directory)? {
        let entry = entry?;
        let is_staging = entry
            .file_name()
            .to_str()
            .is_some_and(|name| name.starts_with(PREFIX));
        if !is_staging || !entry.file_type()?.is_dir() {
            continue;
        }
        let is_old = || {
            let modified = entry.metadata().ok()?.modified().ok()?;
            Some(modified.elapsed().ok()? > ABANDONED_AFTER)
        };
        if is_old() == Some(true)
            && let Ok(lock) = File::open(entry.path())
            && lock.try_lock().is_ok()
        {
            // The next one tries again.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    Ok(())
}

#[cfg(unix)]
type FileIdentity = (u64, u64);

#[cfg(unix)]
fn identity(path: &Path) -> Option<FileIdentity> {
    use std::os::unix::fs::MetadataExt as _;
    let metadata = fs::symlink_metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

#[cfg(not(unix))]
type FileIdentity = PathBuf;

#[cfg(not(unix))]
fn identity(path: &Path) -> Option<FileIdentity> {
    path.canonicalize().ok()
}
