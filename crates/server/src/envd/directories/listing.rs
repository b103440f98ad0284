//! Directory listings down to a depth: by `find` inside the sandbox, or with less detail by the
//! backend if there is no suitable `find`.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::sync::Arc;

use cantle_core::sandbox::{FileInfo, FileKind, SandboxErrorKind, SandboxPath};
use jiff::Timestamp;

use crate::accounts::MemoryCharge;
use crate::envd::error::{EnvdError, Result};
use crate::envd::{SandboxUse, helper};
use crate::tasks;

/// Maximum output of `find`, about 100,000 entries.
const LISTING_BYTES: usize = 16 << 20;
/// Maximum entries of a listing by the backend.
const MAX_ENTRIES: usize = 100_000;

/// Kinds of the entry and of its link target, size, mode, owner, group, mtime, inode; then the path below
/// the start.
const FORMAT: &str = "%y%Y %s %m %u %g %T@ %i\\0%P\\0";
const PARTS_PER_ENTRY: usize = 2;

/// An entry of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListedEntry {
    /// Path below the start; empty for the start itself.
    pub(crate) relative_path: Box<[u8]>,
    pub(crate) kind: FileKind,
    /// Kind of a link's target; `None` for a dangling link.
    pub(crate) target_kind: Option<FileKind>,
    pub(crate) size_bytes: u64,
    pub(crate) mode: u32,
    pub(crate) owner: Arc<str>,
    pub(crate) group: Arc<str>,
    pub(crate) modified: Option<Timestamp>,
    /// Inode number; 0 if unknown.
    pub(crate) inode: u64,
}

/// The entries found below a start.
pub(crate) struct Listing {
    pub(crate) entries: Vec<ListedEntry>,
    /// The memory of the entries.
    pub(crate) charge: MemoryCharge,
}

impl Listing {
    /// Sorts the entries by path.
    pub(crate) fn sort(&mut self) {
        self.entries
            .sort_unstable_by(|one, other| one.relative_path.cmp(&other.relative_path));
    }

    /// Returns the paths of the directories below the start.
    pub(crate) fn directories(&self) -> impl Iterator<Item = &[u8]> {
        let directories = self
            .entries
            .iter()
            .filter(|entry| entry.kind == FileKind::Directory);
        directories.map(|entry| &*entry.relative_path)
    }

    /// Returns the memory of the entries.
    pub(crate) fn size_bytes(&self) -> usize {
        self.entries.iter().map(ListedEntry::size_bytes).sum()
    }
}

impl ListedEntry {
    fn size_bytes(&self) -> usize {
        size_of::<Self>() + self.relative_path.len()
    }
}

/// Whether a symbolic link at the start is followed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum StartLink {
    Follow,
    NoFollow,
}

/// Lists `path` and everything below it down to `depth`, the start first. Empty if `path` does not exist.
pub(crate) async fn list(
    sandbox: &SandboxUse,
    path: &SandboxPath,
    start: StartLink,
    depth: u32,
) -> Result<Listing> {
    let follow = match start {
        StartLink::Follow => "-H",
        StartLink::NoFollow => "-P",
    };
    let argv: [OsString; 7] = [
        "find".into(),
        follow.into(),
        os_path(path),
        "-maxdepth".into(),
        depth.to_string().into(),
        "-printf".into(),
        FORMAT.into(),
    ];
    if let Some(output) = helper::run(sandbox, argv, LISTING_BYTES).await? {
        let is_success = output.exit.status.success();
        let (text, mut charge) = (output.stdout, output.charge);
        let parts = text.iter().filter(|byte| **byte == 0).count();
        charge.grow(parts / PARTS_PER_ENTRY * size_of::<ListedEntry>())?;
        let parsed = tasks::compute(text.len(), move || (parse(&text), charge));
        let (parsed, charge) = parsed.await?;
        match parsed {
            Some(entries) if !entries.is_empty() || is_success => {
                let mut listing = Listing { entries, charge };
                let size_bytes = listing.size_bytes();
                listing.charge.set(size_bytes)?;
                return Ok(listing);
            }
            // A `find` without `-printf`, or the path does not exist.
            _ => {}
        }
    }
    by_backend(sandbox, path, depth).await
}

/// An absolute path as a program argument.
pub(crate) fn os_path(path: &SandboxPath) -> OsString {
    OsString::from_vec([b"/", path.relative_bytes()].concat())
}

