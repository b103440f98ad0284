//! Writing a file, whole or not at all.

use core::ffi::CStr;

use super::root::Root;
use super::{Failure, INPUT, OUTPUT, tree};
use crate::sys::{self, EEXIST, EINTR, EINVAL, ENOENT, EXDEV, Fd, FileType};
use crate::tasks::{COMPLETE, Reason};
use crate::text::Text;
use crate::wire::STAGING;

/// Bytes that are read at once.
const BUFFER_BYTES: usize = 128 * 1024;

/// How many names to try that somebody else may have.
const MOST_NAMES: u32 = 16;

/// Writes the input's pieces to a file without a name, or under another one, and gives the file its own
/// when it is complete. A link that is there is replaced, not followed.
pub fn write(root: &Root<'_>, path: &CStr, mode: u32) -> Result<(), Failure> {
    let target = Target::open(root, path)?;
    let flags = sys::O_WRONLY | sys::O_CREAT | sys::O_EXCL;
    let create = |name: &CStr| sys::openat(target.directory, name, flags, 0o600);
    let permit = |file| Ok(sys::fchmod(file, mode & 0o777)?);
    if let Some((file, link)) = nameless(target.directory) {
        // Whoever kills us while it is written leaves nothing.
        copy_pieces(file)?;
        permit(file)?;
        let name = |name: &CStr| sys::name_file(link.as_c(), target.directory, name);
        if let Ok((draft, ())) = Draft::new(name) {
            return target.take(&draft, Ok(()));
        }
        // What confines the container may forbid it.
        let (draft, copy) = Draft::new(create)?;
        return target.take(&draft, copy_file(file, copy).and_then(|()| permit(copy)));
    }
    let (draft, file) = Draft::new(create)?;
    target.take(&draft, copy_pieces(file).and_then(|()| permit(file)))
}

/// A file without a name, and the link by which it can be given one; none where there is no such file or
/// no such link.
fn nameless(directory: Fd) -> Option<(Fd, Text)> {
    let file = sys::nameless_file(directory).ok()?;
    let link = Text::new().text(b"/proc/self/fd/").number(file.0);
    sys::statat(sys::AT_FDCWD, link.as_c()).ok()?;
    Some((file, link))
}

/// Gives a file that was brought its name, after writing what is missing of it. It is ours by then, so
/// that we may give it more than one.
pub fn place(root: &Root<'_>, path: &CStr, mode: u32, staged: &CStr) -> Result<(), Failure> {
    let target = Target::open(root, path)?;
    if sys::statat(target.directory, c"")?.device != sys::statat(sys::AT_FDCWD, STAGING)?.device {
        return Err(EXDEV.into());
    }
    sys::write_all(OUTPUT, &[COMPLETE])?;
    let mut brought = [0];
    read_all(&mut brought)?;
    if brought != [COMPLETE] {
        let mut offset = [0; 8];
        read_all(&mut offset)?;
        // It may have its own mode already.
        sys::chmod(staged, 0o600)?;
        let flags = sys::O_WRONLY | sys::O_NOFOLLOW;
        let file = sys::openat(sys::AT_FDCWD, staged, flags, 0)?;
        sys::seek(file, u64::from_le_bytes(offset))?;
        copy_pieces(file)?;
        sys::fchmod(file, mode & 0o777)?;
    }
    let link = |name: &CStr| sys::linkat(sys::AT_FDCWD, staged, target.directory, name);
    let (draft, ()) = Draft::new(link)?;
    target.take(&draft, Ok(()))
}

/// Where a file will be.
struct Target<'p> {
    directory: Fd,
    name: &'p CStr,
}

impl<'p> Target<'p> {
    /// Makes the directories above it.
    fn open(root: &Root<'_>, path: &'p CStr) -> Result<Self, Failure> {
        let not_a_file = || Failure::new(Reason::NotAFile, EINVAL);
        tree::make_parent(root, path)?;
        let (directory, name) = root.open_parent(path)?;
        if name.is_empty() {
            return Err(not_a_file());
        }
        match sys::statat(directory, name).map(|stat| stat.file_type()) {
            Ok(FileType::Regular | FileType::Link) | Err(ENOENT) => Ok(Self { directory, name }),
            Ok(_) => Err(not_a_file()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Becomes what was written, unless that failed.
    fn take(&self, draft: &Draft, written: Result<(), Failure>) -> Result<(), Failure> {
        let (directory, draft) = (self.directory, draft.name());
        let taken =
            written.and_then(|()| Ok(sys::renameat(directory, draft, directory, self.name)?));
        if taken.is_err() {
            // It may be gone together with its directory.
            let _ = sys::unlinkat(directory, draft, false);
        }
        taken
    }
}

/// A name of a file that doesn't have its own yet.
struct Draft([u8; 32]);

impl Draft {
    /// One that `make` could make.
    fn new<T>(make: impl Fn(&CStr) -> sys::Result<T>) -> Result<(Self, T), Failure> {
        const PREFIX: &[u8] = b".cantle-";
        for _ in 0..MOST_NAMES {
            let mut name = [0; 32];
            name[..PREFIX.len()].copy_from_slice(PREFIX);
            let random = sys::random()?;
            for (at, digit) in name[PREFIX.len()..][..16].iter_mut().enumerate() {
                *digit = b"0123456789abcdef"[(random >> (4 * at)) as usize & 15];
            }
            let draft = Self(name);
            match make(draft.name()) {
                Err(EEXIST) => {}
                made => return Ok((draft, made?)),
            }
        }
        Err(EEXIST.into())
    }

    fn name(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).unwrap_or_default()
    }
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
                // Its file system doesn't do that, or the kernel; another reason will be heard again.
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

/// How much has come; there is always more, until the last piece has said that it is the last.
fn complete(came: sys::Result<usize>) -> Result<usize, Failure> {
    match came {
        Ok(0) => Err(Failure::new(Reason::Incomplete, EINVAL)),
        Err(EINTR) => Ok(0),
        came => Ok(came?),
    }
}
