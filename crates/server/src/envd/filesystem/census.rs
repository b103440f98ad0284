//! What is in a directory, down to some depth: by `find` inside the sandbox, or without it by what the
//! backend says, which is less.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;

use cantle_core::sandbox::{FileInfo, FileKind, Sandbox, SandboxErrorKind, SandboxPath};
use jiff::Timestamp;

use crate::envd::fault::Fault;
use crate::envd::inside;

/// Bytes that `find` may write: some 100,000 entries.
const LISTING_BYTES: usize = 16 << 20;
/// Entries that are listed without it.
const MOST_ENTRIES: usize = 100_000;

/// Kinds of the entry and of what it leads to, size, permission bits, owner, group, modification,
/// change, inode; then the path below the start, and the link's target.
const FORMAT: &str = "%y%Y %s %m %u %g %T@ %C@ %i\\0%P\\0%l\\0";

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Below the start, as bytes; empty for the start itself.
    pub(crate) below: Vec<u8>,
    pub(crate) kind: FileKind,
    /// Of what a link leads to; `None` where it leads nowhere.
    pub(crate) target_kind: Option<FileKind>,
    pub(crate) size_bytes: u64,
    pub(crate) mode: u32,
    pub(crate) owner: String,
    pub(crate) group: String,
    pub(crate) modified: Option<Timestamp>,
    /// When anything about it last changed; only to be compared.
    pub(crate) changed: String,
    /// Names what is there, whatever it is called; 0 where nobody knows.
    pub(crate) inode: u64,
}

/// Whether a link at the start is followed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    Followed,
    Itself,
}

/// What is at `path`, and below it down to `depth`, the start first. Nothing where there is nothing.
pub(crate) async fn take(
    sandbox: &dyn Sandbox,
    path: &SandboxPath,
    start: Start,
    depth: u32,
) -> Result<Vec<Seen>, Fault> {
    let depth_text = depth.to_string();
    let follow = match start {
        Start::Followed => "-H",
        Start::Itself => "-P",
    };
    let argv: [OsString; 7] = [
        "find".into(),
        follow.into(),
        os_path(path),
        "-maxdepth".into(),
        depth_text.into(),
        "-printf".into(),
        FORMAT.into(),
    ];
    match inside::run(sandbox, argv, LISTING_BYTES).await? {
        Some(output) => match parse(&output.stdout) {
            Some(seen) if !seen.is_empty() => Ok(seen),
            _ if output.exit.status.success() => Ok(Vec::new()),
            // Another `find`, which knows no format; or nothing is there.
            _ => by_backend(sandbox, path, depth).await,
        },
        None => by_backend(sandbox, path, depth).await,
    }
}

/// An absolute path as an argument.
pub(crate) fn os_path(path: &SandboxPath) -> OsString {
    OsString::from_vec([b"/", path.relative_bytes()].concat())
}

fn parse(text: &[u8]) -> Option<Vec<Seen>> {
    let mut parts = text.split(|byte| *byte == 0);
    let mut seen = Vec::new();
    loop {
        let facts = parts.next()?;
        if facts.is_empty() {
            // After the last NUL.
            return parts.next().is_none().then_some(seen);
        }
        let (below, _target) = (parts.next()?, parts.next()?);
        let facts = std::str::from_utf8(facts).ok()?;
        let mut facts = facts.split(' ');
        let mut kinds = facts.next()?.chars();
        let (own, target) = (kinds.next()?, kinds.next()?);
        seen.push(Seen {
            below: below.to_vec(),
            kind: kind(own),
            target_kind: match target {
                'N' | 'L' | '?' => None,
                letter => Some(kind(letter)),
            },
            size_bytes: facts.next()?.parse().ok()?,
            mode: u32::from_str_radix(facts.next()?, 8).ok()?,
            owner: facts.next()?.to_owned(),
            group: facts.next()?.to_owned(),
            modified: timestamp(facts.next()?),
            changed: facts.next()?.to_owned(),
            inode: facts.next()?.parse().ok()?,
        });
    }
}

