//! Directories of sandboxes that are over: those that are kept to be used again, and those that an
//! owner who was killed has left.
//!
//! A directory is locked (`flock`) for as long as its owner lives; the kernel unlocks it, however the
//! owner ends. One that is kept has a mark in it, next to the directories that commands see.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use cantle_core::ids::{RunId, fresh_id};
use cantle_core::sandbox::{SandboxError, SandboxErrorKind, SandboxPath};
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, FlockOperation, Mode, OFlags, Stat, flock, fstat, fsync, mkdirat,
    open, openat, statat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::beneath::{LOOK, open_without_links};
use super::remove::{Left, remove_directory};
use super::{DIRECTORY, NOBODY, Places, Root, Seen, TEMPORARY, VIEW, WORK};
#[cfg(confined)]
use crate::confinement::Identity;

/// Is in directories that are kept.
const MARK: &str = "kept";

/// A directory that can be read, and is none but the one that was named.
const READ: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Of what random letters a directory's name ends in.
const LETTERS: usize = 6;

/// What a sandbox's directory is called, without the letters at its end.
pub(crate) fn name_of(run: RunId) -> String {
    format!("cantle-{run}-")
}

/// Whether a directory or a control group is called like one of ours.
pub(crate) fn is_name(name: &str) -> bool {
    let Some((run, letters)) = name
        .strip_prefix("cantle-")
        .and_then(|name| name.rsplit_once('-'))
    else {
        return false;
    };
    letters.len() == LETTERS
        && letters.bytes().all(|byte| byte.is_ascii_alphanumeric())
        && run.parse::<RunId>().is_ok()
}

/// Makes a directory its owner's for as long as the descriptor is open.
pub(super) fn lock(directory: impl AsFd) -> Result<(), Errno> {
    flock(directory, FlockOperation::NonBlockingLockExclusive)
}

/// Whether a directory's owner is us, or whom our commands run as.
fn is_ours(found: &Stat) -> bool {
    let own = geteuid().as_raw();
    found.st_uid == own || (own == 0 && found.st_uid == NOBODY)
}

impl Root {
    /// Opens a directory that was kept.
    ///
    /// # Errors
    /// [`SandboxErrorKind::Gone`] where it isn't there any more; `Unavailable` where somebody uses
    /// it, or it is none that was kept by us.
    pub(crate) fn reopen(path: &Path) -> Result<Self, SandboxError> {
        let shown = path.display();
        let gone = || SandboxError::gone(format!("the directory `{shown}` is not there any more"));
        let refused = |why: &str| {
            let message = format!("the directory `{shown}` can't be used again: {why}");
            SandboxError::new(SandboxErrorKind::Unavailable, message)
        };
        let failed = |error: Errno| match error {
            Errno::NOENT => gone(),
            Errno::LOOP | Errno::NOTDIR => refused("it is none, or a link leads there"),
            error => SandboxError::io(format!("failed to open `{shown}`"), error.into()),
        };
        let name = path.file_name().and_then(|name| name.to_str());
        if !path.is_absolute() || !name.is_some_and(is_name) {
            return Err(refused("it is not called like one of a sandbox"));
        }
        let locked = open_without_links(path, READ).map_err(failed)?;
        let found = fstat(&locked).map_err(failed)?;
        if !is_ours(&found) {
            return Err(refused("it is somebody else's"));
        }
        lock(&locked).map_err(|error| match error {
            Errno::WOULDBLOCK => refused("another process uses it")
                .with_advice("End that process first, or wait until it has ended."),
            error => SandboxError::io(format!("failed to lock `{shown}`"), error.into()),
        })?;
        let now = statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
        if (now.st_dev, now.st_ino) != (found.st_dev, found.st_ino) {
            return Err(gone());
        }
        if !is_kept(&locked) {
            return Err(refused("it was not kept"));
        }
        let descriptor = openat(&locked, ".", DIRECTORY, Mode::empty()).map_err(failed)?;
        for name in [TEMPORARY, VIEW] {
            match mkdirat(&descriptor, name, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(failed(error)),
            }
            openat(&descriptor, name, READ.union(LOOK), Mode::empty()).map_err(failed)?;
        }
        let flags = DIRECTORY.union(OFlags::NOFOLLOW);
        let work = openat(&descriptor, WORK, flags, Mode::empty()).map_err(failed)?;
        let places = Places {
            base: path.to_owned(),
        };
        // What was spilled before may still be there.
        let mark = fresh_id();
        let letters = mark.len().saturating_sub(LETTERS);
        Ok(Self {
            seen: Seen {
                work: SandboxPath::from_os(places.work())?,
                temporary: SandboxPath::from_os(places.temporary())?,
            },
            spills: format!("output-{}", mark.get(letters..).unwrap_or_default()),
            places,
            descriptor,
            work,
            locked,
            owner: None,
        })
    }

