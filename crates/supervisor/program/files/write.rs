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
    let (mut start, mut end) = (0, 0);
    let mut left = 0;
    loop {
        let here = &buffer[start..end];
        if left > 0 && !here.is_empty() {
            let piece = &here[..here.len().min(left)];
            sys::write_all(file, piece)?;
            left -= piece.len();
            start += piece.len();
            continue;
        }
        if left == 0
            && let Some(length) = here.first_chunk::<4>()
        {
            left = u32::from_le_bytes(*length) as usize;
            start += length.len();
            if left == 0 {
                return Ok(());
            }
            continue;
        }
        buffer.copy_within(start..end, 0);
        end -= start;
        start = 0;
        match sys::read(INPUT, &mut buffer[end..]) {
            Ok(0) => return Err(Failure::new(Reason::Incomplete, EINVAL)),
            Ok(count) => end += count,
            Err(EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}
