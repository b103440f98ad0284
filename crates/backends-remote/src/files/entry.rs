//! What was seen at a path.

use cantle_core::sandbox::{FileInfo, FileKind, SandboxPath};

use crate::envd::EntryInfo;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) kind: FileKind,
    pub(super) size_bytes: u64,
    mode: u32,
    /// Where a link leads, where that was told.
    pub(super) target: Option<String>,
}

impl Seen {
    pub(super) fn info(&self, path: SandboxPath) -> FileInfo {
        FileInfo::new(path, self.kind, self.size_bytes, Some(self.mode & 0o777))
    }

    /// What `stat` says: type and permissions in hexadecimal, and the size.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let (mode, size) = line.trim().split_once(' ')?;
        let mode = u32::from_str_radix(mode, 16).ok()?;
        Some(Self {
            kind: match mode & 0o170_000 {
                0o100_000 => FileKind::File,
                0o040_000 => FileKind::Directory,
                0o120_000 => FileKind::Symlink,
                _ => FileKind::Other,
            },
            size_bytes: size.parse().ok()?,
            mode,
            target: None,
        })
    }
}

/// An entry tells of what a link leads to, and by the way that it is a link.
impl From<&EntryInfo> for Seen {
    fn from(entry: &EntryInfo) -> Self {
        let is_link = entry.is_symlink
            || entry.symlink_target.is_some()
            || entry.permissions.starts_with(['L', 'l']);
        // Pipes, sockets and devices have no type of their own.
        let is_special = entry
            .permissions
            .starts_with(['p', 'S', 's', 'D', 'b', 'c']);
        let kind = match &*entry.kind {
            _ if is_link => FileKind::Symlink,
            "FILE_TYPE_SYMLINK" => FileKind::Symlink,
            "FILE_TYPE_DIRECTORY" => FileKind::Directory,
            "FILE_TYPE_FILE" if !is_special => FileKind::File,
            _ => FileKind::Other,
        };
        Self {
            kind,
            size_bytes: entry.size,
            mode: entry.mode,
            target: entry.symlink_target.clone(),
        }
    }
}
