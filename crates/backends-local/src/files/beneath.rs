//! Opening what lies below a directory and nowhere else, by what the system has for that: `openat2`,
//! or component by component where there is none.

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

/// For a descriptor that only says where something is.
#[cfg(confined)]
pub(super) const LOOK: OFlags = OFlags::PATH;
#[cfg(not(confined))]
pub(super) const LOOK: OFlags = OFlags::RDONLY;

/// What a path must be shorter than.
#[cfg(not(confined))]
const LONG_PATH: usize = 4096;

/// The kernel can't tell where a path leads while directories are being moved; then it says so.
const MOST_RETRIES: usize = 128;

/// What becomes of links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Links {
    /// Followed as far as the kernel sees that they stay below; else the answer is `XDEV`.
    Followed,
    /// The answer is `LOOP`.
    Refused,
}

/// Opens what is at a place below `root`.
pub(super) fn open_beneath(
    root: impl AsFd,
    place: &[u8],
    flags: OFlags,
    links: Links,
) -> Result<OwnedFd, Errno> {
    let mut flags = flags | OFlags::CLOEXEC;
    if LOOK.is_empty() || !flags.contains(LOOK) {
        // Nothing that code has put there may block us or become our terminal.
        flags |= OFlags::NONBLOCK | OFlags::NOCTTY;
    }
    let mode = if flags.contains(OFlags::CREATE) {
        Mode::RUSR | Mode::WUSR
    } else {
        Mode::empty()
    };
    resolve(root, place, flags, mode, links)
}

#[cfg(confined)]
fn resolve(
    root: impl AsFd,
    place: &[u8],
    flags: OFlags,
    mode: Mode,
    links: Links,
) -> Result<OwnedFd, Errno> {
    let mut resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    if links == Links::Refused {
        resolve |= ResolveFlags::NO_SYMLINKS;
    }
    let mut result = Err(Errno::AGAIN);
    for _ in 0..MOST_RETRIES {
        result = openat2(&root, place, flags, mode, resolve);
        if !matches!(result, Err(Errno::AGAIN | Errno::INTR)) {
            break;
        }
    }
    result
}

/// No link is followed here.
#[cfg(not(confined))]
fn resolve(
    root: impl AsFd,
    place: &[u8],
    flags: OFlags,
    mode: Mode,
    links: Links,
) -> Result<OwnedFd, Errno> {
    if place.len() >= LONG_PATH {
        return Err(Errno::NAMETOOLONG);
    }
    let mut components = place
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
        let opened = if is_last {
            open_one(at, component, flags, mode)
        } else {
            let above = LOOK | OFlags::DIRECTORY | OFlags::CLOEXEC;
            open_one(at, component, above, Mode::empty())
        };
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

/// Opens what is in a directory. The answer is `LOOP` where it is a link, for which systems have many
/// words.
#[cfg(not(confined))]
fn open_one(at: BorrowedFd<'_>, name: &[u8], flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    let mut result = Err(Errno::AGAIN);
    for _ in 0..MOST_RETRIES {
        result = openat(at, name, flags | OFlags::NOFOLLOW, mode);
        let Err(Errno::LOOP | Errno::MLINK | Errno::NOTDIR) = result else {
            break;
        };
        match statat(at, name, AtFlags::SYMLINK_NOFOLLOW).map(|it| it.st_mode) {
            Ok(mode) if FileType::from_raw_mode(mode) == FileType::Symlink => {
                return Err(Errno::LOOP);
            }
            // It was one.
            Ok(mode) if FileType::from_raw_mode(mode) == FileType::Directory => {}
            _ => break,
        }
    }
    result
}

/// Opens a directory by an absolute path that no link is part of.
#[cfg(confined)]
pub(super) fn open_without_links(path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    openat2(CWD, path, flags, Mode::empty(), resolve)
}

#[cfg(not(confined))]
pub(super) fn open_without_links(path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    use std::os::unix::ffi::OsStrExt as _;

    let root = rustix::fs::open("/", LOOK | OFlags::DIRECTORY, Mode::empty())?;
    let below = path.as_os_str().as_bytes();
    resolve(root, below, flags, Mode::empty(), Links::Refused)
}

/// Opens a directory so that what is in it can be removed, whatever its permissions are. Another file
/// system that is mounted there isn't ours to empty.
#[cfg(confined)]
pub(super) fn open_for_removal(parent: impl AsFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    use std::os::fd::AsRawFd as _;

    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let directory = openat2(parent, name, flags, Mode::empty(), resolve)?;
    let mode = Mode::from_raw_mode(fstat(&directory)?.st_mode);
    if !mode.contains(Mode::RWXU) {
        // By descriptor, so that it can't be another one. What fails here fails below, too.
        let _ = chmod(
            format!("/proc/self/fd/{}", directory.as_raw_fd()),
            Mode::RWXU,
        );
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(&directory, ".", flags, Mode::empty())
}

#[cfg(not(confined))]
pub(super) fn open_for_removal(parent: impl AsFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = || open_one(parent.as_fd(), name, flags, Mode::empty());
    let allow = || chmodat(&parent, name, Mode::RWXU, AtFlags::empty());
    let mut directory = match open() {
        // Nobody is kept from anything here, so that it is no matter if this is another one by now.
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
