//! Writing a file, whole or not at all.

use core::ffi::CStr;

use super::root::Root;
use super::{Failure, INPUT, tree};
use crate::sys::{self, EEXIST, EINTR, EINVAL, ENOENT, Fd, FileType};
use crate::tasks::Reason;

/// Bytes that are read at once.
const BUFFER_BYTES: usize = 128 * 1024;

/// How many names to try that somebody else may have.
const MOST_NAMES: u32 = 16;

/// Writes the input's pieces under another name, and gives the file its own when it is complete. A
/// link that is there is replaced, not followed.
pub fn write(root: &Root<'_>, path: &CStr, mode: u32) -> Result<(), Failure> {
    let not_a_file = || Failure::new(Reason::NotAFile, EINVAL);
    tree::make_parent(root, path)?;
    let (directory, name) = root.open_parent(path)?;
    if name.is_empty() {
        return Err(not_a_file());
    }
    match sys::statat(directory, name).map(|stat| stat.file_type()) {
        Ok(FileType::Regular | FileType::Link) | Err(ENOENT) => {}
        Ok(_) => return Err(not_a_file()),
        Err(errno) => return Err(errno.into()),
    }
    let (draft, file) = Draft::new(directory)?;
    let written = copy_pieces(file).and_then(|()| {
        sys::fchmod(file, mode & 0o777)?;
        Ok(sys::renameat(directory, draft.name(), directory, name)?)
    });
    if written.is_err() {
        // It may be gone together with its directory.
        let _ = sys::unlinkat(directory, draft.name(), false);
    }
    written
}

/// The name of a file that isn't complete.
struct Draft([u8; 32]);

impl Draft {
    fn new(directory: Fd) -> Result<(Self, Fd), Failure> {
        const PREFIX: &[u8] = b".cantle-";
        for _ in 0..MOST_NAMES {
            let mut name = [0; 32];
            name[..PREFIX.len()].copy_from_slice(PREFIX);
            let random = sys::random()?;
            for (at, digit) in name[PREFIX.len()..][..16].iter_mut().enumerate() {
                *digit = b"0123456789abcdef"[(random >> (4 * at)) as usize & 15];
            }
            let draft = Self(name);
            let flags = sys::O_WRONLY | sys::O_CREAT | sys::O_EXCL;
            match sys::openat(directory, draft.name(), flags, 0o600) {
                Err(EEXIST) => {}
                opened => return Ok((draft, opened?)),
            }
        }
        Err(EEXIST.into())
    }

    fn name(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).unwrap_or_default()
    }
}

fn copy_pieces(file: Fd) -> Result<(), Failure> {
    let mut buffer = [0; BUFFER_BYTES];
    loop {
        let mut length = [0; 4];
        let mut known = 0;
        while known < length.len() {
            known += complete(sys::read(INPUT, &mut length[known..]))?;
        }
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

/// How much has come; there is always more, until the last piece has said that it is the last.
fn complete(came: sys::Result<usize>) -> Result<usize, Failure> {
    match came {
        Ok(0) => Err(Failure::new(Reason::Incomplete, EINVAL)),
        Err(EINTR) => Ok(0),
        came => Ok(came?),
    }
}
