//! Reading a file.

use core::ffi::CStr;

use super::root::Root;
use super::{Failure, OUTPUT};
use crate::sys::{self, EINVAL, FileType};
use crate::tasks::Reason;

/// Bytes that are read at once.
const PIECE_BYTES: usize = 128 * 1024;

/// Writes a regular file's bytes to the output.
pub fn read(root: &Root<'_>, path: &CStr, offset: u64, length: u64) -> Result<(), Failure> {
    // Opened without blocking: a pipe without a writer is no reason to wait.
    let file = root.open_path(path.to_bytes(), sys::O_RDONLY)?;
    if sys::statat(file, c"")?.file_type() != FileType::Regular {
        return Err(Failure::new(Reason::NotAFile, EINVAL));
    }
    let mut piece = [0; PIECE_BYTES];
    let (mut offset, mut left) = (offset, length);
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
