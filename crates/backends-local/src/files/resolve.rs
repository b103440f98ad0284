//! From a path to a descriptor, without ever leaving the root.
//!
//! `openat2` refuses any link that leads out, and every absolute one: it can't know that
//! `/tmp/…/work/data` is inside. Links of that kind are common (`ln -s "$PWD/data" latest`), so
//! where it refuses, links are followed here one by one; the result, a path without links, goes to
//! the kernel again. Whatever is renamed meanwhile, the kernel has the last word.

use std::os::fd::OwnedFd;

use cantle_core::sandbox::{SandboxError, SandboxErrorKind, SandboxPath};
use rustix::fs::{OFlags, readlinkat};
use rustix::io::Errno;

use super::beneath::{LOOK, Links, open_beneath};
use super::{Root, TEMPORARY, WORK};

/// As many links as the kernel follows.
const MOST_LINKS: usize = 40;

impl Root {
    /// Opens what is at a path; `doing` is for the error.
    pub(super) fn open(
        &self,
        path: &SandboxPath,
        flags: OFlags,
        doing: &str,
    ) -> Result<OwnedFd, SandboxError> {
        let place = self.place(path)?;
        self.open_beneath(&place, flags)
            .map_err(|error| self.failure(doing, path, error))
    }

    /// Opens the directory in which a path lies, and gives the path's last component.
    pub(super) fn open_parent<'p>(
        &self,
        path: &'p SandboxPath,
        doing: &str,
    ) -> Result<(OwnedFd, &'p [u8]), SandboxError> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(fixed_place(doing, path));
        };
        let directory = self.open(&parent, LOOK | OFlags::DIRECTORY, doing)?;
        Ok((directory, name))
    }

    /// Refuses to touch the directories that every sandbox has.
    pub(super) fn refuse_fixed(&self, doing: &str, path: &SandboxPath) -> Result<(), SandboxError> {
        let fixed = [WORK.as_bytes(), TEMPORARY.as_bytes()];
        if fixed.contains(&self.place(path)?.as_slice()) {
            return Err(fixed_place(doing, path));
        }
        Ok(())
    }

    /// A directory as commands see it, to start one in.
    pub(crate) fn directory_path(&self, path: &SandboxPath) -> Result<SandboxPath, SandboxError> {
        self.check()?;
        if path.is_start() && !path.is_absolute() {
            return Ok(self.seen().work.clone());
        }
        self.open(path, LOOK | OFlags::DIRECTORY, "start a command in")?;
        if path.is_absolute() {
            return Ok(path.clone());
        }
        Ok(self.seen().work.join(path.relative_bytes())?)
    }

    /// Where a path lies below the root.
    pub(super) fn place(&self, path: &SandboxPath) -> Result<Vec<u8>, SandboxError> {
        if !path.is_absolute() {
            return Ok(place_in(WORK, path.relative_bytes()));
        }
        let absolute = [b"/", path.relative_bytes()].concat();
        self.own_place(&absolute).ok_or_else(|| {
            let work = &self.seen().work;
            let message = format!("`{path}` is outside the sandbox, whose files are in `{work}`");
            SandboxError::new(SandboxErrorKind::OutsideSandbox, message)
                .with_advice("Use a path relative to the working directory.")
        })
    }

    /// The place of an absolute path as commands see it, where it is in one of our directories.
    fn own_place(&self, path: &[u8]) -> Option<Vec<u8>> {
        let seen = self.seen();
        [(&seen.work, WORK), (&seen.temporary, TEMPORARY)]
            .into_iter()
            .find_map(|(directory, name)| {
                let below = path
                    .strip_prefix(b"/")?
                    .strip_prefix(directory.relative_bytes())?;
                (below.is_empty() || below.starts_with(b"/"))
                    .then(|| [name.as_bytes(), below].concat())
            })
    }

    /// Opens what is at a place below the root.
    pub(super) fn open_beneath(&self, place: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        match open_beneath(&self.descriptor, place, flags, Links::Followed) {
            Err(Errno::XDEV) => {
                let follow_last = !flags.contains(OFlags::NOFOLLOW);
                let place = self.without_links(place, follow_last)?;
                open_beneath(&self.descriptor, &place, flags, Links::Followed)
            }
            result => result,
        }
    }

    /// Follows the links in a place, also absolute ones that lead into the root.
    fn without_links(&self, place: &[u8], follow_last: bool) -> Result<Vec<u8>, Errno> {
        let mut done: Vec<Vec<u8>> = Vec::new();
        let mut to_do = Vec::new();
        push_components(&mut to_do, place);
        let mut links = 0;
        while let Some(component) = to_do.pop() {
            if matches!(component.as_slice(), b"." | b"..") {
                // Only a directory has these.
                let here = if done.is_empty() {
                    b".".to_vec()
                } else {
                    done.join(&b'/')
                };
                let flags = LOOK | OFlags::DIRECTORY;
                open_beneath(&self.descriptor, &here, flags, Links::Refused)?;
                if component == b".." {
                    done.pop().ok_or(Errno::XDEV)?;
                }
                continue;
            }
            done.push(component);
            if to_do.is_empty() && !follow_last {
                break;
            }
            let Some(target) = self.link_target(&done.join(&b'/'))? else {
                continue;
            };
            links += 1;
            if links > MOST_LINKS {
                return Err(Errno::LOOP);
            }
            done.pop();
            if target.starts_with(b"/") {
                done.clear();
                // As it is written: `..` in it may come after a link.
                let place = self.own_place(&target).ok_or(Errno::XDEV)?;
                push_components(&mut to_do, &place);
            } else {
                push_components(&mut to_do, &target);
            }
        }
        if done.is_empty() {
            return Ok(b".".to_vec());
        }
        Ok(done.join(&b'/'))
    }

    /// What a link says; `None` where it is no link.
    fn link_target(&self, place: &[u8]) -> Result<Option<Vec<u8>>, Errno> {
        let (directory, name) = match place.iter().rposition(|byte| *byte == b'/') {
            Some(at) => place.split_at(at),
            None => (b".".as_slice(), place),
        };
        let name = name.strip_prefix(b"/").unwrap_or(name);
        let flags = LOOK | OFlags::DIRECTORY;
        let directory = open_beneath(&self.descriptor, directory, flags, Links::Refused)?;
        match readlinkat(&directory, name, Vec::new()) {
            Ok(target) => Ok(Some(target.into_bytes())),
            // There is something else.
            Err(Errno::INVAL) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn place_in(directory: &str, below: &[u8]) -> Vec<u8> {
    let mut place = directory.as_bytes().to_vec();
    if !below.is_empty() {
        place.push(b'/');
        place.extend_from_slice(below);
    }
    place
}

/// Puts the components of a path on a stack, the first one on top; a slash at the end is the `.` it
/// stands for.
fn push_components(stack: &mut Vec<Vec<u8>>, path: &[u8]) {
    if path.ends_with(b"/") {
        stack.push(b".".to_vec());
    }
    let components = path
        .split(|byte| *byte == b'/')
        .filter(|component| !component.is_empty());
    stack.extend(components.rev().map(<[u8]>::to_vec));
}

fn fixed_place(doing: &str, path: &SandboxPath) -> SandboxError {
    let message = format!("failed to {doing} `{path}`: it is part of the sandbox itself");
    SandboxError::new(SandboxErrorKind::InvalidInput, message)
}
