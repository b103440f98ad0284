//! Directories without a running sandbox: kept ones, and those of a killed owner.
//!
//! A directory is locked (`flock`) while its owner lives; the kernel releases the lock, however the owner
//! ends. A kept directory contains a marker file, beside the directories that commands see.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use cantle_core::ids::{RunId, unique_id};
use cantle_core::sandbox::SandboxError;
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, FlockOperation, Mode, OFlags, Stat, flock, fstat, fsync, mkdirat,
    open, openat, statat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::beneath::{PATH_ONLY, open_without_links};
use super::remove::{RemovalFailures, remove_directory};
use super::{DIRECTORY, Directories, NOBODY, READ, Root, TEMPORARY, VIEW};

/// The marker file of a kept directory.
const MARKER: &str = "kept";

/// How long a new owner waits for an earlier one, whose dropped sandbox is being closed.
const LOCK_DEADLINE: Duration = Duration::from_secs(2);
const LOCK_PAUSE: Duration = Duration::from_millis(2);

/// Number of random characters at the end of a directory's name.
const RANDOM_CHARS: usize = 6;

/// Returns the name of a sandbox's directory without its random end.
pub(crate) fn name_prefix(run: RunId) -> String {
    format!("cantle-{run}-")
}

/// Returns the name of a sandbox with another random end.
#[cfg(confined)]
pub(crate) fn renamed(sandbox: &str) -> String {
    let run = sandbox.rsplit_once('-').map_or(sandbox, |(run, _)| run);
    format!("{run}-{}", random_end())
}

fn random_end() -> String {
    let mut unique = unique_id();
    unique.split_off(unique.len().saturating_sub(RANDOM_CHARS))
}

/// Whether a directory or a control group has a sandbox's name.
pub(crate) fn is_name(name: &str) -> bool {
    let Some((run, random)) = name
        .strip_prefix("cantle-")
        .and_then(|name| name.rsplit_once('-'))
    else {
        return false;
    };
    random.len() == RANDOM_CHARS
        && random.bytes().all(|byte| byte.is_ascii_alphanumeric())
        && run.parse::<RunId>().is_ok()
}

/// Locks a directory until the descriptor is closed.
pub(super) fn lock(directory: impl AsFd) -> Result<(), Errno> {
    flock(directory, FlockOperation::NonBlockingLockExclusive)
}

/// Like [`lock`], waiting until the deadline while another owner has it. Blocks.
pub(super) fn lock_by(directory: impl AsFd, deadline: Instant) -> Result<(), Errno> {
    loop {
        match lock(&directory) {
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => sleep(LOCK_PAUSE),
            locked => return locked,
        }
    }
}

/// Whether a directory belongs to this process's user or to the user of its commands.
fn is_ours(found: &Stat) -> bool {
    let own = geteuid().as_raw();
    found.st_uid == own || (own == 0 && found.st_uid == NOBODY)
}

impl Root {
    /// Opens a kept directory.
    ///
    /// # Errors
    /// `Gone` if it does not exist any more; `Unavailable` if it is in use, or was not
    /// kept by this user.
    pub(crate) fn reopen(path: &Path) -> Result<Self, SandboxError> {
        let shown = path.display();
        let gone =
            || SandboxError::gone(format!("the directory `{shown}` does not exist any more"));
        let refused = |why: &str| {
            SandboxError::unavailable(format!(
                "the directory `{shown}` can't be used again: {why}"
            ))
        };
        let failed = |error: Errno| match error {
            Errno::NOENT => gone(),
            Errno::LOOP | Errno::NOTDIR => {
                refused("it is not a directory, or a symbolic link leads there")
            }
            error => SandboxError::io(format!("failed to open `{shown}`"), error.into()),
        };
        let name = path.file_name().and_then(|name| name.to_str());
        if !path.is_absolute() || !name.is_some_and(is_name) {
            return Err(refused("its name is not that of a sandbox"));
        }
        let locked = open_without_links(path, READ).map_err(failed)?;
        let found = fstat(&locked).map_err(failed)?;
        if !is_ours(&found) {
            return Err(refused("it belongs to another user"));
        }
        lock_by(&locked, Instant::now() + LOCK_DEADLINE).map_err(|error| match error {
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
            openat(&descriptor, name, READ.union(PATH_ONLY), Mode::empty()).map_err(failed)?;
        }
        let directories = Directories::new(descriptor).map_err(failed)?;
        // Earlier spill files may still exist.
        let spill_prefix = format!("output-{}", random_end());
        Self::new(path.to_owned(), directories, locked, spill_prefix)
    }

    /// Marks the directory as kept, durably.
    pub(crate) fn keep(&self) -> Result<(), SandboxError> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(&self.locked, MARKER, flags, Mode::RUSR | Mode::WUSR)
            .and_then(fsync)
            .and_then(|()| fsync(&self.locked))
            .map_err(|error| self.failure("keep", &self.view_paths.work, error))
    }

