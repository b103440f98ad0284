//! Removing directory trees of any depth and with any permissions.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;

use cantle_core::sandbox::{SandboxError, SandboxPath};
use rustix::fs::{AtFlags, DirEntry, FileType, Mode, open, renameat, statat, unlinkat};
use rustix::io::Errno;

use super::beneath::open_with_access;
use super::{DIRECTORY, Root, entries};

impl Root {
    /// Removes a file, a symbolic link, or a directory with its contents.
    pub(crate) fn remove(&self, path: &SandboxPath) -> Result<(), SandboxError> {
        let failed = |error| self.failure("remove", path, error);
        self.refuse_fixed("remove", path)?;
        let (parent, name) = self.open_parent(path, "remove")?;
        let stat = statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            return unlinkat(&parent, name, AtFlags::empty()).map_err(failed);
        }
        let mut failures = RemovalFailures::default();
        remove_directory(parent.as_fd(), name, &mut failures)
            .map_err(|error| failures.error(&path.to_string(), error))
    }

    /// Removes the sandbox's directory.
    ///
    /// # Errors
    /// The error names what could not be removed.
    pub(crate) fn delete(&self) -> Result<(), SandboxError> {
        let base = self.host_paths().base();
        let (Some(parent), Some(name)) = (base.parent(), base.file_name()) else {
            return Ok(());
        };
        let name = name.as_bytes();
        let mut failures = RemovalFailures::default();
        let removed = open(parent, DIRECTORY, Mode::empty())
            .and_then(|parent| remove_directory(parent.as_fd(), name, &mut failures));
        match removed {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(failures.error(&base.to_string_lossy(), error)),
        }
    }
}

/// Repetitions while new entries keep appearing.
const MAX_REPEATS: u32 = 16;

/// Entries that could not be removed.
#[derive(Default)]
pub(super) struct RemovalFailures {
    named: Vec<String>,
    more: usize,
}

impl RemovalFailures {
    const MAX_NAMED: usize = 3;

    fn add(&mut self, name: &[u8], error: Errno) {
        if self.named.len() < Self::MAX_NAMED {
            let name = String::from_utf8_lossy(name);
            self.named.push(format!("`{name}` ({error})"));
        } else {
            self.more += 1;
        }
    }

    pub(super) fn error(&self, path: &str, error: Errno) -> SandboxError {
        let mut message = format!("failed to remove `{path}`");
        if !self.named.is_empty() {
            message += &format!(": it still contains {}", self.named.join(", "));
        }
        if self.more > 0 {
            message += &format!(" and {} more", self.more);
        }
        SandboxError::io(message, error.into())
    }
}

/// Removes a directory and its contents.
///
/// Subdirectories are not descended into: their contents are moved up, so that neither depth nor open
/// descriptors nor path length is a limit.
pub(super) fn remove_directory(
    parent: BorrowedFd<'_>,
    name: &[u8],
    failures: &mut RemovalFailures,
) -> Result<(), Errno> {
    match unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Err(Errno::NOTEMPTY | Errno::EXIST) => {}
        // Removed, not a directory, missing, or refused whatever it contains.
        result => return result,
    }
    let top = open_with_access(parent, name)?;
    let (mut serial, mut repeats) = (0, 0);
    loop {
        *failures = RemovalFailures::default();
        let (mut removed, moved_before) = (0, serial);
        for entry in entries(&top)? {
            let entry = entry?;
            let (entry, is_directory) = (entry.file_name().to_bytes(), is_directory(&top, &entry));
            let result = if is_directory {
                remove_child(top.as_fd(), entry, &mut serial, failures)
            } else {
                unlinkat(&top, entry, AtFlags::empty())
            };
            match result {
                Ok(()) | Err(Errno::NOENT) => removed += 1,
                // Its remaining contents have been recorded.
                Err(Errno::NOTEMPTY) if is_directory => {}
                Err(error) => failures.add(entry, error),
            }
        }
        match unlinkat(parent, name, AtFlags::REMOVEDIR) {
            Err(Errno::NOTEMPTY | Errno::EXIST) if serial > moved_before => {}
            // Another process keeps adding entries, perhaps forever.
            Err(Errno::NOTEMPTY | Errno::EXIST) if removed > 0 && repeats < MAX_REPEATS => {
                repeats += 1;
            }
            result => return result,
        }
    }
}

/// Removes a directory in `top`, moving its nonempty subdirectories up to `top`.
fn remove_child(
    top: BorrowedFd<'_>,
    name: &[u8],
    serial: &mut u64,
    failures: &mut RemovalFailures,
) -> Result<(), Errno> {
    match unlinkat(top, name, AtFlags::REMOVEDIR) {
        Err(Errno::NOTEMPTY | Errno::EXIST) => {}
        result => return result,
    }
    let child = open_with_access(top, name)?;
    for entry in entries(&child)? {
        let entry = entry?;
        let flags = match is_directory(&child, &entry) {
            true => AtFlags::REMOVEDIR,
            false => AtFlags::empty(),
        };
        let entry = entry.file_name().to_bytes();
        let result = match unlinkat(&child, entry, flags) {
            Err(Errno::NOTEMPTY | Errno::EXIST) => move_up(top, &child, entry, serial),
            result => result,
        };
        match result {
            Ok(()) | Err(Errno::NOENT) => {}
            // The others can still be removed.
            Err(error) => failures.add(entry, error),
        }
    }
    unlinkat(top, name, AtFlags::REMOVEDIR)
}

/// Moves a directory to `top` under a free name.
fn move_up(
    top: BorrowedFd<'_>,
    child: &OwnedFd,
    name: &[u8],
    serial: &mut u64,
) -> Result<(), Errno> {
    // A directory that is not writable can't be moved, because its `..` changes.
    open_with_access(child.as_fd(), name)?;
    loop {
        *serial += 1;
        let free = format!(".cantle-removed-{serial}");
        match renameat(child, name, top, free) {
            // The name is taken.
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => {}
            result => return result,
        }
    }
}

/// Whether an entry of a directory is a directory.
fn is_directory(directory: &OwnedFd, entry: &DirEntry) -> bool {
    match entry.file_type() {
        // Not every file system reports it.
        FileType::Unknown => {
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            statat(directory, entry.file_name(), flags)
                .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
        }
        kind => kind == FileType::Directory,
    }
}
