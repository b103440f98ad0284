//! Recursive listings.

use std::os::fd::AsFd;

use cantle_core::sandbox::{
    FileKind, FileStamp, SandboxError, SandboxPath, Walk, WalkBuilder, WalkEntry,
};
use rustix::fs::{AtFlags, Dir, OFlags, Stat, statat};
use rustix::io::Errno;

use super::Root;
use super::beneath::{Links, open_beneath};
use super::tree::mode;

const READABLE: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

impl Root {
    /// Lists everything below a directory, links not followed. However deep the tree is, three descriptors are open.
    pub(crate) fn walk(
        &self,
        directory: &SandboxPath,
        max_entries: usize,
    ) -> Result<Walk, SandboxError> {
        let top = self.open(directory, READABLE, "list")?;
        let mut found = WalkBuilder::new(max_entries);
        let mut pending = vec![SandboxPath::working_directory()];
        // The latest directory that has directories, which are opened beneath it and not by their whole paths.
        let mut latest: Option<(SandboxPath, Dir)> = None;
        while let Some(path) = pending.pop() {
            let opened = match &latest {
                Some((above, opened)) => match below(&path, above) {
                    Some(name) => opened.fd().and_then(|above| open(above, name)),
                    None => open(&top, path.relative_bytes()),
                },
                None => open(&top, b"."),
            };
            let count = pending.len();
            let read = opened.and_then(|mut opened| {
                let has_room = read(&mut opened, &path, &mut found, &mut pending)?;
                Ok((opened, has_room))
            });
            match read {
                Ok((_, false)) => break,
                Ok((opened, true)) if pending.len() > count => latest = Some((path, opened)),
                Ok(_) => {}
                Err(error) if path.is_base() => return Err(self.failure("list", directory, error)),
                // It was removed or replaced meanwhile.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                Err(error) => found.refuse(path.to_string(), error.to_string()),
            }
        }
        Ok(found.finish())
    }
}

/// Returns the part of a path that is below a directory above it.
fn below<'p>(path: &'p SandboxPath, above: &SandboxPath) -> Option<&'p [u8]> {
    let rest = path.relative_bytes().strip_prefix(above.relative_bytes())?;
    match above.is_base() {
        true => Some(rest),
        false => rest.strip_prefix(b"/"),
    }
}

fn open(above: impl AsFd, below: &[u8]) -> Result<Dir, Errno> {
    Dir::new(open_beneath(above, below, READABLE, Links::Refused)?)
}

/// Adds the entries of a directory, and its directories to `pending`; returns whether there is room for more.
fn read(
    directory: &mut Dir,
    path: &SandboxPath,
    found: &mut WalkBuilder,
    pending: &mut Vec<SandboxPath>,
) -> Result<bool, Errno> {
    while let Some(entry) = directory.read() {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        if !found.admit() {
            return Ok(false);
        }
        let stat = match statat(directory.fd()?, name, AtFlags::SYMLINK_NOFOLLOW) {
            // It was removed meanwhile.
            Err(Errno::NOENT) => continue,
            stat => stat?,
        };
        let path = path.join(name.to_bytes()).map_err(|_| Errno::INVAL)?;
        let kind = FileKind::from_mode(mode(stat.st_mode));
        let is_directory = kind == FileKind::Directory;
        let below = is_directory.then(|| path.clone());
        if found.insert(path, walk_entry(kind, &stat)) {
            pending.extend(below);
        }
    }
    Ok(true)
}

fn walk_entry(kind: FileKind, stat: &Stat) -> WalkEntry {
    let size_bytes = u64::try_from(stat.st_size).unwrap_or(0);
    let stamp = FileStamp::new(
        nanoseconds(stat.st_mtime, stat.st_mtime_nsec),
        nanoseconds(stat.st_ctime, stat.st_ctime_nsec),
        stat.st_ino,
    );
    WalkEntry::new(kind, size_bytes, Some(stamp))
}

/// Converts a time, whose types depend on the system.
fn nanoseconds(seconds: i64, fraction: impl TryInto<i64>) -> i64 {
    let fraction = fraction.try_into().unwrap_or(0);
    seconds
        .saturating_mul(1_000_000_000)
        .saturating_add(fraction)
}
