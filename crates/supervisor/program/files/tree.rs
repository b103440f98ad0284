//! Looking at directories, making them, moving things.

use core::ffi::CStr;

use super::root::Root;
use super::{Failure, OUTPUT, entry};
use crate::sys::{self, EEXIST, EISDIR, ENOENT, ENOTDIR, ENOTEMPTY, Fd};
use crate::tasks::{ENTRY_BYTES, Entry, Reason};

const LOOK: i32 = sys::O_PATH | sys::O_DIRECTORY;

/// Says what is at a path.
pub fn look(root: &Root<'_>, path: &CStr) -> Result<(), Failure> {
    let (directory, name) = root.open_parent(path)?;
    let stat = sys::statat(directory, name)?;
    Ok(sys::write_all(OUTPUT, &entry(&stat, b"").encode_head())?)
}

/// Says what is in a directory.
pub fn list(root: &Root<'_>, path: &CStr) -> Result<(), Failure> {
    let directory = root.open_path(path.to_bytes(), sys::O_RDONLY | sys::O_DIRECTORY)?;
    let mut page = Page::new();
    let mut entries = Entries::of(directory);
    while let Some((name, _)) = entries.next()? {
        match sys::statat(directory, name) {
            Ok(stat) => page.add(&entry(&stat, name.to_bytes()))?,
            // Removed since it was listed.
            Err(ENOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(page.flush()?)
}

/// Entries that are written together.
struct Page {
    bytes: [u8; 16 * 1024],
    length: usize,
}

impl Page {
    fn new() -> Self {
        Self {
            bytes: [0; 16 * 1024],
            length: 0,
        }
    }

    fn add(&mut self, entry: &Entry<'_>) -> sys::Result<()> {
        if self.bytes.len() - self.length < ENTRY_BYTES + entry.name.len() {
            self.flush()?;
        }
        for part in [&entry.encode_head()[..], entry.name] {
            self.bytes[self.length..][..part.len()].copy_from_slice(part);
            self.length += part.len();
        }
        Ok(())
    }

    fn flush(&mut self) -> sys::Result<()> {
        sys::write_all(OUTPUT, &self.bytes[..self.length])?;
        self.length = 0;
        Ok(())
    }
}

/// Makes a directory and those above it.
pub fn make_directory(root: &Root<'_>, path: &CStr) -> Result<(), Failure> {
    make_directories(root, path.to_bytes()).map_err(|failure| {
        // A file is there, not above it.
        let is_there = || {
            let (directory, name) = root.open_parent(path).ok()?;
            sys::statat(directory, name).ok()
        };
        if failure.errno == ENOTDIR && is_there().is_some() {
            return Failure::new(Reason::AlreadyThere, EEXIST);
        }
        failure
    })
}

/// Makes the directories above a path.
pub fn make_parent(root: &Root<'_>, path: &CStr) -> Result<(), Failure> {
    let bytes = path.to_bytes();
    match bytes.iter().rposition(|byte| *byte == b'/') {
        Some(slash) if slash > root.length() => make_directories(root, &bytes[..slash]),
        _ => Ok(()),
    }
}

fn make_directories(root: &Root<'_>, path: &[u8]) -> Result<(), Failure> {
    let open = |path| root.open_path(path, LOOK).map(sys::close);
    match open(path) {
        Err(failure) if failure.errno == ENOENT => {}
        result => return result,
    }
    // Where each of its components ends, the outermost first.
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
        let parent = root.open_path(&path[..slash.max(1)], LOOK)?;
        let made = sys::mkdirat(parent, name, 0o755);
        sys::close(parent);
        match made {
            Ok(()) => {}
            // Made since we looked, or a link that leads nowhere.
            Err(EEXIST) if open(&path[..end]).is_ok() => {}
            Err(EEXIST) => return Err(Failure::new(Reason::AlreadyThere, EEXIST)),
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Moves something, in place of a file that is there.
pub fn rename(root: &Root<'_>, from: &CStr, to: &CStr) -> Result<(), Failure> {
    let (source, name) = root.open_parent(from)?;
    let (target, new_name) = root.open_parent(to)?;
    sys::renameat(source, name, target, new_name).map_err(|errno| match errno {
        EISDIR | ENOTEMPTY | EEXIST => Failure::new(Reason::AlreadyThere, errno),
        errno => errno.into(),
    })
}

/// What is in a directory: names, and whether they are directories' where that is known.
pub struct Entries {
    directory: Fd,
    page: [u8; 8192],
    start: usize,
    end: usize,
}

impl Entries {
    pub fn of(directory: Fd) -> Self {
        Self {
            directory,
            page: [0; 8192],
            start: 0,
            end: 0,
        }
    }

    pub fn next(&mut self) -> sys::Result<Option<(&CStr, Option<bool>)>> {
        const DIRECTORY: u8 = 4;
        loop {
            if self.start == self.end {
                self.start = 0;
                self.end = sys::getdents(self.directory, &mut self.page)?;
                if self.end == 0 {
                    return Ok(None);
                }
            }
            // An entry: inode, offset (8 bytes each), its length (2), a type (1), its name, NUL.
            let start = self.start;
            let length = [self.page[start + 16], self.page[start + 17]];
            self.start += usize::from(u16::from_le_bytes(length));
            let name = &self.page[start + 19..self.start];
            if name.starts_with(b".\0") || name.starts_with(b"..\0") {
                continue;
            }
            let is_directory = match self.page[start + 18] {
                // Not every file system says it at once.
                0 => None,
                kind => Some(kind == DIRECTORY),
            };
            let name = &self.page[start + 19..self.start];
            let name = CStr::from_bytes_until_nul(name).map_err(|_| sys::EINVAL)?;
            return Ok(Some((name, is_directory)));
        }
    }
}
