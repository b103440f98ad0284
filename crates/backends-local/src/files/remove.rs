//! Removing things, however deep and with whatever permissions.

use std::fmt::Write as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;

use cantle_core::sandbox::{SandboxError, SandboxPath};
use rustix::fs::{AtFlags, Dir, DirEntry, FileType, Mode, open, renameat, statat, unlinkat};
use rustix::io::Errno;

use super::beneath::open_for_removal;
use super::{DIRECTORY, Root};

impl Root {
    /// Removes a file, a link, or a directory with all that is in it.
    pub(crate) fn remove(&self, path: &SandboxPath) -> Result<(), SandboxError> {
        let failed = |error| self.failure("remove", path, error);
        self.refuse_fixed("remove", path)?;
        let (parent, name) = self.open_parent(path, "remove")?;
        let stat = statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            return unlinkat(&parent, name, AtFlags::empty()).map_err(failed);
        }
        let mut left = Left::default();
        match remove_directory(parent.as_fd(), name, &mut left) {
            Ok(()) => Ok(()),
            Err(error) => Err(left.error(&path.to_string(), error)),
        }
    }

    /// Removes the sandbox's directory.
    ///
    /// # Errors
    /// Says what is left.
    pub(crate) fn delete(&self) -> Result<(), SandboxError> {
        let base = self.places().base();
        let (Some(parent), Some(name)) = (base.parent(), base.file_name()) else {
            return Ok(());
        };
        let name = name.as_bytes();
        let mut left = Left::default();
        open(parent, DIRECTORY, Mode::empty())
            .and_then(|parent| remove_directory(parent.as_fd(), name, &mut left))
            .or_else(|error| {
                if error == Errno::NOENT {
                    Ok(())
                } else {
                    Err(error)
                }
            })
            .map_err(|error| left.error(&base.to_string_lossy(), error))
    }
}

/// How often to begin again where something new has turned up.
const PATIENCE: u32 = 16;

/// What couldn't be removed.
#[derive(Default)]
pub(super) struct Left {
    named: Vec<String>,
    more: usize,
}

impl Left {
    const MOST_NAMED: usize = 3;

    fn add(&mut self, name: &[u8], error: Errno) {
        if self.named.len() < Self::MOST_NAMED {
            let name = String::from_utf8_lossy(name);
            self.named.push(format!("`{name}` ({error})"));
        } else {
            self.more += 1;
        }
    }

    pub(super) fn error(&self, path: &str, error: Errno) -> SandboxError {
        let mut message = format!("failed to remove `{path}`");
        for (index, name) in self.named.iter().enumerate() {
            let before = if index == 0 { ": it still has " } else { ", " };
            let _ = write!(message, "{before}{name}");
        }
        if self.more > 0 {
            let _ = write!(message, " and {} more", self.more);
        }
        SandboxError::io(message, error.into())
    }
}

/// Removes a directory and all that is in it.
///
/// Directories in it are emptied into it rather than walked into, so that neither depth nor the
/// number of open descriptors nor the length of a path is a limit.
pub(super) fn remove_directory(
    parent: BorrowedFd<'_>,
    name: &[u8],
    left: &mut Left,
) -> Result<(), Errno> {
    match unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Err(Errno::NOTEMPTY | Errno::EXIST) => {}
        // What is in it can't be read or changed, whatever that is; or it is none, or gone.
        result => return result,
    }
    let top = open_for_removal(parent, name)?;
    let (mut serial, mut patience) = (0, PATIENCE);
    loop {
        *left = Left::default();
        let (mut removed, moved_before) = (0, serial);
        for entry in Entries::of(&top)? {
            let (entry, is_directory) = entry?;
            let result = if is_directory {
                remove_child(top.as_fd(), &entry, &mut serial, left)
            } else {
                unlinkat(&top, entry.as_slice(), AtFlags::empty())
            };
            match result {
                Ok(()) | Err(Errno::NOENT) => removed += 1,
                // What is still in it has been named.
                Err(Errno::NOTEMPTY) if is_directory => {}
                Err(error) => left.add(&entry, error),
            }
        }
        match unlinkat(parent, name, AtFlags::REMOVEDIR) {
            Err(Errno::NOTEMPTY | Errno::EXIST) if serial > moved_before => {}
            // Somebody else makes things in it, and may never stop.
            Err(Errno::NOTEMPTY | Errno::EXIST) if removed > 0 && patience > 0 => patience -= 1,
            result => return result,
        }
    }
}

/// Removes a directory from `top`; the directories in it that aren't empty move up to `top`.
fn remove_child(
    top: BorrowedFd<'_>,
    name: &[u8],
    serial: &mut u64,
    left: &mut Left,
) -> Result<(), Errno> {
    match unlinkat(top, name, AtFlags::REMOVEDIR) {
        Err(Errno::NOTEMPTY | Errno::EXIST) => {}
        result => return result,
    }
    let child = open_for_removal(top, name)?;
    for entry in Entries::of(&child)? {
        let (entry, is_directory) = entry?;
        let flags = if is_directory {
            AtFlags::REMOVEDIR
        } else {
            AtFlags::empty()
        };
        let result = match unlinkat(&child, entry.as_slice(), flags) {
            Err(Errno::NOTEMPTY | Errno::EXIST) => move_up(top, &child, &entry, serial),
            result => result,
        };
        match result {
            Ok(()) | Err(Errno::NOENT) => {}
            // The others can go all the same.
            Err(error) => left.add(&entry, error),
        }
    }
    unlinkat(top, name, AtFlags::REMOVEDIR)
}

/// Moves a directory to `top` under a name that is free there.
fn move_up(
    top: BorrowedFd<'_>,
    child: &OwnedFd,
    name: &[u8],
    serial: &mut u64,
) -> Result<(), Errno> {
    // A directory that may not be written can't be moved either: its `..` changes.
    open_for_removal(child.as_fd(), name)?;
    loop {
        *serial += 1;
        let free = format!(".cantle-removed-{serial}");
        match renameat(child, name, top, free) {
            // It isn't free.
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => {}
            result => return result,
        }
    }
}

/// What is in a directory, and whether it is a directory in turn.
struct Entries<'d> {
    directory: &'d OwnedFd,
    entries: Dir,
}

impl<'d> Entries<'d> {
    fn of(directory: &'d OwnedFd) -> Result<Self, Errno> {
        let entries = Dir::read_from(directory)?;
        Ok(Self { directory, entries })
    }

    fn is_directory(&self, entry: &DirEntry) -> bool {
        match entry.file_type() {
            // Not every file system says it at once.
            FileType::Unknown => {
                let flags = AtFlags::SYMLINK_NOFOLLOW;
                statat(self.directory, entry.file_name(), flags)
                    .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
            }
            kind => kind == FileType::Directory,
        }
    }
}

impl Iterator for Entries<'_> {
    type Item = Result<(Vec<u8>, bool), Errno>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let entry = match self.entries.read()? {
                Ok(entry) => entry,
                Err(error) => return Some(Err(error)),
            };
            let name = entry.file_name().to_bytes();
            if !matches!(name, b"." | b"..") {
                return Some(Ok((name.to_vec(), self.is_directory(&entry))));
            }
        }
    }
}
