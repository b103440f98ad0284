//! The disk image of a sandbox: a file in its directory that contains a file system of limited size.
//!
//! For files that must outlive the sandbox, or that don't fit into memory, where this process is root's. The supervisor's
//! guard mounts it, for the sandbox's mount namespace only. The file is locked until everything is written back and the
//! loop device is released, so that it never has two mounts.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cantle_core::policy::Limits;
use cantle_core::sandbox::SandboxError;
use rustix::fs::{AtFlags, Mode, OFlags, fstatvfs, openat, statat, unlinkat};
use rustix::io::Errno;

use super::Root;
use super::kept::{lock, lock_by};

/// The name of the file, in the root.
const IMAGE: &str = "disk.ext4";

/// The program that makes the file system, where systems have it.
const MAKE: [&str; 2] = ["/usr/sbin/mke2fs", "/sbin/mke2fs"];

/// How long to wait for an earlier sandbox's files to be written back.
const WRITE_BACK_DEADLINE: Duration = Duration::from_secs(60);

const BLOCK_BYTES: u64 = 4096;
const BLOCKS_PER_GROUP: u64 = 32_768;
const INODES_PER_BLOCK: u64 = 16;
const JOURNAL_BLOCKS: u64 = 2048;
/// Blocks of the root, `lost+found`, the working and the temporary directory.
const OWN_BLOCKS: u64 = 7;
/// Reserved inodes, and the working and the temporary directory.
const OWN_INODES: u64 = 13;
/// Bytes for each inode if their number is not limited.
const BYTES_PER_INODE: u64 = 16_384;

/// The limits that the size of a file system enforces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SizedFields {
    pub(crate) disk: bool,
    pub(crate) inodes: bool,
}

impl SizedFields {
    /// Returns the limits that the mounted file system of an image enforces. One that was made under other limits may be
    /// larger.
    pub(crate) fn of(mounted: impl AsFd, limits: &Limits) -> Self {
        let Ok(system) = fstatvfs(mounted) else {
            return Self::default();
        };
        let is_within = |size: u64, limit: Option<u64>| limit.is_none_or(|limit| size <= limit);
        let blocks = usable_blocks(system.f_blocks);
        Self {
            disk: is_within(blocks.saturating_mul(system.f_frsize), limits.disk_bytes),
            inodes: is_within(system.f_files.saturating_sub(OWN_INODES), limits.inodes),
        }
    }
}

/// Returns the blocks for files among those that are not the file system's own.
fn usable_blocks(blocks: u64) -> u64 {
    // The kernel keeps a fiftieth, at most 16 MiB, of all blocks free.
    blocks.saturating_sub(OWN_BLOCKS + (blocks / 50).min(4096))
}

/// The geometry of a new file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Geometry {
    blocks: u64,
    inodes: u64,
}

impl Geometry {
    /// Returns a geometry with almost, and never more than, so many bytes and inodes for files.
    fn new(disk_bytes: u64, inodes: Option<u64>) -> Self {
        let limit = disk_bytes / BLOCK_BYTES;
        let inodes = inodes.unwrap_or((disk_bytes / BYTES_PER_INODE).max(1024));
        let inodes = inodes.saturating_add(OWN_INODES);
        let files = limit
            .saturating_add(OWN_BLOCKS)
            .saturating_add((limit / 49).min(4096));
        let blocks = |inodes: u64| {
            let tables = inodes / INODES_PER_BLOCK;
            files.saturating_add(tables).saturating_add(JOURNAL_BLOCKS)
        };
        let groups = blocks(inodes).div_ceil(BLOCKS_PER_GROUP);
        // Each group has the same number, in whole blocks.
        let in_group = (inodes / groups / INODES_PER_BLOCK).max(1) * INODES_PER_BLOCK;
        let inodes = in_group.saturating_mul(groups);
        Self {
            blocks: blocks(inodes),
            inodes,
        }
    }
}