    /// Closes the directories of a disk image, which would keep it in use as long as there is a handle of a process.
    pub(crate) fn leave_image(&self) {
        let unmounted = openat(&self.locked, ".", DIRECTORY, Mode::empty());
        if let Ok(directories) = unmounted.and_then(Directories::new) {
            self.set_directories(directories);
        }
    }

    /// Unlocks the directory.
    pub(crate) fn release(&self) {
        // The end of this process unlocks it in any case.
        let _ = flock(&self.locked, FlockOperation::Unlock);
    }

    /// Returns the directory's owner.
    pub(crate) fn owner_id(&self) -> Result<u32, SandboxError> {
        let found = fstat(&self.locked);
        let found = found.map_err(|error| self.failure("look at", &self.view_paths.work, error))?;
        Ok(found.st_uid)
    }

    /// Returns an ancestor of the directory that a user cannot search.
    #[cfg(confined)]
    pub(crate) fn inaccessible_ancestor(&self, uid: u32, gid: u32) -> Option<&Path> {
        let mut above = self.host_paths.base.ancestors().skip(1);
        above.find(|directory| {
            let Ok(found) = statat(CWD, *directory, AtFlags::empty()) else {
                return true;
            };
            let search = if found.st_uid == uid {
                Mode::XUSR
            } else if found.st_gid == gid {
                Mode::XGRP
            } else {
                Mode::XOTH
            };
            !Mode::from_raw_mode(found.st_mode).contains(search)
        })
    }
}

fn is_kept(directory: impl AsFd) -> bool {
    statat(directory, MARKER, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|found| {
        let kind = FileType::from_raw_mode(found.st_mode);
        kind == FileType::RegularFile && found.st_uid == geteuid().as_raw()
    })
}

/// Removes the directories below `parent` whose owner is dead and that have not changed for `grace`. Kept ones stay: all of
/// them, or those with the names in `keep`, which are never reused.
pub(crate) fn reclaim(
    parent: &Path,
    keep: Option<&HashSet<OsString>>,
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
        let Ok(candidate) = openat(&directory, name, READ, Mode::empty()) else {
            continue;
        };
        let is_over = |found: Stat| is_ours(&found) && is_older(&found, grace);
        let is_named = keep.is_none_or(|names| names.contains(OsStr::new(name)));
        let stays = || is_named && is_kept(&candidate);
        // Not even locked for a moment if it is to be preserved: its next owner may come just then.
        if !fstat(&candidate).is_ok_and(is_over) || stays() || lock(&candidate).is_err() {
            continue;
        }
        // Its owner may have kept it just before it ended.
        if stays() {
            continue;
        }
        let mut failures = RemovalFailures::default();
        let path = parent.join(name);
        match remove_directory(directory.as_fd(), name.as_bytes(), &mut failures) {
            Ok(()) | Err(Errno::NOENT) => removed.push(path),
            Err(error) => {
                let error = failures.error(&path.to_string_lossy(), error);
                failed.push((path, error.to_string()));
            }
        }
    }
}

fn is_older(found: &Stat, grace: Duration) -> bool {
    let seconds = u64::try_from(found.st_ctime).unwrap_or(0);
    let changed = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    // A time in the future is not old.
    changed.elapsed().is_ok_and(|age| age >= grace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_sandboxes_are_recognized() {
        let run = RunId::new();
        assert!(is_name(&format!("{}aB3xyZ", name_prefix(run))));
        for other in [
            name_prefix(run),
            format!("{}aB3xy", name_prefix(run)),
            format!("{}aB3x.Z", name_prefix(run)),
            format!("x{}aB3xyZ", name_prefix(run)),
            "cantle-demo".to_owned(),
            "cantle-notes-backup".to_owned(),
            "cantle-probe-aB3xyZ".to_owned(),
        ] {
            assert!(!is_name(&other), "{other}");
        }
    }
}
