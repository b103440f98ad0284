//! Writing a file atomically.

use core::ffi::CStr;

use super::root::Root;
use super::{Failure, INPUT, tree};
use crate::sys::{self, EEXIST, EINTR, EINVAL, ENOENT, Fd};
use crate::tasks::{EntryKind, TaskErrorKind};
use crate::text::Text;

const BUFFER_BYTES: usize = 128 * 1024;

/// Attempts to find a free temporary name.
const MAX_NAMES: u32 = 16;

/// Writes the chunks of stdin to an unnamed or temporary file, and names it when it is complete. An existing
/// symbolic link is replaced, not followed.
pub fn write(root: &Root<'_>, path: &CStr, mode: u32) -> Result<(), Failure> {
    let target = Target::open(root, path)?;
    let flags = sys::O_WRONLY | sys::O_CREAT | sys::O_EXCL;
    let create = |name: &CStr| sys::openat(target.directory, name, flags, 0o600);
    let permit = |file| Ok(sys::fchmod(file, mode & 0o777)?);
    if let Some((file, link)) = unnamed_file(target.directory) {
        // If this process is killed while writing, nothing is left.
        copy_pieces(file)?;
        permit(file)?;
        let name = |name: &CStr| sys::name_file(link.as_c(), target.directory, name);
        if let Ok((temporary, ())) = with_temporary_name(name) {
            return target.replace(&temporary, Ok(()));
        }
        // The container's confinement may forbid linking it.
        let (temporary, copy) = with_temporary_name(create)?;
        let written = copy_file(file, copy).and_then(|()| permit(copy));
        return target.replace(&temporary, written);
    }
    let (temporary, file) = with_temporary_name(create)?;
    target.replace(&temporary, copy_pieces(file).and_then(|()| permit(file)))
}

/// Creates an unnamed file and returns it with the link by which it can be named; `None` if the file system
/// has no unnamed files or `/proc` is missing.
fn unnamed_file(directory: Fd) -> Option<(Fd, Text)> {
    let file = sys::unnamed_file(directory).ok()?;
    let link = Text::new().text(b"/proc/self/fd/").number(file.0);
    sys::statat(sys::AT_FDCWD, link.as_c()).ok()?;
    Some((file, link))
}

/// The path of a file to write.
struct Target<'p> {
    directory: Fd,
    name: &'p CStr,
}

impl<'p> Target<'p> {
    /// Creates the directories above the path.
    fn open(root: &Root<'_>, path: &'p CStr) -> Result<Self, Failure> {
        let not_a_file = || Failure::new(TaskErrorKind::NotAFile, EINVAL);
        tree::make_parent(root, path)?;
        let (directory, name) = root.open_parent(path)?;
        if name.is_empty() {
            return Err(not_a_file());
        }
        match sys::statat(directory, name).map(|stat| stat.kind()) {
            Ok(EntryKind::File | EntryKind::Link) | Err(ENOENT) => Ok(Self { directory, name }),
            Ok(_) => Err(not_a_file()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Renames a written file to the path; removes it if writing or renaming failed.
    fn replace(&self, temporary: &Text, written: Result<(), Failure>) -> Result<(), Failure> {
        let (directory, from) = (self.directory, temporary.as_c());
        let renamed =
            written.and_then(|()| Ok(sys::renameat(directory, from, directory, self.name)?));
        if renamed.is_err() {
            // It may be gone together with its directory.
            let _ = sys::unlinkat(directory, from, false);
        }
        renamed
    }
}

/// Tries random temporary names until `make` succeeds with one.
fn with_temporary_name<T>(make: impl Fn(&CStr) -> sys::Result<T>) -> Result<(Text, T), Failure> {
    for _ in 0..MAX_NAMES {
        let name = Text::new().text(b".cantle-").hex(sys::random()?);
        match make(name.as_c()) {
            Err(EEXIST) => {}
            made => return Ok((name, made?)),
        }
    }
    Err(EEXIST.into())
}

fn copy_file(from: Fd, to: Fd) -> Result<(), Failure> {
    let mut buffer = [0; BUFFER_BYTES];
    let mut offset = 0;
    loop {
        match sys::pread(from, &mut buffer, offset)? {
            0 => return Ok(()),
            count => {
                sys::write_all(to, &buffer[..count])?;
                offset += count as u64;
            }
        }
    }
}

fn copy_pieces(file: Fd) -> Result<(), Failure> {
    let mut buffer = [0; BUFFER_BYTES];
    loop {
        let mut length = [0; 4];
        read_all(&mut length)?;
        let mut left = u32::from_le_bytes(length) as usize;
        if left == 0 {
            return Ok(());
        }
        while left > 0 {
            left -= match sys::splice(INPUT, file, left, true) {
                Err(EINTR) => 0,
                // The file system can't splice; any other error recurs when reading.
                Err(_) => {
                    let most = left.min(BUFFER_BYTES);
                    let count = complete(sys::read(INPUT, &mut buffer[..most]))?;
                    sys::write_all(file, &buffer[..count])?;
                    count
                }
                moved => complete(moved)?,
            };
        }
    }
}

fn read_all(bytes: &mut [u8]) -> Result<(), Failure> {
    let mut known = 0;
    while known < bytes.len() {
        known += complete(sys::read(INPUT, &mut bytes[known..]))?;
    }
    Ok(())
}

/// Checks a read of stdin, whose end before the last chunk is an error.
fn complete(read: sys::Result<usize>) -> Result<usize, Failure> {
    match read {
        Ok(0) => Err(Failure::new(TaskErrorKind::Incomplete, EINVAL)),
        Err(EINTR) => Ok(0),
        read => Ok(read?),
    }
}
