//! Outputs on their way to their place on the host.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use uuid::Uuid;

use super::SandboxError;
use super::host::{Refusal, SavedFile, SavedOutputs, TemporaryFile, on_thread};
use crate::ids::fresh_id;

/// A directory for copies that are not in place yet, inside the output directory so that putting
/// them in place is a rename. Removed when dropped, and where that never happened, by the next one
/// there.
pub(super) struct Staging {
    output_directory: PathBuf,
    directory: PathBuf,
    _lock: lock::Lock,
}

/// A copy that waits for its place.
pub(super) struct StagedFile {
    source: String,
    relative: PathBuf,
    file: TemporaryFile,
}

impl StagedFile {
    pub(super) fn new(source: &str, relative: PathBuf, file: TemporaryFile) -> Self {
        Self {
            source: source.to_owned(),
            relative,
            file,
        }
    }
}

impl Staging {
    pub(super) async fn in_directory(output_directory: PathBuf) -> Result<Self, SandboxError> {
        on_thread(move || {
            let (directory, lock) = make(&output_directory).map_err(|error| {
                let doing = format!(
                    "failed to write in the output directory `{}`",
                    output_directory.display()
                );
                SandboxError::io(doing, error)
            })?;
            Ok(Self {
                output_directory,
                directory,
                _lock: lock,
            })
        })?
        .await
    }

    pub(super) fn directory(&self) -> PathBuf {
        self.directory.clone()
    }

    pub(super) async fn put_in_place(
        self,
        staged: Vec<StagedFile>,
        saved: &mut SavedOutputs,
    ) -> Result<(), SandboxError> {
        let (files, refused) = on_thread(move || {
            let mut placed = Placed::default();
            let mut files = Vec::new();
            let mut refused = Vec::new();
            for file in staged {
                let source = file.source.clone();
                match placed.place(&self.output_directory, file) {
                    Ok(file) => files.push(file),
                    Err(error) => refused.push(Refusal::new(source, error.to_string())),
                }
            }
            Ok((files, refused))
        })?
        .await?;
        saved.saved.extend(files);
        saved.refused.extend(refused);
        Ok(())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// What the directories are called, before their ids, whose owners have a lock on them as long as they
/// live, and the others.
const LOCKED: &str = ".cantle-saving-";
const PREFIX: &str = ".cantle-";

/// Makes a directory for copies, and removes those whose owners were killed.
fn make(output_directory: &Path) -> io::Result<(PathBuf, lock::Lock)> {
    for entry in fs::read_dir(output_directory)
        .into_iter()
        .flatten()
        .flatten()
    {
        let name = entry.file_name();
        let id = name.to_str().and_then(|name| name.strip_prefix(LOCKED));
        if id.is_some_and(|id| Uuid::try_parse(id).is_ok())
            && entry.file_type().is_ok_and(|kind| kind.is_dir())
            && let Some(_lock) = lock::take(&entry.path())
        {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    let id = fresh_id();
    let directory = output_directory.join(format!("{PREFIX}{id}"));
    fs::create_dir_all(&directory)?;
    let lock = lock::take(&directory);
    if lock.is_none() {
        return Ok((directory, None));
    }
    let locked = output_directory.join(format!("{LOCKED}{id}"));
    fs::rename(&directory, &locked)?;
    Ok((locked, lock))
}

/// Locks that end with their process, however that one ends.
#[cfg(unix)]
mod lock {
    use std::fs::File;
    use std::path::Path;

    use rustix::fs::{FlockOperation, Mode, OFlags, flock};

    pub(super) type Lock = Option<File>;

    /// None where somebody else has it, and where the file system has no such locks.
    pub(super) fn take(directory: &Path) -> Lock {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::open(directory, flags, Mode::empty()).ok()?;
        let locked = flock(&file, FlockOperation::NonBlockingLockExclusive);
        locked.is_ok().then(|| file.into())
    }
}

/// There are none here.
#[cfg(not(unix))]
mod lock {
    use std::path::Path;

    pub(super) type Lock = Option<()>;

    pub(super) fn take(_: &Path) -> Lock {
        None
    }
}

/// What this save has put in place, by identity and not by name: on a file system that ignores
/// case, or over a link, two names can be one file.
#[derive(Default)]
struct Placed(HashMap<FileIdentity, String>);

impl Placed {
    fn place(&mut self, output_directory: &Path, staged: StagedFile) -> io::Result<SavedFile> {
        let StagedFile {
            source,
            relative,
            file,
        } = staged;
        let mut directory = output_directory.to_owned();
        for component in relative.parent().into_iter().flat_map(Path::components) {
            directory.push(component);
            match fs::symlink_metadata(&directory) {
                Ok(metadata) if metadata.is_dir() => {}
                Ok(_) => {
                    let message = format!("`{}` is in the way", directory.display());
                    return Err(io::Error::other(message));
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    fs::create_dir(&directory)?;
                }
                Err(error) => return Err(error),
            }
        }
        let to = output_directory.join(&relative);
        if let Some(claimed) = identity(&to).and_then(|identity| self.0.get(&identity)) {
            let message = format!("it would replace `{claimed}`, another output of this run");
            return Err(io::Error::other(message));
        }
        let size_bytes = file.rename(&to)?;
        if let Some(identity) = identity(&to) {
            self.0.insert(identity, source.clone());
        }
        Ok(SavedFile {
            source,
            path: to,
            size_bytes,
        })
    }
}

#[cfg(unix)]
type FileIdentity = (u64, u64);

#[cfg(unix)]
fn identity(path: &Path) -> Option<FileIdentity> {
    use std::os::unix::fs::MetadataExt as _;
    fs::symlink_metadata(path)
        .ok()
        .map(|metadata| (metadata.dev(), metadata.ino()))
}

#[cfg(not(unix))]
type FileIdentity = PathBuf;

#[cfg(not(unix))]
fn identity(path: &Path) -> Option<FileIdentity> {
    path.canonicalize().ok()
}
