//! Removing things, however deep and with whatever permissions.

use core::ffi::CStr;

use super::root::Root;
use super::tree::Entries;
use super::{Failure, Name};
use crate::sys::{self, EEXIST, ENOENT, ENOTDIR, ENOTEMPTY, EXDEV, Errno, Fd, FileType};
use crate::tasks::Reason;
use crate::text::Text;

/// How often to begin again where something new has turned up.
const PATIENCE: u32 = 16;

/// Removes a file, a link, or a directory with all that is in it.
pub fn remove(root: &Root<'_>, path: &CStr) -> Result<(), Failure> {
    let (parent, name) = root.open_parent(path)?;
    if sys::statat(parent, name)?.file_type() != FileType::Directory {
        return Ok(sys::unlinkat(parent, name, false)?);
    }
    let mut left = Left(None);
    remove_directory(parent, name, &mut left).map_err(|errno| match left.0 {
        Some((name, errno)) => Failure {
            reason: Reason::Left,
            errno,
            name,
        },
        None => errno.into(),
    })
}

/// The first that couldn't be removed, and why.
struct Left(Option<(Name, Errno)>);

impl Left {
    fn add(&mut self, name: &CStr, errno: Errno) {
        self.0.get_or_insert_with(|| (Name::of(name), errno));
    }
}

/// Removes a directory and all that is in it.
///
/// Directories in it are emptied into it rather than walked into, so that neither depth nor the
/// number of open descriptors nor the length of a path is a limit.
fn remove_directory(parent: Fd, name: &CStr, left: &mut Left) -> sys::Result<()> {
    match sys::unlinkat(parent, name, true) {
        Err(ENOTEMPTY | EEXIST) => {}
        // What is in it can't be read or changed, whatever that is; or it is none, or gone.
        result => return result,
    }
    let top = open_for_removal(parent, name)?;
    let (mut serial, mut patience) = (0, PATIENCE);
    loop {
        *left = Left(None);
        let (mut removed, moved_before) = (0, serial);
        sys::rewind(top)?;
        let mut entries = Entries::of(top);
        while let Some((entry, is_directory)) = entries.next()? {
            let is_directory = is_directory.unwrap_or_else(|| is_directory_at(top, entry));
            let result = if is_directory {
                remove_child(top, entry, &mut serial, left)
            } else {
                sys::unlinkat(top, entry, false)
            };
            match result {
                Ok(()) | Err(ENOENT) => removed += 1,
                // What is still in it has been named.
                Err(ENOTEMPTY) if is_directory => {}
                Err(errno) => left.add(entry, errno),
            }
        }
        match sys::unlinkat(parent, name, true) {
            Err(ENOTEMPTY | EEXIST) if serial > moved_before => {}
            // Somebody else makes things in it, and may never stop.
            Err(ENOTEMPTY | EEXIST) if removed > 0 && patience > 0 => patience -= 1,
            result => return result,
        }
    }
}

/// Removes a directory from `top`; the directories in it that aren't empty move up to `top`.
fn remove_child(top: Fd, name: &CStr, serial: &mut i32, left: &mut Left) -> sys::Result<()> {
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
            // The others can go all the same.
            Err(errno) => left.add(entry, errno),
        }
    }
    sys::close(child);
    sys::unlinkat(top, name, true)
}

/// Moves a directory to `top` under a name that is free there.
fn move_up(top: Fd, child: Fd, name: &CStr, serial: &mut i32) -> sys::Result<()> {
    // A directory that may not be written can't be moved either: its `..` changes.
    sys::close(open_for_removal(child, name)?);
    loop {
        *serial += 1;
        let free = Text::new().text(b".cantle-removed-").number(*serial);
        match sys::renameat(child, name, top, free.as_c()) {
            // It isn't free.
            Err(ENOTEMPTY | EEXIST | ENOTDIR) => {}
            result => return result,
        }
    }
}

/// Opens a directory so that what is in it can be removed, whatever its permissions are. Another file
/// system that is mounted there isn't ours to empty.
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
        // By descriptor, so that it can't be another one. What fails here fails below, too.
        let path = Text::new().text(b"/proc/self/fd/").number(directory.0);
        let _ = sys::chmod(path.as_c(), ALL);
    }
    let flags = sys::O_RDONLY | sys::O_DIRECTORY;
    sys::openat(directory, c".", flags, 0)
}

fn is_directory_at(directory: Fd, name: &CStr) -> bool {
    sys::statat(directory, name).is_ok_and(|stat| stat.file_type() == FileType::Directory)
}
