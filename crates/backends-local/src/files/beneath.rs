//! Opening paths beneath a directory: by `openat2`, or component by component on systems without it.

#[cfg(not(confined))]
use std::os::fd::BorrowedFd;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

#[cfg(not(confined))]
use rustix::fs::{AtFlags, FileType, chmodat, fstat, statat};
#[cfg(confined)]
use rustix::fs::{CWD, ResolveFlags, chmod, fstat, openat2};
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;

/// Flag for a descriptor that only identifies a path.
#[cfg(confined)]
pub(super) const PATH_ONLY: OFlags = OFlags::PATH;
#[cfg(not(confined))]
pub(super) const PATH_ONLY: OFlags = OFlags::RDONLY;

/// Length that a path must not reach.
#[cfg(not(confined))]
const PATH_MAX: usize = 4096;

/// Retries when the kernel cannot resolve a path because a directory was moved meanwhile.
const MAX_RETRIES: usize = 128;

/// The treatment of symbolic links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Links {
    /// Followed if the kernel can verify that they stay beneath; otherwise the error is `XDEV`.
    Followed,
    /// The error is `LOOP`.
    Refused,
}

/// Opens what exists at a relative path beneath `root`.
pub(super) fn open_beneath(
    root: impl AsFd,
    path: &[u8],
    flags: OFlags,
    links: Links,
) -> Result<OwnedFd, Errno> {
    let mut flags = flags | OFlags::CLOEXEC;
    if PATH_ONLY.is_empty() || !flags.contains(PATH_ONLY) {
        // A file made by untrusted code must not block or become the controlling terminal.
        flags |= OFlags::NONBLOCK | OFlags::NOCTTY;
    }
    resolve(root, path, flags, links)
}

#[cfg(confined)]
fn resolve(root: impl AsFd, path: &[u8], flags: OFlags, links: Links) -> Result<OwnedFd, Errno> {
    let mut resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    if links == Links::Refused {
        resolve |= ResolveFlags::NO_SYMLINKS;
    }
    let mut result = Err(Errno::AGAIN);
    for _ in 0..MAX_RETRIES {
        result = openat2(&root, path, flags, Mode::empty(), resolve);
        if !matches!(result, Err(Errno::AGAIN | Errno::INTR)) {
            break;
        }
    }
    result
}

/// Never follows symbolic links.
#[cfg(not(confined))]
fn resolve(root: impl AsFd, path: &[u8], flags: OFlags, links: Links) -> Result<OwnedFd, Errno> {
    if path.len() >= PATH_MAX {
        return Err(Errno::NAMETOOLONG);
    }
    let mut components = path
        .split(|byte| *byte == b'/')
        .filter(|component| !component.is_empty())
        .peekable();
    let mut directory: Option<OwnedFd> = None;
    while let Some(component) = components.next() {
        if component == b".." {
            return Err(Errno::XDEV);
        }
        let at = directory.as_ref().map_or(root.as_fd(), AsFd::as_fd);
        let is_last = components.peek().is_none();
        let above = PATH_ONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = open_one(at, component, if is_last { flags } else { above });
        directory = Some(match (opened, links) {
            (Err(Errno::LOOP), Links::Followed)
                if !(is_last && flags.contains(OFlags::NOFOLLOW)) =>
            {
                return Err(Errno::XDEV);
            }
            (opened, _) => opened?,
        });
    }
    directory.ok_or(Errno::NOENT)
}

/// Opens a name in a directory. The error for a symbolic link is `LOOP`; systems report it by different
/// numbers.
#[cfg(not(confined))]
fn open_one(at: BorrowedFd<'_>, name: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let mut result = Err(Errno::AGAIN);
    for _ in 0..MAX_RETRIES {
        result = openat(at, name, flags | OFlags::NOFOLLOW, Mode::empty());
        let Err(Errno::LOOP | Errno::MLINK | Errno::NOTDIR) = result else {
            break;
        };
        match statat(at, name, AtFlags::SYMLINK_NOFOLLOW).map(|it| it.st_mode) {
            Ok(mode) if FileType::from_raw_mode(mode) == FileType::Symlink => {
                return Err(Errno::LOOP);
            }
            // It has been replaced since.
            Ok(mode) if FileType::from_raw_mode(mode) == FileType::Directory => {}
            _ => break,
        }
    }
    result
}

/// Opens a directory by an absolute path without symbolic links.
#[cfg(confined)]
pub(super) fn open_without_links(path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    openat2(CWD, path, flags, Mode::empty(), resolve)
}

#[cfg(not(confined))]
pub(super) fn open_without_links(path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    use std::os::unix::ffi::OsStrExt as _;

    let root = rustix::fs::open("/", PATH_ONLY | OFlags::DIRECTORY, Mode::empty())?;
    let below = path.as_os_str().as_bytes();
    resolve(root, below, flags, Links::Refused)
}

/// Opens a directory and makes it writable, so that it can be emptied. A mount point is refused.
#[cfg(confined)]
pub(super) fn open_with_access(parent: impl AsFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    use std::os::fd::AsRawFd as _;

    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let directory = openat2(parent, name, flags, Mode::empty(), resolve)?;
    let mode = Mode::from_raw_mode(fstat(&directory)?.st_mode);
    if !mode.contains(Mode::RWXU) {
        // By descriptor, so that it is the same directory. A failure shows in the operations that follow.
        let _ = chmod(
            format!("/proc/self/fd/{}", directory.as_raw_fd()),
            Mode::RWXU,
        );
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(&directory, ".", flags, Mode::empty())
}

#[cfg(not(confined))]
pub(super) fn open_with_access(parent: impl AsFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = || open_one(parent.as_fd(), name, flags);
    let allow = || chmodat(&parent, name, Mode::RWXU, AtFlags::empty());
    let mut directory = match open() {
        // Unconfined commands gain nothing by replacing the directory here.
        Err(Errno::ACCESS) => {
            allow()?;
            open()?
        }
        opened => opened?,
    };
    let found = fstat(&directory)?;
    if found.st_dev != fstat(&parent)?.st_dev {
        return Err(Errno::XDEV);
    }
    if !Mode::from_raw_mode(found.st_mode).contains(Mode::RWXU) {
        let _ = allow();
        directory = open()?;
    }
    Ok(directory)
}
