//! Reading a file.

use core::ffi::CStr;

use super::root::Root;
use super::{Failure, OUTPUT};
use crate::sys::{self, EINTR, EINVAL, FileType};
use crate::tasks::Reason;

/// Bytes that are read at once.
const PIECE_BYTES: usize = 128 * 1024;
/// Bytes that are moved at once, as far as there is room.
const MOVED_BYTES: usize = 1024 * 1024;

/// Writes a regular file's bytes to the output.
pub fn read(root: &Root<'_>, path: &CStr, offset: u64, length: u64) -> Result<(), Failure> {
    // Opened without blocking: a pipe without a writer is no reason to wait.
    let file = root.open_path(path.to_bytes(), sys::O_RDONLY)?;
    let stat = sys::statat(file, c"")?;
    if stat.file_type() != FileType::Regular {
        return Err(Failure::new(Reason::NotAFile, EINVAL));
    }
    let (mut offset, mut left) = (offset, length);
    // What the kernel makes up as it is read has no size.
    if stat.size > 0 && sys::seek(file, offset).is_ok() {
        while left > 0 {
            let most = usize::try_from(left).map_or(MOVED_BYTES, |left| left.min(MOVED_BYTES));
            match sys::splice(file, OUTPUT, most, true) {
                Ok(0) => return Ok(()),
                Ok(count) => {
                    offset += count as u64;
                    left -= count as u64;
                }
                Err(EINTR) => {}
                // Its file system doesn't do that, or the kernel; another reason will be heard again.
                Err(_) => break,
            }
        }
    }
    let mut piece = [0; PIECE_BYTES];
    while left > 0 && offset <= i64::MAX as u64 {
        let most = usize::try_from(left).map_or(PIECE_BYTES, |left| left.min(PIECE_BYTES));
        let count = sys::pread(file, &mut piece[..most], offset)?;
        if count == 0 {
            break;
        }
        sys::write_all(OUTPUT, &piece[..count])?;
        offset += count as u64;
        left -= count as u64;
    }
    Ok(())
}