impl Root {
    /// Whether the files are in a disk image.
    pub(crate) fn has_image(&self) -> bool {
        statat(&self.locked, IMAGE, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Creates the disk image, and returns it locked. Blocks.
    ///
    /// # Errors
    /// If it can't be made here; nothing is left then.
    pub(crate) fn create_image(&self, limits: &Limits) -> io::Result<OwnedFd> {
        let geometry = Geometry::new(limits.disk_bytes.unwrap_or(u64::MAX), limits.inodes);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let image = openat(&self.locked, IMAGE, flags, Mode::RUSR | Mode::WUSR)?;
        let made = lock(&image)
            .map_err(io::Error::from)
            .and_then(|()| make_file_system(&image, geometry));
        match made {
            Ok(()) => Ok(image),
            Err(error) => {
                self.remove_image();
                Err(error)
            }
        }
    }

    /// Removes the disk image of a sandbox that could not be opened with it.
    pub(crate) fn remove_image(&self) {
        // Otherwise it is removed with the directory.
        let _ = unlinkat(&self.locked, IMAGE, AtFlags::empty());
    }

    /// Opens the disk image, and returns it locked. Blocks until an earlier sandbox has written everything back.
    ///
    /// # Errors
    /// `Unavailable` if another user could have written it, or if it remains in use.
    pub(crate) fn open_image(&self) -> Result<OwnedFd, SandboxError> {
        let failed = |error: Errno| {
            SandboxError::io("failed to open the sandbox's disk image", error.into())
        };
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let image = openat(&self.locked, IMAGE, flags, Mode::empty()).map_err(failed)?;
        let image = File::from(image);
        let found = image.metadata().map_err(|error| {
            SandboxError::io("failed to look at the sandbox's disk image", error)
        })?;
        let is_private = found.is_file() && found.nlink() == 1 && found.mode() & 0o077 == 0;
        // The kernel must not mount a file system that another user has written.
        if !is_private || found.uid() != 0 {
            let message = "the sandbox's disk image is not a private file of root";
            return Err(SandboxError::unavailable(message));
        }
        lock_by(&image, Instant::now() + WRITE_BACK_DEADLINE).map_err(|error| match error {
            Errno::WOULDBLOCK => {
                SandboxError::unavailable("the sandbox's disk image is still in use")
                    .with_advice("Wait until an earlier sandbox has written its files.")
            }
            error => failed(error),
        })?;
        Ok(image.into())
    }
}

/// Makes a file system in an empty file.
fn make_file_system(image: &OwnedFd, geometry: Geometry) -> io::Result<()> {
    let program = MAKE.iter().find(|program| Path::new(program).exists());
    let program = program.ok_or_else(|| io::Error::other("there is no `mke2fs`"))?;
    let image = File::from(image.try_clone()?);
    image.set_len(geometry.blocks.saturating_mul(BLOCK_BYTES))?;
    // By descriptor, so that no other file can take its place meanwhile.
    let status = Command::new(program)
        .args([
            "-q", "-F", "-t", "ext4", "-b", "4096", "-I", "256", "-m", "0",
        ])
        .args(["-N", &geometry.inodes.to_string()])
        .args(["-J", "size=8", "-O", "^resize_inode"])
        // A new file is empty: nothing needs to be zeroed.
        .args(["-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard"])
        .arg("/proc/self/fd/0")
        .env_clear()
        .stdin(image)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()?;
    match status.success() {
        true => Ok(()),
        false => Err(io::Error::other(format!("`mke2fs` failed: {status}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn geometry_stays_within_the_limits() {
        for (disk_bytes, inodes) in [
            (1 << 20, Some(20)),
            (20 << 20, None),
            (1 << 30, Some(1000)),
            (10 << 30, Some(1_000_000)),
        ] {
            let geometry = Geometry::new(disk_bytes, inodes);
            let own = JOURNAL_BLOCKS + geometry.inodes / INODES_PER_BLOCK;
            let usable = usable_blocks(geometry.blocks - own) * BLOCK_BYTES;
            assert!(usable <= disk_bytes, "{geometry:?}");
            assert!(usable > disk_bytes / 100 * 97, "{geometry:?}");
            if let Some(inodes) = inodes {
                let usable = geometry.inodes - OWN_INODES;
                assert!(usable <= inodes && usable + 1500 > inodes, "{geometry:?}");
            }
        }
    }
}
