//! Listing and creating directories, and renaming.

use core::ffi::CStr;

use super::root::Root;
use super::{Failure, OUTPUT, entry};
use crate::sys::{self, EEXIST, EISDIR, ENOENT, ENOTDIR, ENOTEMPTY, Entries};
use crate::tasks::{Entry, TaskErrorKind};
use crate::wire::encode_into;

const PATH_DIRECTORY: i32 = sys::O_PATH | sys::O_DIRECTORY;

/// Reports the entry at a path.
pub fn stat(root: &Root<'_>, path: &CStr) -> Result<(), Failure> {
    let (directory, name) = root.open_parent(path)?;
    let stat = sys::statat(directory, name)?;
    let mut buffer = EntryBuffer::new();
    buffer.add(&entry(&stat, b""))?;
    Ok(buffer.flush()?)
}

/// Reports the entries of a directory.
pub fn list(root: &Root<'_>, path: &CStr) -> Result<(), Failure> {
    let directory = root.open_path(path.to_bytes(), sys::O_RDONLY | sys::O_DIRECTORY)?;
    let mut buffer = EntryBuffer::new();
    let mut entries = Entries::of(directory);
    while let Some((name, _)) = entries.next()? {
        match sys::statat(directory, name) {
            Ok(stat) => buffer.add(&entry(&stat, name.to_bytes()))?,
            // Removed since it was listed.
            Err(ENOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(buffer.flush()?)
}

/// Entries that are written together.
struct EntryBuffer {
    bytes: [u8; 16 * 1024],
    length: usize,
}

impl EntryBuffer {
    fn new() -> Self {
        Self {
            bytes: [0; 16 * 1024],
            length: 0,
        }
    }

    fn add(&mut self, entry: &Entry<'_>) -> sys::Result<()> {
        let mut added = encode_into(entry, &mut self.bytes[self.length..]);
        if added.is_none() {
            self.flush()?;
            added = encode_into(entry, &mut self.bytes);
        }
        self.length += added.ok_or(sys::EINVAL)?;
        Ok(())
    }

    fn flush(&mut self) -> sys::Result<()> {
        sys::write_all(OUTPUT, &self.bytes[..self.length])?;
        self.length = 0;
        Ok(())
    }
}

/// Creates a directory and those above it.
pub fn make_directory(root: &Root<'_>, path: &CStr) -> Result<(), Failure> {
    make_directories(root, path.to_bytes()).map_err(|failure| {
        // The file is at the path itself, not above it.
        let exists = || {
            let (directory, name) = root.open_parent(path).ok()?;
            sys::statat(directory, name).ok()
        };
        if failure.errno == ENOTDIR && exists().is_some() {
            return Failure::new(TaskErrorKind::AlreadyExists, EEXIST);
        }
        failure
    })
}

/// Creates the directories above a path.
pub fn make_parent(root: &Root<'_>, path: &CStr) -> Result<(), Failure> {
    let bytes = path.to_bytes();
    match bytes.iter().rposition(|byte| *byte == b'/') {
        Some(slash) if slash > root.length() => make_directories(root, &bytes[..slash]),
        _ => Ok(()),
    }
}

fn make_directories(root: &Root<'_>, path: &[u8]) -> Result<(), Failure> {
    let open = |path| root.open_path(path, PATH_DIRECTORY).map(sys::close);
    match open(path) {
        Err(failure) if failure.errno == ENOENT => {}
        result => return result,
    }
    // The end of each component, outermost first.
    let ends = (root.length() + 1..=path.len()).filter(|end| {
        let next = path.get(*end);
        next.is_none_or(|byte| *byte == b'/') && path[*end - 1] != b'/'
    });
    for end in ends {
        match open(&path[..end]) {
            Err(failure) if failure.errno == ENOENT => {}
            result => {
                result?;
                continue;
            }
        }
        let mut buffer = [0; 256];
        let slash = path[..end]
            .iter()
            .rposition(|byte| *byte == b'/')
            .unwrap_or(0);
        let name = &path[slash + 1..end];
        if name.len() >= buffer.len() {
            return Err(sys::ENAMETOOLONG.into());
        }
        buffer[..name.len()].copy_from_slice(name);
        let name = CStr::from_bytes_until_nul(&buffer).map_err(|_| sys::EINVAL)?;
        let parent = root.open_path(&path[..slash.max(1)], PATH_DIRECTORY)?;
        let made = sys::mkdirat(parent, name, 0o755);
        sys::close(parent);
        match made {
            Ok(()) => {}
            // Created meanwhile; or a dangling link.
            Err(EEXIST) if open(&path[..end]).is_ok() => {}
            Err(EEXIST) => return Err(Failure::new(TaskErrorKind::AlreadyExists, EEXIST)),
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Renames a file or directory, replacing an existing file.
pub fn rename(root: &Root<'_>, from: &CStr, to: &CStr) -> Result<(), Failure> {
    let (source, name) = root.open_parent(from)?;
    let (target, new_name) = root.open_parent(to)?;
    sys::renameat(source, name, target, new_name).map_err(|errno| match errno {
        EISDIR | ENOTEMPTY | EEXIST => Failure::new(TaskErrorKind::AlreadyExists, errno),
        errno => errno.into(),
    })
}
