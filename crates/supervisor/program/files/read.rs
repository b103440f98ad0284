//! Reading a file.

use core::ffi::CStr;

use super::root::Root;
use super::{Failure, OUTPUT};
use crate::sys::{self, EINTR, EINVAL, Fd, Stat};
use crate::tasks::{EntryKind, TaskErrorKind};

const BUFFER_BYTES: usize = 128 * 1024;
/// Maximum bytes of one splice.
const SPLICE_BYTES: usize = 1024 * 1024;

/// Writes the bytes of a regular file to stdout.
pub fn read(root: &Root<'_>, path: &CStr, offset: u64, length: u64) -> Result<(), Failure> {
    let (file, stat) = open(root, path)?;
    copy(file, stat, offset, length)
}

fn open(root: &Root<'_>, path: &CStr) -> Result<(Fd, Stat), Failure> {
    // Nonblocking: opening a pipe without a writer must not wait.
    let file = root.open_path(path.to_bytes(), sys::O_RDONLY)?;
    let stat = sys::statat(file, c"")?;
    if stat.kind() != EntryKind::File {
        return Err(Failure::new(TaskErrorKind::NotAFile, EINVAL));
    }
    Ok((file, stat))
}

fn copy(file: Fd, stat: Stat, mut offset: u64, mut left: u64) -> Result<(), Failure> {
    // Files of `/proc` and the like have size zero but content.
    if stat.size > 0 && sys::seek(file, offset).is_ok() {
        while left > 0 {
            let most = usize::try_from(left).map_or(SPLICE_BYTES, |left| left.min(SPLICE_BYTES));
            match sys::splice(file, OUTPUT, most, true) {
                Ok(0) => return Ok(()),
                Ok(count) => {
                    offset += count as u64;
                    left -= count as u64;
                }
                Err(EINTR) => {}
                // The file system can't splice; any other error recurs when reading.
                Err(_) => break,
            }
        }
    }
    let mut buffer = [0; BUFFER_BYTES];
    while left > 0 && offset <= i64::MAX as u64 {
        let most = usize::try_from(left).map_or(BUFFER_BYTES, |left| left.min(BUFFER_BYTES));
        let count = sys::pread(file, &mut buffer[..most], offset)?;
        if count == 0 {
            break;
        }
        sys::write_all(OUTPUT, &buffer[..count])?;
        offset += count as u64;
        left -= count as u64;
    }
    Ok(())
}
