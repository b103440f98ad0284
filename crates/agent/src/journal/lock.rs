//! The lock of a run's directory.

use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use super::error::StoreError;

/// A lock that the kernel releases when its holder ends, however that happens.
#[derive(Debug)]
pub(super) struct Lock(File);

impl Lock {
    /// Locks a run's directory; `None` if another process holds the lock.
    pub(super) fn try_lock(directory: &Path) -> Result<Option<Self>, StoreError> {
        let path = directory.join("lock");
        let opened = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path);
        let file = opened.map_err(|error| StoreError::io("open", &path, &error))?;
        match file.try_lock() {
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
