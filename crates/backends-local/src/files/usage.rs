//! Disk usage of a sandbox's files.

use std::os::fd::{AsFd, OwnedFd};

use cantle_core::sandbox::SandboxError;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, openat, statat};
use rustix::io::Errno;

use super::{Root, TEMPORARY, WORK};

/// Maximum depth; a deeper tree counts as too large. Each level takes two descriptors.
const MAX_DEPTH: usize = 64;

/// Disk usage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DiskUsage {
    /// Allocated bytes; holes take none.
    pub(crate) bytes: u64,
    /// Files and directories, without the two fixed ones.
    pub(crate) inodes: u64,
}

impl Root {
    /// Measures the working and the temporary directory. Concurrent changes may be missed.
    pub(crate) fn used(&self) -> Result<DiskUsage, SandboxError> {
        let mut used = DiskUsage::default();
        for name in [WORK, TEMPORARY] {
            match open_directory(&self.descriptor, name) {
                Ok(directory) => used.add(&directory, MAX_DEPTH),
                // A command may have removed it.
                Err(Errno::NOENT) => {}
                Err(error) => {
                    return Err(self.failure("measure", &self.view_paths().work, error));
                }
            }
        }
        Ok(used)
    }
}

impl DiskUsage {
    fn add(&mut self, directory: &OwnedFd, depth: usize) {
        let Ok(entries) = Dir::read_from(directory) else {
            return;
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let Ok(stat) = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) else {
                continue;
            };
            // In units of 512 bytes on every file system.
            self.bytes += u64::try_from(stat.st_blocks).unwrap_or(0) * 512;
            self.inodes += 1;
            if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
                continue;
            }
            if depth == 0 {
                self.bytes = u64::MAX / 2;
                self.inodes = u64::MAX / 2;
            } else if let Ok(below) = open_directory(directory, name) {
                self.add(&below, depth - 1);
            }
        }
    }
}

fn open_directory(at: impl AsFd, name: impl rustix::path::Arg) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(at, name, flags, Mode::empty())
}
