//! The lock of a run's directory.

use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::thread;
use std::time::Duration;

use super::error::StoreError;

/// Maximum number of attempts to lock while other processes look whether the lock is held.
const MAX_ATTEMPTS: u32 = 1000;

/// Pause between them.
const PAUSE: Duration = Duration::from_millis(1);

/// A lock that the kernel releases when its holder ends, however that happens.
#[derive(Debug)]
pub(super) struct Lock(File);

impl Lock {
    /// Locks a run's directory; `None` if another process holds the lock.
    pub(super) fn try_lock(directory: &Path) -> Result<Option<Self>, StoreError> {
        for _ in 0..MAX_ATTEMPTS {
            if let Some(lock) = Self::try_with(directory, File::try_lock)? {
                return Ok(Some(lock));
            }
            if Self::is_held(directory)? {
                return Ok(None);
            }
            // Another process has only looked whether the lock is held.
            thread::sleep(PAUSE);
        }
        Ok(None)
    }

    /// Returns whether another process holds the lock of a run's directory.
    pub(super) fn is_held(directory: &Path) -> Result<bool, StoreError> {
        // Shared, so that several processes can look at once.
        Ok(Self::try_with(directory, File::try_lock_shared)?.is_none())
    }

    fn try_with(
        directory: &Path,
        lock: impl FnOnce(&File) -> Result<(), TryLockError>,
    ) -> Result<Option<Self>, StoreError> {
        let path = directory.join("lock");
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path);
        let file = opened.map_err(|error| StoreError::io("open", &path, &error))?;
        match lock(&file) {
            Ok(()) => Ok(Some(Self(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(StoreError::io("lock", &path, &error)),
        }
    }

    #[cfg(test)]
    pub(super) fn file(&self) -> &File {
        &self.0
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // A child process that is being started holds the file until its exec, so closing it here
        // would not release the lock. If this fails, the lock goes with the file.
        let _ = self.0.unlock();
    }
}
