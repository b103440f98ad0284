//! Disk usage of a sandbox's files.

use std::ffi::CStr;
use std::ops::{Add, Sub};
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, FileType, Mode, Stat, fchmod, fstat, fstatvfs, openat, statat};
use rustix::io::Errno;

use super::beneath::open_with_access;
use super::{READ, Root, TEMPORARY, WORK, entries};

/// Maximum depth; a deeper tree can't be measured. Each level takes two descriptors.
const MAX_DEPTH: usize = 64;

/// Allocation unit of common file systems.
const BLOCK_BYTES: u64 = 4096;

/// Disk usage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DiskUsage {
    /// Allocated bytes; holes take none.
    pub(crate) bytes: u64,
    /// Files and directories, without the two fixed ones.
    pub(crate) inodes: u64,
}

impl DiskUsage {
    /// More than any limit allows.
    pub(super) const UNKNOWN: Self = Self {
        bytes: u64::MAX,
        inodes: u64::MAX,
    };

    /// The usage of new entries.
    pub(super) fn entries(inodes: u64) -> Self {
        Self { bytes: 0, inodes }
    }

    /// The usage of data that are added to a file.
    pub(crate) fn data(bytes: u64) -> Self {
        let bytes = bytes.next_multiple_of(BLOCK_BYTES);
        Self { bytes, inodes: 0 }
    }

    fn of(stat: &Stat) -> Self {
        Self {
            // In units of 512 bytes on every file system.
            bytes: u64::try_from(stat.st_blocks).unwrap_or(0) * 512,
            inodes: 1,
        }
    }
}

impl Add for DiskUsage {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            inodes: self.inodes.saturating_add(other.inodes),
        }
    }
}

impl Sub for DiskUsage {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_sub(other.bytes),
            inodes: self.inodes.saturating_sub(other.inodes),
        }
    }
}

/// The treatment of directories that this process may not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unreadable {
    /// The usage is [`DiskUsage::UNKNOWN`].
    Reported,
    /// Their owner, which is this process's user, gets access.
    MadeReadable,
}

impl Root {
    /// Measures the working and the temporary directory, until `is_enough` says that more does not matter.
    /// Concurrent changes may be missed. What can't be read makes the usage unknown.
    pub(super) fn used(
        &self,
        unreadable: Unreadable,
        is_enough: &dyn Fn(DiskUsage) -> bool,
    ) -> DiskUsage {
        let mut walk = Measurement {
            used: DiskUsage::default(),
            unreadable,
            is_enough,
        };
        let walked = [WORK, TEMPORARY]
            .into_iter()
            .try_for_each(|name| walk.enter(&self.directories().root, name.as_bytes(), MAX_DEPTH));
        match walked {
            Ok(()) => walk.used,
            Err(_) => DiskUsage::UNKNOWN,
        }
    }

    /// Returns the usage of the file system. One that does not count inodes can't run out of them.
    pub(super) fn used_in_file_system(&self) -> Option<DiskUsage> {
        let system = fstatvfs(&self.directories().root).ok()?;
        Some(DiskUsage {
            bytes: system.f_blocks.saturating_sub(system.f_bfree) * system.f_frsize,
            inodes: system.f_files.saturating_sub(system.f_ffree),
        })
    }
}

struct Measurement<'m> {
    used: DiskUsage,
    unreadable: Unreadable,
    is_enough: &'m dyn Fn(DiskUsage) -> bool,
}

impl Measurement<'_> {
    /// Adds the contents of a directory.
    fn enter(&mut self, parent: &OwnedFd, name: &[u8], depth: usize) -> Result<(), Errno> {
        let opened = match openat(parent, name, READ, Mode::empty()) {
            Err(Errno::ACCESS) if self.unreadable == Unreadable::MadeReadable => {
                open_with_access(parent, name)
            }
            opened => opened,
        };
        match opened {
            Ok(_) if depth == 0 => Err(Errno::NAMETOOLONG),
            Ok(directory) => self.add(&directory, depth - 1),
            // It was removed or replaced meanwhile.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn add(&mut self, directory: &OwnedFd, depth: usize) -> Result<(), Errno> {
        for entry in entries(directory)? {
            let entry = entry?;
            let name = entry.file_name();
            let stat = match self.stat(directory, name) {
                Err(Errno::NOENT) => continue,
                stat => stat?,
            };
            self.used = self.used + DiskUsage::of(&stat);
            if (self.is_enough)(self.used) {
                return Ok(());
            }
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                self.enter(directory, name.to_bytes(), depth)?;
            }
        }
        Ok(())
    }

    fn stat(&self, directory: &OwnedFd, name: &CStr) -> Result<Stat, Errno> {
        let stat = || statat(directory, name, AtFlags::SYMLINK_NOFOLLOW);
        match stat() {
            // A directory can be readable and yet not searchable.
            Err(Errno::ACCESS) if self.unreadable == Unreadable::MadeReadable => {
                let mode = Mode::from_raw_mode(fstat(directory)?.st_mode);
                fchmod(directory, mode | Mode::RWXU)?;
                stat()
            }
            stat => stat,
        }
    }
}