fn parse(text: &[u8]) -> Option<Vec<ListedEntry>> {
    let mut parts = text.split(|byte| *byte == 0);
    let mut entries = Vec::new();
    // Most entries have the same.
    let (mut owner, mut group) = (Arc::from(""), Arc::from(""));
    loop {
        let facts = parts.next()?;
        if facts.is_empty() {
            // The end, after the last NUL.
            return parts.next().is_none().then_some(entries);
        }
        let path = parts.next()?;
        let facts = std::str::from_utf8(facts).ok()?;
        let mut facts = facts.split(' ');
        let mut kinds = facts.next()?.chars();
        let (own, target) = (kinds.next()?, kinds.next()?);
        entries.push(ListedEntry {
            relative_path: path.into(),
            kind: kind(own),
            target_kind: match target {
                'N' | 'L' | '?' => None,
                letter => Some(kind(letter)),
            },
            size_bytes: facts.next()?.parse().ok()?,
            mode: u32::from_str_radix(facts.next()?, 8).ok()?,
            owner: shared(&mut owner, facts.next()?),
            group: shared(&mut group, facts.next()?),
            modified: timestamp(facts.next()?),
            inode: facts.next()?.parse().ok()?,
        });
    }
}

/// Returns `text`, which is the latest one if they are equal.
fn shared(latest: &mut Arc<str>, text: &str) -> Arc<str> {
    if **latest != *text {
        *latest = text.into();
    }
    Arc::clone(latest)
}

fn kind(letter: char) -> FileKind {
    match letter {
        'f' => FileKind::File,
        'd' => FileKind::Directory,
        'l' => FileKind::Symlink,
        _ => FileKind::Other,
    }
}

/// Parses seconds such as `1700000000.1234567890`.
fn timestamp(text: &str) -> Option<Timestamp> {
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let nanoseconds = format!("{fraction:0<9.9}");
    Timestamp::new(seconds.parse().ok()?, nanoseconds.parse().ok()?).ok()
}

async fn by_backend(sandbox: &SandboxUse, path: &SandboxPath, depth: u32) -> Result<Listing> {
    let mut charge = sandbox.account.charge();
    let first = match sandbox.stat(path).await {
        Ok(first) => first,
        Err(error) => match error.kind() {
            // Outside: neither the backend nor the program can see it.
            SandboxErrorKind::NotFound | SandboxErrorKind::OutsideSandbox => {
                let entries = Vec::new();
                return Ok(Listing { entries, charge });
            }
            _ => return Err(error.into()),
        },
    };
    let mut entries = vec![from_info(Vec::new(), &first)];
    let mut queue = VecDeque::new();
    if first.kind == FileKind::Directory && depth > 0 {
        queue.push_back((path.clone(), Vec::new(), 1));
    }
    while let Some((directory, below, level)) = queue.pop_front() {
        let children = match sandbox.list(&directory).await {
            Ok(children) => children,
            Err(error) => match error.kind() {
                // Removed during the listing, or unreadable.
                SandboxErrorKind::NotFound
                | SandboxErrorKind::NotADirectory
                | SandboxErrorKind::PermissionDenied => continue,
                _ => return Err(error.into()),
            },
        };
        for child in children {
            if entries.len() >= MAX_ENTRIES {
                return Err(EnvdError::exhausted(
                    "the directory has too many entries to list",
                ));
            }
            let name = child.path.relative_bytes();
            let separator: &[u8] = if below.is_empty() { b"" } else { b"/" };
            let path_below = [&below, separator, name].concat();
            if child.kind == FileKind::Directory && level < depth {
                queue.push_back((directory.join(name)?, path_below.clone(), level + 1));
            }
            let entry = from_info(path_below, &child);
            charge.grow(entry.size_bytes())?;
            entries.push(entry);
        }
    }
    Ok(Listing { entries, charge })
}

/// Converts an entry reported by the backend.
fn from_info(relative_path: Vec<u8>, info: &FileInfo) -> ListedEntry {
    ListedEntry {
        relative_path: relative_path.into(),
        kind: info.kind,
        target_kind: (info.kind != FileKind::Symlink).then_some(info.kind),
        size_bytes: info.size_bytes,
        mode: info.mode.unwrap_or(match info.kind {
            FileKind::Directory => 0o755,
            _ => 0o644,
        }),
        owner: Arc::from(""),
        group: Arc::from(""),
        modified: None,
        inode: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn find_output_is_parsed() {
        let text = b"dd 4096 755 user user 1700000000.0000000000 7\0\0\
                     lf 3 777 user 1000 1700000000.1234567890 8\0a b\n\0\
                     lN 3 777 user user 0.0 9\0x\0";
        let entries = parse(text).unwrap();
        for (one, (path, kind, target_kind, inode)) in entries.iter().zip([
            ("", FileKind::Directory, Some(FileKind::Directory), 7),
            ("a b\n", FileKind::Symlink, Some(FileKind::File), 8),
            ("x", FileKind::Symlink, None, 9),
        ]) {
            assert_eq!(*one.relative_path, *path.as_bytes());
            assert_eq!((one.kind, one.target_kind), (kind, target_kind));
            assert_eq!(one.inode, inode);
        }
        assert_eq!(entries.len(), 3);
        assert_eq!(
            entries[1].modified.unwrap().to_string(),
            "2023-11-14T22:13:20.123456789Z"
        );
        assert_eq!(&*entries[1].group, "1000");
        assert_eq!(parse(b""), Some(Vec::new()));
        assert_eq!(parse(b"dd 1"), None);
    }
}
