//! Removing directory trees of any depth and with any permissions.

use core::ffi::CStr;

use super::root::Root;
use super::{Failure, Name};
use crate::sys::{self, EEXIST, ENOENT, ENOTDIR, ENOTEMPTY, EXDEV, Entries, Errno, Fd};
use crate::tasks::{EntryKind, TaskErrorKind};
use crate::text::Text;

/// Repetitions while new entries keep appearing.
const MAX_REPEATS: u32 = 16;

/// Removes a file, a symbolic link, or a directory with its contents.
pub fn remove(root: &Root<'_>, path: &CStr) -> Result<(), Failure> {
    let (parent, name) = root.open_parent(path)?;
    if sys::statat(parent, name)?.kind() != EntryKind::Directory {
        return Ok(sys::unlinkat(parent, name, false)?);
    }
    let mut failed = FirstFailure(None);
    remove_directory(parent, name, &mut failed).map_err(|errno| match failed.0 {
        Some((name, errno)) => Failure {
            kind: TaskErrorKind::NotEmpty,
            errno,
            name,
        },
        None => errno.into(),
    })
}

/// The first entry that could not be removed, and the reason.
struct FirstFailure(Option<(Name, Errno)>);

impl FirstFailure {
    fn add(&mut self, name: &CStr, errno: Errno) {
        self.0
            .get_or_insert_with(|| (Name::of(name.to_bytes()), errno));
    }
}

/// Removes a directory and its contents.
///
/// Subdirectories are not descended into: their contents are moved up, so that neither depth nor open
/// descriptors nor path length is a limit.
fn remove_directory(parent: Fd, name: &CStr, failed: &mut FirstFailure) -> sys::Result<()> {
    match sys::unlinkat(parent, name, true) {
        Err(ENOTEMPTY | EEXIST) => {}
        // Removed, not a directory, missing, or refused whatever it contains.
        result => return result,
    }
    let top = open_for_removal(parent, name)?;
    let (mut serial, mut repeats) = (0, 0);
    loop {
        *failed = FirstFailure(None);
        let (mut removed, moved_before) = (0, serial);
        sys::seek(top, 0)?;
        let mut entries = Entries::of(top);
        while let Some((entry, is_directory)) = entries.next()? {
            let is_directory = is_directory.unwrap_or_else(|| is_directory_at(top, entry));
            let result = if is_directory {
                remove_child(top, entry, &mut serial, failed)
            } else {
                sys::unlinkat(top, entry, false)
            };
            match result {
                Ok(()) | Err(ENOENT) => removed += 1,
                // Its remaining contents have been recorded.
                Err(ENOTEMPTY) if is_directory => {}
                Err(errno) => failed.add(entry, errno),
            }
        }
        match sys::unlinkat(parent, name, true) {
            Err(ENOTEMPTY | EEXIST) if serial > moved_before => {}
            // Another process keeps adding entries, perhaps forever.
            Err(ENOTEMPTY | EEXIST) if removed > 0 && repeats < MAX_REPEATS => repeats += 1,
            result => return result,
        }
    }
}

/// Removes a directory in `top`, moving its nonempty subdirectories up to `top`.
fn remove_child(
    top: Fd,
    name: &CStr,
    serial: &mut i32,
    failed: &mut FirstFailure,
) -> sys::Result<()> {
    match sys::unlinkat(top, name, true) {
        Err(ENOTEMPTY | EEXIST) => {}
        result => return result,
    }
    let child = open_for_removal(top, name)?;
    let mut entries = Entries::of(child);
    while let Some((entry, is_directory)) = entries.next()? {
        let is_directory = is_directory.unwrap_or_else(|| is_directory_at(child, entry));
        let result = match sys::unlinkat(child, entry, is_directory) {
            Err(ENOTEMPTY | EEXIST) => move_up(top, child, entry, serial),
            result => result,
        };
        match result {
            Ok(()) | Err(ENOENT) => {}
            // The others can still be removed.
            Err(errno) => failed.add(entry, errno),
        }
    }
    sys::close(child);
    sys::unlinkat(top, name, true)
}

/// Moves a directory to `top` under a free name.
fn move_up(top: Fd, child: Fd, name: &CStr, serial: &mut i32) -> sys::Result<()> {
    // A directory that is not writable can't be moved, because its `..` changes.
    sys::close(open_for_removal(child, name)?);
    loop {
        *serial += 1;
        let free = Text::new().text(b".cantle-removed-").number(*serial);
        match sys::renameat(child, name, top, free.as_c()) {
            // The name is taken.
            Err(ENOTEMPTY | EEXIST | ENOTDIR) => {}
            result => return result,
        }
    }
}

/// Opens a directory and makes it writable, so that it can be emptied. A mount point is refused.
fn open_for_removal(parent: Fd, name: &CStr) -> sys::Result<Fd> {
    let flags = sys::O_PATH | sys::O_DIRECTORY | sys::O_NOFOLLOW;
    let directory = sys::openat(parent, name, flags, 0)?;
    let opened = open_whole(parent, directory);
    sys::close(directory);
    opened
}

fn open_whole(parent: Fd, directory: Fd) -> sys::Result<Fd> {
    const ALL: u32 = 0o700;
    let stat = sys::statat(directory, c"")?;
    if stat.device != sys::statat(parent, c"")?.device {
        return Err(EXDEV);
    }
    if stat.permissions() & ALL != ALL {
        // By descriptor, so that it is the same directory. A failure shows in the operations that follow.
        let path = Text::new().text(b"/proc/self/fd/").number(directory.0);
        let _ = sys::chmod(path.as_c(), ALL);
    }
    let flags = sys::O_RDONLY | sys::O_DIRECTORY;
    sys::openat(directory, c".", flags, 0)
}

fn is_directory_at(directory: Fd, name: &CStr) -> bool {
    sys::statat(directory, name).is_ok_and(|stat| stat.kind() == EntryKind::Directory)
}
