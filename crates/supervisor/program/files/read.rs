//! Reading a file.

use core::ffi::CStr;

use super::root::Root;
use super::{Failure, INPUT, OUTPUT};
use crate::sys::{self, EINTR, EINVAL, ENOENT, Fd, FileType, Stat};
use crate::tasks::Reason;

/// Bytes that are read at once.
const PIECE_BYTES: usize = 128 * 1024;
/// Bytes that are moved at once, as far as there is room.
const MOVED_BYTES: usize = 1024 * 1024;

/// Writes a regular file's bytes to the output.
pub fn read(root: &Root<'_>, path: &CStr, offset: u64, length: u64) -> Result<(), Failure> {
    let (file, stat) = open(root, path)?;
    copy(file, stat, offset, length)
}

/// The same for all of a file, which is offered before where it is large.
pub fn offer(
    root: &Root<'_>,
    path: &CStr,
    offered: &CStr,
    least_bytes: u64,
) -> Result<(), Failure> {
    let (file, stat) = open(root, path)?;
    let mut offset = 0;
    if stat.size as u64 >= least_bytes && link(root, path, &stat, offered).is_ok() {
        sys::write_all(OUTPUT, &[1])?;
        sys::write_all(OUTPUT, &stat.inode.to_le_bytes())?;
        let mut from = [0; 8];
        let mut known = 0;
        while known < from.len() {
            known += match sys::read(INPUT, &mut from[known..]) {
                Ok(0) => return Ok(()),
                Err(EINTR) => 0,
                read => read?,
            };
        }
        offset = u64::from_le_bytes(from);
    } else {
        sys::write_all(OUTPUT, &[0])?;
    }
    copy(file, stat, offset, u64::MAX)
}

/// Gives a file that was opened another name, unless it is another one by now.
fn link(root: &Root<'_>, path: &CStr, stat: &Stat, offered: &CStr) -> Result<(), Failure> {
    let (directory, name) = root.open_parent(path)?;
    let found = sys::statat(directory, name)?;
    if (found.device, found.inode) != (stat.device, stat.inode) {
        return Err(ENOENT.into());
    }
    Ok(sys::linkat(directory, name, sys::AT_FDCWD, offered)?)
}

fn open(root: &Root<'_>, path: &CStr) -> Result<(Fd, Stat), Failure> {
    // Opened without blocking: a pipe without a writer is no reason to wait.
    let file = root.open_path(path.to_bytes(), sys::O_RDONLY)?;
    let stat = sys::statat(file, c"")?;
    if stat.file_type() != FileType::Regular {
        return Err(Failure::new(Reason::NotAFile, EINVAL));
    }
    Ok((file, stat))
}

fn copy(file: Fd, stat: Stat, mut offset: u64, mut left: u64) -> Result<(), Failure> {
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
