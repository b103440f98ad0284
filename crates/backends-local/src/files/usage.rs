//! How much room a sandbox's files take.

use std::os::fd::{AsFd, OwnedFd};

use cantle_core::sandbox::SandboxError;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, openat, statat};
use rustix::io::Errno;

use super::{Root, TEMPORARY, WORK};

/// The deepest directories that are looked into; what is deeper is too much. Each level takes two of
/// our descriptors.
const MOST_DEPTH: usize = 64;

/// What files take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Used {
    /// On the disk: holes take nothing.
    pub(crate) bytes: u64,
    /// Files and directories, without the two that every sandbox has.
    pub(crate) inodes: u64,
}

impl Root {
    /// Measures the working and the temporary directory. What changes meanwhile may be missed.
    pub(crate) fn used(&self) -> Result<Used, SandboxError> {
        let mut used = Used::default();
        for name in [WORK, TEMPORARY] {
            match open_directory(&self.descriptor, name) {
                Ok(directory) => used.add(&directory, MOST_DEPTH),
                // A command may have removed it.
                Err(Errno::NOENT) => {}
                Err(error) => return Err(self.failure("measure", &self.seen().work, error)),
            }
        }
        Ok(used)
    }
}

impl Used {
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
            // Of 512 bytes, whatever the file system's own are.
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
