//! From a path to a descriptor, without leaving the root.
//!
//! `openat2` refuses symbolic links that lead out and all absolute ones, since it can't know that
//! `/tmp/…/work/data` is inside. Absolute links are common (`ln -s "$PWD/data" latest`), so if it refuses,
//! links are followed here one by one, and the resulting path without links is passed to the kernel again.
//! Whatever is renamed concurrently, the kernel decides.

use std::os::fd::OwnedFd;

use cantle_core::sandbox::{SandboxError, SandboxErrorKind, SandboxPath};
use rustix::fs::{OFlags, readlinkat};
use rustix::io::Errno;

use super::beneath::{Links, PATH_ONLY, open_beneath};
use super::{Root, TEMPORARY, WORK};

/// Maximum number of symbolic links in a path, as in the kernel.
const MAX_LINKS: usize = 40;

impl Root {
    /// Opens a path; `doing` is for the error.
    pub(super) fn open(
        &self,
        path: &SandboxPath,
        flags: OFlags,
        doing: &str,
    ) -> Result<OwnedFd, SandboxError> {
        let relative = self.relative_path(path)?;
        self.open_beneath(&relative, flags)
            .map_err(|error| self.failure(doing, path, error))
    }

    /// Opens the parent of a path, and returns it with the last component.
    pub(super) fn open_parent<'p>(
        &self,
        path: &'p SandboxPath,
        doing: &str,
    ) -> Result<(OwnedFd, &'p [u8]), SandboxError> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(fixed_path(doing, path));
        };
        self.relative_path(path)?;
        let directory = self.open(&parent, PATH_ONLY | OFlags::DIRECTORY, doing)?;
        Ok((directory, name))
    }

    /// Fails for the directories that every sandbox has.
    pub(super) fn refuse_fixed(&self, doing: &str, path: &SandboxPath) -> Result<(), SandboxError> {
        let fixed = [WORK.as_bytes(), TEMPORARY.as_bytes()];
        if fixed.contains(&self.relative_path(path)?.as_slice()) {
            return Err(fixed_path(doing, path));
        }
        Ok(())
    }

    /// Opens a directory, to watch it.
    #[cfg(confined)]
    pub(crate) fn open_directory(&self, path: &SandboxPath) -> Result<OwnedFd, SandboxError> {
        self.open(path, PATH_ONLY | OFlags::DIRECTORY, "watch")
    }

    /// Returns a directory's path as commands see it, to start one there.
    pub(crate) fn directory_path(&self, path: &SandboxPath) -> Result<SandboxPath, SandboxError> {
        self.check()?;
        if path.is_base() && !path.is_absolute() {
            return Ok(self.view_paths().work.clone());
        }
        self.open(path, PATH_ONLY | OFlags::DIRECTORY, "start a command in")?;
        if path.is_absolute() {
            return Ok(path.clone());
        }
        Ok(self.view_paths().work.join(path.relative_bytes())?)
    }

    /// Whether a path is in one of the sandbox's directories, unless a link leads out of them.
    pub(crate) fn contains(&self, path: &SandboxPath) -> bool {
        self.relative_path(path).is_ok()
    }

    /// Returns the path relative to the root.
    pub(super) fn relative_path(&self, path: &SandboxPath) -> Result<Vec<u8>, SandboxError> {
        let relative = match path.is_absolute() {
            true => self.relative_to_root(&[b"/", path.relative_bytes()].concat()),
            false => Some(path_in(WORK, path.relative_bytes())),
        };
        // Commands see other files at a mounted root than there are below this one.
        let is_own = |path: &Vec<u8>| !self.mounted.iter().any(|root| below(path, root).is_some());
        relative.filter(is_own).ok_or_else(|| {
            let work = &self.view_paths().work;
            let message = format!("`{path}` is outside the sandbox, whose files are in `{work}`");
            SandboxError::new(SandboxErrorKind::OutsideSandbox, message)
                .with_advice("Use a path relative to the working directory.")
        })
    }

    /// Converts an absolute path as commands see it, if it is in one of the sandbox's directories.
    pub(super) fn relative_to_root(&self, path: &[u8]) -> Option<Vec<u8>> {
        let view = self.view_paths();
        [(&view.work, WORK), (&view.temporary, TEMPORARY)]
            .into_iter()
            .find_map(|(directory, name)| {
                let below = below(path.strip_prefix(b"/")?, directory.relative_bytes())?;
                Some([name.as_bytes(), below].concat())
            })
    }

    /// Opens a path relative to the root.
    pub(super) fn open_beneath(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        match open_beneath(&self.directories().root, path, flags, Links::Followed) {
            Err(Errno::XDEV) => {
                let follow_last = !flags.contains(OFlags::NOFOLLOW);
                let path = self.without_links(path, follow_last)?;
                open_beneath(&self.directories().root, &path, flags, Links::Followed)
            }
            result => result,
        }
    }

    /// Resolves the symbolic links in a path, including absolute ones that lead into the root.
    fn without_links(&self, path: &[u8], follow_last: bool) -> Result<Vec<u8>, Errno> {
        let mut done: Vec<Vec<u8>> = Vec::new();
        let mut to_do = Vec::new();
        push_components(&mut to_do, path);
        let mut links = 0;
        while let Some(component) = to_do.pop() {
            if matches!(component.as_slice(), b"." | b"..") {
                // Valid only in a directory.
                let here = if done.is_empty() {
                    b".".to_vec()
                } else {
                    done.join(&b'/')
                };
                let flags = PATH_ONLY | OFlags::DIRECTORY;
                open_beneath(&self.directories().root, &here, flags, Links::Refused)?;
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
            if links > MAX_LINKS {
                return Err(Errno::LOOP);
            }
            done.pop();
            if target.starts_with(b"/") {
                done.clear();
                // Not normalized: `..` may follow a link.
                let path = self.relative_to_root(&target).ok_or(Errno::XDEV)?;
                push_components(&mut to_do, &path);
            } else {
                push_components(&mut to_do, &target);
            }
        }
        if done.is_empty() {
            return Ok(b".".to_vec());
        }
        Ok(done.join(&b'/'))
    }

    /// Returns the target of a symbolic link; `None` if the path is not one.
    fn link_target(&self, path: &[u8]) -> Result<Option<Vec<u8>>, Errno> {
        let (directory, name) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(at) => path.split_at(at),
            None => (b".".as_slice(), path),
        };
        let name = name.strip_prefix(b"/").unwrap_or(name);
        let flags = PATH_ONLY | OFlags::DIRECTORY;
        let directory = open_beneath(&self.directories().root, directory, flags, Links::Refused)?;
        match readlinkat(&directory, name, Vec::new()) {
            Ok(target) => Ok(Some(target.into_bytes())),
            // Not a symbolic link.
            Err(Errno::INVAL) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Returns the rest of a path that is a directory or below it.
fn below<'p>(path: &'p [u8], directory: &[u8]) -> Option<&'p [u8]> {
    let rest = path.strip_prefix(directory)?;
    (rest.is_empty() || rest.starts_with(b"/")).then_some(rest)
}

fn path_in(directory: &str, below: &[u8]) -> Vec<u8> {
    let mut path = directory.as_bytes().to_vec();
    if !below.is_empty() {
        path.push(b'/');
        path.extend_from_slice(below);
    }
    path
}

/// Pushes the components of a path on a stack, the first one on top; a trailing slash becomes `.`.
fn push_components(stack: &mut Vec<Vec<u8>>, path: &[u8]) {
    if path.ends_with(b"/") {
        stack.push(b".".to_vec());
    }
    let components = path
        .split(|byte| *byte == b'/')
        .filter(|component| !component.is_empty());
    stack.extend(components.rev().map(<[u8]>::to_vec));
}

fn fixed_path(doing: &str, path: &SandboxPath) -> SandboxError {
    let message = format!("failed to {doing} `{path}`: it is part of the sandbox itself");
    SandboxError::invalid_input(message)
}
