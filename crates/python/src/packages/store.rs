//! The files of a store: sets by their keys, and which set answers a request.
//!
//! `sets/KEY` is a virtual environment, or a package of npm. It is complete if `sets/KEY.json` exists, which processes that use the set
//! have locked. `requests/ID.json` is the answer to a request. `lock` is held while packages are installed.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _, chown, lchown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use cantle_core::tool::Progress;
use tempfile::NamedTempFile;

use super::SetContent;
use super::error::PackageError;

/// Time between two attempts to lock the store.
const LOCK_INTERVAL: Duration = Duration::from_millis(50);
/// Age at which no process writes a temporary file any more.
const ABANDONED_AFTER: Duration = Duration::from_secs(24 * 60 * 60);

/// The result of [`PackageStore::collect_garbage`](super::PackageStore::collect_garbage).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CollectedPackages {
    /// Removed directories.
    pub removed: Vec<PathBuf>,
    /// Those that could not be removed, with the reason.
    pub failed: Vec<(PathBuf, String)>,
}

/// A set that is complete. It is not removed while this exists.
#[derive(Clone, Debug)]
pub(super) struct InstalledSet<C> {
    pub(super) content: Arc<C>,
    pub(super) key: String,
    pub(super) path: PathBuf,
    /// Locked against removal.
    _in_use: Arc<FileLock>,
}

/// A file that is locked until this is dropped.
#[derive(Debug)]
pub(super) struct FileLock(File);

impl Drop for FileLock {
    fn drop(&mut self) {
        // A child process that is being started holds the file until its exec, so closing it here would not release the
        // lock. If this fails, the lock goes with the file.
        let _ = self.0.unlock();
    }
}

/// Runs file operations off the runtime's threads.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, PackageError> + Send + 'static,
) -> Result<T, PackageError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(PackageError::failed(format!(
            "the store of packages failed: {error}"
        ))),
    }
}

#[derive(Clone, Debug)]
pub(super) struct Layout {
    directory: PathBuf,
}

impl Layout {
    pub(super) fn new(directory: PathBuf) -> Self {
        Self { directory }
    }

    fn sets(&self) -> PathBuf {
        self.directory.join("sets")
    }

    pub(super) fn set(&self, key: &str) -> PathBuf {
        self.sets().join(key)
    }

    fn marker(&self, key: &str) -> PathBuf {
        self.sets().join(format!("{key}.json"))
    }

    fn request(&self, id: &str) -> PathBuf {
        self.directory.join(format!("requests/{id}.json"))
    }

    /// Waits until no other process installs packages.
    pub(super) async fn lock(&self, progress: &dyn Progress) -> Result<FileLock, PackageError> {
        let layout = self.clone();
        let lock = blocking(move || {
            for directory in [layout.sets(), layout.directory.join("requests")] {
                // Everybody may enter: commands of root's sandboxes run as another user.
                let mut builder = DirBuilder::new();
                let made = builder.recursive(true).mode(0o711).create(&directory);
                made.map_err(|error| PackageError::io("create", &directory, error))?;
            }
            let path = layout.directory.join("lock");
            let mut options = OpenOptions::new();
            let opened = options.create(true).truncate(false).write(true).open(&path);
            opened.map_err(|error| PackageError::io("open", &path, error))
        })
        .await?;
        let mut is_announced = false;
        loop {
            match lock.try_lock() {
                Ok(()) => return Ok(FileLock(lock)),
                Err(fs::TryLockError::WouldBlock) => {
                    if !std::mem::replace(&mut is_announced, true) {
                        progress.output("Waiting for another process that installs packages\n");
                    }
                    tokio::time::sleep(LOCK_INTERVAL).await;
                }
                Err(fs::TryLockError::Error(error)) => {
                    return Err(PackageError::io("lock", &self.directory, error));
                }
            }
        }
    }

