//! Type, size and mode of a path.

use cantle_core::sandbox::{FileInfo, FileKind, SandboxPath};

use crate::envd::EntryInfo;

/// The result of a stat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EntryStat {
    pub(super) kind: FileKind,
    pub(super) size_bytes: u64,
    mode: u32,
    /// The target of a link, if known.
    pub(super) target: Option<String>,
}

impl EntryStat {
    pub(super) fn info(&self, path: SandboxPath) -> FileInfo {
        FileInfo::new(path, self.kind, self.size_bytes, Some(self.mode & 0o777))
    }

    /// Parses a line of `stat -c "%f %s"`: mode in hexadecimal and size.
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

/// For a link, the entry describes its target and has separate fields that identify the link.
impl From<&EntryInfo> for EntryStat {
    fn from(entry: &EntryInfo) -> Self {
        let is_link = entry.is_symlink
            || entry.symlink_target.is_some()
            || entry.permissions.starts_with(['L', 'l']);
        // The protocol has no types for pipes, sockets and devices.
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