    /// Marks the directory as one to be used again, for good.
    pub(crate) fn keep(&self) -> Result<(), SandboxError> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(&self.locked, MARK, flags, Mode::RUSR | Mode::WUSR)
            .and_then(fsync)
            .and_then(|()| fsync(&self.locked))
            .map_err(|error| self.failure("keep", &self.seen.work, error))
    }

    /// Lets somebody else use the directory.
    pub(crate) fn release(&self) {
        // It is when we end, in any case.
        let _ = flock(&self.locked, FlockOperation::Unlock);
    }

    /// Whose the directory is.
    pub(crate) fn owner_id(&self) -> Result<u32, SandboxError> {
        let found = fstat(&self.descriptor);
        let found = found.map_err(|error| self.failure("look at", &self.seen.work, error))?;
        Ok(found.st_uid)
    }

    /// The directory above that somebody can't go through, where there is one.
    #[cfg(confined)]
    pub(crate) fn closed_to(&self, identity: Identity) -> Option<&Path> {
        let mut above = self.places.base.ancestors().skip(1);
        above.find(|directory| {
            let Ok(found) = statat(CWD, *directory, AtFlags::empty()) else {
                return true;
            };
            let search = if found.st_uid == identity.uid {
                Mode::XUSR
            } else if found.st_gid == identity.gid {
                Mode::XGRP
            } else {
                Mode::XOTH
            };
            !Mode::from_raw_mode(found.st_mode).contains(search)
        })
    }
}

fn is_kept(directory: impl AsFd) -> bool {
    statat(directory, MARK, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|found| {
        let kind = FileType::from_raw_mode(found.st_mode);
        kind == FileType::RegularFile && found.st_uid == geteuid().as_raw()
    })
}

/// What somebody may come back for.
#[derive(Debug)]
pub(crate) enum Wanted {
    /// All that is kept.
    Kept,
    /// Directories of these names, of those that are kept: no other one ever has such a name.
    Named(HashSet<OsString>),
}

impl Wanted {
    fn includes(&self, name: &str, directory: impl AsFd) -> bool {
        is_kept(directory)
            && match self {
                Self::Kept => true,
                Self::Named(names) => names.contains(OsStr::new(name)),
            }
    }
}

/// Removes the directories below `parent` whose owner is dead, that nobody wants, and that haven't
/// changed for so long.
pub(crate) fn reclaim(
    parent: &Path,
    wanted: &Wanted,
    grace: Duration,
    removed: &mut Vec<PathBuf>,
    failed: &mut Vec<(PathBuf, String)>,
) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let listed = open(parent, flags, Mode::empty())
        .and_then(|directory| Dir::read_from(&directory).map(|entries| (directory, entries)));
    let (directory, entries) = match listed {
        Ok(listed) => listed,
        Err(Errno::NOENT) => return,
        Err(error) => return failed.push((parent.to_owned(), error.to_string())),
    };
    for entry in entries.flatten() {
        let Ok(name) = entry.file_name().to_str() else {
            continue;
        };
        if !is_name(name) {
            continue;
        }
        let Ok(left) = openat(&directory, name, READ, Mode::empty()) else {
            continue;
        };
        let is_over = |found: Stat| is_ours(&found) && is_older(&found, grace);
        // What is wanted isn't even locked for a moment, in which its next owner may come.
        if !fstat(&left).is_ok_and(is_over) || wanted.includes(name, &left) || lock(&left).is_err()
        {
            continue;
        }
        if wanted.includes(name, &left) {
            // Its owner has ended just now.
            continue;
        }
        let mut rest = Left::default();
        let path = parent.join(name);
        match remove_directory(directory.as_fd(), name.as_bytes(), &mut rest) {
            Ok(()) | Err(Errno::NOENT) => removed.push(path),
            Err(error) => {
                let error = rest.error(&path.to_string_lossy(), error);
                failed.push((path, error.to_string()));
            }
        }
    }
}

fn is_older(found: &Stat, grace: Duration) -> bool {
    let seconds = u64::try_from(found.st_ctime).unwrap_or(0);
    let changed = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    // What is from the future isn't old.
    changed.elapsed().is_ok_and(|age| age >= grace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_we_give() {
        let run = RunId::new();
        assert!(is_name(&format!("{}aB3xyZ", name_of(run))));
        for other in [
            name_of(run),
            format!("{}aB3xy", name_of(run)),
            format!("{}aB3x.Z", name_of(run)),
            format!("x{}aB3xyZ", name_of(run)),
            "cantle-demo".to_owned(),
            "cantle-notes-backup".to_owned(),
            "cantle-probe-aB3xyZ".to_owned(),
        ] {
            assert!(!is_name(&other), "{other}");
        }
    }
}