fn kind(letter: char) -> FileKind {
    match letter {
        'f' => FileKind::File,
        'd' => FileKind::Directory,
        'l' => FileKind::Symlink,
        _ => FileKind::Other,
    }
}

/// `1700000000.1234567890`, in seconds.
fn timestamp(text: &str) -> Option<Timestamp> {
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let nanoseconds: String = fraction
        .chars()
        .chain("000000000".chars())
        .take(9)
        .collect();
    Timestamp::new(seconds.parse().ok()?, nanoseconds.parse().ok()?).ok()
}

async fn by_backend(
    sandbox: &dyn Sandbox,
    path: &SandboxPath,
    depth: u32,
) -> Result<Vec<Seen>, Fault> {
    let first = match sandbox.stat(path).await {
        Ok(first) => first,
        Err(error) if error.kind() == SandboxErrorKind::NotFound => return Ok(Vec::new()),
        // Nothing there is the backend's to give; the program saw nothing either.
        Err(error) if error.kind() == SandboxErrorKind::OutsideSandbox => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    };
    let mut seen = vec![plain(Vec::new(), &first)];
    let mut to_do = VecDeque::new();
    if first.kind == FileKind::Directory && depth > 0 {
        to_do.push_back((path.clone(), Vec::new(), 1));
    }
    while let Some((directory, below, level)) = to_do.pop_front() {
        let entries = match sandbox.list(&directory).await {
            Ok(entries) => entries,
            // It went away meanwhile.
            Err(error)
                if matches!(
                    error.kind(),
                    SandboxErrorKind::NotFound
                        | SandboxErrorKind::NotADirectory
                        | SandboxErrorKind::PermissionDenied
                ) =>
            {
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        for entry in entries {
            if seen.len() >= MOST_ENTRIES {
                let message = "there is too much to be listed at once";
                return Err(Fault::new(
                    crate::envd::fault::Code::ResourceExhausted,
                    message,
                ));
            }
            let name = entry.path.relative_bytes();
            let mut place: Vec<u8> = below.clone();
            if !place.is_empty() {
                place.push(b'/');
            }
            place.extend_from_slice(name);
            if entry.kind == FileKind::Directory && level < depth {
                to_do.push_back((directory.join(name)?, place.clone(), level + 1));
            }
            seen.push(plain(place, &entry));
        }
    }
    Ok(seen)
}

/// What the backend says of an entry.
fn plain(below: Vec<u8>, info: &FileInfo) -> Seen {
    Seen {
        below,
        kind: info.kind,
        target_kind: (info.kind != FileKind::Symlink).then_some(info.kind),
        size_bytes: info.size_bytes,
        mode: info.mode.unwrap_or(match info.kind {
            FileKind::Directory => 0o755,
            _ => 0o644,
        }),
        owner: String::new(),
        group: String::new(),
        modified: None,
        changed: String::new(),
        inode: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_find_writes_is_read() {
        let text = b"dd 4096 755 user user 1700000000.0000000000 1700000001.5000000000 7\0\0\0\
                     lf 3 777 user 1000 1700000000.1234567890 1.2 8\0a b\n\0c\0\
                     lN 3 777 user user 0.0 1.2 9\0x\0y\0";
        let seen = parse(text).unwrap();
        let short: Vec<_> = seen
            .iter()
            .map(|one| {
                (
                    String::from_utf8_lossy(&one.below).into_owned(),
                    one.kind,
                    one.target_kind,
                    one.inode,
                )
            })
            .collect();
        assert_eq!(
            short,
            [
                (
                    String::new(),
                    FileKind::Directory,
                    Some(FileKind::Directory),
                    7
                ),
                (
                    "a b\n".to_owned(),
                    FileKind::Symlink,
                    Some(FileKind::File),
                    8
                ),
                ("x".to_owned(), FileKind::Symlink, None, 9),
            ]
        );
        assert_eq!(
            seen[1].modified.unwrap().to_string(),
            "2023-11-14T22:13:20.123456789Z"
        );
        assert_eq!(seen[1].group, "1000");
        assert_eq!(parse(b""), Some(Vec::new()));
        assert_eq!(parse(b"dd 1"), None);
    }
}
