//! Type, size and mode of a path.

use cantle_core::sandbox::{FileInfo, FileKind, SandboxPath};

use crate::envd::EntryInfo;

/// Converts an entry. For a link, the entry describes its target and has separate fields that identify the link.
pub(super) fn file_info(path: SandboxPath, entry: &EntryInfo) -> FileInfo {
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
    FileInfo::new(path, kind, entry.size, Some(entry.mode & 0o777))
}