    /// Returns the answer to a request, unless this machine's interpreter has changed since.
    pub(super) fn remembered<C: SetContent>(&self, id: &str) -> Result<Option<C>, PackageError> {
        let path = self.request(id);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(PackageError::io("read", &path, error)),
        };
        // One that this version can't read is resolved again.
        let content: Option<C> = serde_json::from_slice(&text).ok();
        Ok(content.filter(C::is_current))
    }

    pub(super) fn remember(&self, id: &str, content: &impl SetContent) -> Result<(), PackageError> {
        write_json(&self.request(id), content)
    }

    /// Returns a set that is complete, locked against removal, and marks it as used now.
    pub(super) fn open<C: SetContent>(
        &self,
        content: C,
    ) -> Result<Option<InstalledSet<C>>, PackageError> {
        let key = content.key();
        let path = self.marker(&key);
        // Not for writing: the store may be part of a read-only image.
        let marker = match File::open(&path) {
            Ok(marker) => marker,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(PackageError::io("open", &path, error)),
        };
        let locked = marker.lock_shared();
        locked.map_err(|error| PackageError::io("lock", &path, error))?;
        // Removed between opening and locking.
        if !path.exists() {
            return Ok(None);
        }
        // Only garbage collection looks at it.
        let _ = marker.set_modified(SystemTime::now());
        Ok(Some(InstalledSet {
            path: self.set(&key),
            content: Arc::new(content),
            key,
            _in_use: Arc::new(FileLock(marker)),
        }))
    }

    /// Makes the directory of a set, which `owner` can write until it is complete.
    pub(super) fn begin(
        &self,
        key: &str,
        (user, group): (u32, u32),
    ) -> Result<PathBuf, PackageError> {
        let directory = self.set(key);
        let failed = |error| PackageError::io("create", &directory, error);
        // One that another process left unfinished.
        match fs::remove_dir_all(&directory) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        fs::create_dir(&directory).map_err(failed)?;
        // Whatever the umask: commands of root's sandboxes run as another user.
        fs::set_permissions(&directory, Permissions::from_mode(0o755)).map_err(failed)?;
        let own = fs::metadata(&directory).map_err(failed)?;
        if own.uid() == 0 && user != 0 {
            chown(&directory, Some(user), Some(group)).map_err(failed)?;
        }
        // `absolute` paths may lead through links, and a mount is named by its target.
        directory.canonicalize().map_err(failed)
    }

    /// Ends the installation of a set.
    pub(super) fn complete<C: SetContent>(
        &self,
        content: C,
    ) -> Result<InstalledSet<C>, PackageError> {
        let key = content.key();
        let directory = self.set(&key);
        protect(&directory).map_err(|error| PackageError::io("protect", &directory, error))?;
        write_json(&self.marker(&key), &content)?;
        self.open(content)?.ok_or_else(|| {
            PackageError::failed("the packages were removed while they were installed")
        })
    }

    pub(super) fn collect_garbage(&self, unused: Duration) -> CollectedPackages {
        let mut collected = CollectedPackages::default();
        // One that is being installed is not complete, and the store is locked.
        let Ok(lock) = OpenOptions::new()
            .write(true)
            .open(self.directory.join("lock"))
        else {
            return collected;
        };
        if lock.try_lock().is_err() {
            return collected;
        }
        for entry in fs::read_dir(self.sets()).into_iter().flatten().flatten() {
            let path = entry.path();
            if !path.is_dir() {
                remove_abandoned(&path);
                continue;
            }
            match self.remove_unused(&path, unused) {
                Ok(true) => collected.removed.push(path),
                Ok(false) => {}
                Err(error) => collected.failed.push((path, error.to_string())),
            }
        }
        collected
    }

    /// Removes a set that is incomplete or unused, and returns whether it was.
    fn remove_unused(&self, directory: &Path, unused: Duration) -> io::Result<bool> {
        let marker_path = directory.with_extension("json");
        if let Ok(marker) = File::open(&marker_path) {
            let modified = marker.metadata()?.modified()?;
            let is_recent = modified.elapsed().is_ok_and(|age| age < unused);
            if is_recent || marker.try_lock().is_err() {
                return Ok(false);
            }
            fs::remove_file(&marker_path)?;
        }
        let _ = fs::remove_file(archive_of(directory));
        fs::remove_dir_all(directory)?;
        Ok(true)
    }
}

/// Removes a temporary file of a process that was killed before it gave the file its name.
fn remove_abandoned(path: &Path) {
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    let modified = path.metadata().and_then(|found| found.modified());
    let age = modified.ok().and_then(|modified| modified.elapsed().ok());
    if name.starts_with(b".tmp") && age.is_some_and(|age| age > ABANDONED_AFTER) {
        let _ = fs::remove_file(path);
    }
}

/// Returns the path of a set's archive.
pub(super) fn archive_of(directory: &Path) -> PathBuf {
    directory.with_extension("tar.gz")
}

fn write_json(path: &Path, value: &impl serde::Serialize) -> Result<(), PackageError> {
    let failed = |error| PackageError::io("write", path, error);
    let text = serde_json::to_vec(value).map_err(|error| failed(error.into()))?;
    let mut file = NamedTempFile::new_in(path.parent().unwrap_or(path)).map_err(failed)?;
    file.write_all(&text).map_err(failed)?;
    file.persist(path).map_err(|error| failed(error.error))?;
    Ok(())
}

/// Gives the files of a finished set to this process's user, and lets no other user write them. No process of the sandbox
/// that installed them is left.
fn protect(directory: &Path) -> io::Result<()> {
    let is_root = directory.parent().map(fs::metadata).transpose()?;
    let is_root = is_root.is_some_and(|parent| parent.uid() == 0);
    let mut paths = vec![directory.to_owned()];
    while let Some(path) = paths.pop() {
        if is_root {
            lchown(&path, Some(0), Some(0))?;
        }
        let found = fs::symlink_metadata(&path)?;
        if found.is_symlink() {
            continue;
        }
        fs::set_permissions(&path, Permissions::from_mode(found.mode() & 0o755))?;
        if found.is_dir() {
            for entry in fs::read_dir(&path)? {
                paths.push(entry?.path());
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn abandoned_temporary_files_are_garbage() {
        let store = tempfile::tempdir().unwrap();
        let layout = Layout::new(store.path().to_owned());
        fs::create_dir(layout.sets()).unwrap();
        File::create(store.path().join("lock")).unwrap();
        let old = SystemTime::now() - 2 * ABANDONED_AFTER;
        for (name, modified) in [
            (".tmpOld", old),
            (".tmpNew", SystemTime::now()),
            ("set.json", old),
        ] {
            let file = File::create(layout.sets().join(name)).unwrap();
            file.set_modified(modified).unwrap();
        }
        layout.collect_garbage(Duration::ZERO);
        let left = fs::read_dir(layout.sets()).unwrap();
        let mut left: Vec<_> = left.map(|it| it.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, [".tmpNew", "set.json"]);
    }

    #[test]
    fn a_copy_of_the_descriptor_keeps_no_lock() {
        let file = NamedTempFile::new().unwrap();
        let locked = file.reopen().unwrap();
        locked.try_lock().unwrap();
        // As a process that is being started has.
        let _copy = locked.try_clone().unwrap();
        assert!(file.as_file().try_lock().is_err());
        drop(FileLock(locked));
        file.as_file().try_lock().unwrap();
    }
}
