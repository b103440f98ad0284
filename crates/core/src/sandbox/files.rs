//! File metadata and options of file operations.

use super::{SandboxError, SandboxPath};

/// Metadata of a file, directory or link.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileInfo {
    /// The path: as passed to `stat`, or relative to the directory passed to `list`.
    pub path: SandboxPath,
    /// The type of the entry.
    pub kind: FileKind,
    /// The size; meaningful for regular files only.
    pub size_bytes: u64,
    /// The permission bits (`0o777` and below), if the backend knows them.
    pub mode: Option<u32>,
}

impl FileInfo {
    /// Creates the metadata of `path`.
    pub fn new(path: SandboxPath, kind: FileKind, size_bytes: u64, mode: Option<u32>) -> Self {
        Self {
            path,
            kind,
            size_bytes,
            mode,
        }
    }
}

/// The type of a directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(clippy::exhaustive_enums, reason = "anything else is `Other`")]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link, not followed.
    Symlink,
    /// A pipe, socket or device.
    Other,
}

impl FileKind {
    /// The kind in a mode of `stat(2)`.
    #[must_use]
    pub fn from_mode(mode: u32) -> Self {
        match mode & 0o170_000 {
            0o100_000 => Self::File,
            0o040_000 => Self::Directory,
            0o120_000 => Self::Symlink,
            _ => Self::Other,
        }
    }
}

/// A part of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ByteRange {
    /// The first byte, counted from 0. A range past the end is empty.
    pub offset: u64,
    /// Maximum number of bytes; `None` for all that follow.
    pub length: Option<u64>,
}

impl ByteRange {
    /// Returns the range of the whole file.
    pub fn all() -> Self {
        Self::default()
    }

    /// Returns the range of at most `length` bytes from `offset`.
    pub fn new(offset: u64, length: u64) -> Self {
        Self {
            offset,
            length: Some(length),
        }
    }
}

/// Options of [`Sandbox::write`](super::Sandbox::write).
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WriteOptions {
    /// Length of the stream, if known. The write fails if the stream has another length.
    pub size_bytes: Option<u64>,
    /// Permission bits of the file (`0o777` and below).
    pub mode: u32,
    /// Whether the file appears atomically when it is complete.
    pub atomic: bool,
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self {
            size_bytes: None,
            mode: 0o644,
            atomic: true,
        }
    }
}

/// Maximum number of entries of a directory that [`Sandbox::list`](super::Sandbox::list) returns: the directory is
/// untrusted, and its listing is in memory.
pub const MAX_LIST_ENTRIES: usize = 200_000;

/// Maximum size of the attributes of one path that [`Sandbox::attributes`](super::Sandbox::attributes) returns.
pub const MAX_ATTRIBUTES_BYTES: usize = 4096;

impl SandboxError {
    /// Creates the error for a directory that has more than [`MAX_LIST_ENTRIES`] entries.
    pub fn too_many_entries(path: &SandboxPath) -> Self {
        let message =
            format!("failed to list `{path}`: it has more than {MAX_LIST_ENTRIES} entries");
        Self::unsupported(message).with_advice("Use a command that selects some, such as `find`.")
    }
}

impl WriteOptions {
    /// Sets the permission bits.
    pub fn with_mode(mut self, mode: u32) -> Self {
        self.mode = mode & 0o777;
        self
    }

    /// Sets the length of the stream.
    pub fn with_size(mut self, size_bytes: u64) -> Self {
        self.size_bytes = Some(size_bytes);
        self
    }

    /// Checks the number of bytes received for the file `path` against the length of the stream.
    ///
    /// # Errors
    /// `InvalidInput` if there are more, or fewer although the stream is complete.
    pub fn check_size(
        &self,
        path: &SandboxPath,
        received_bytes: u64,
        is_complete: bool,
    ) -> Result<(), SandboxError> {
        let relation = match self.size_bytes {
            Some(size) if received_bytes > size => "more",
            Some(size) if received_bytes < size && is_complete => "fewer",
            _ => return Ok(()),
        };
        let size = self.size_bytes.unwrap_or_default();
        let message = format!("failed to write `{path}`: received {relation} than {size} bytes");
        Err(SandboxError::invalid_input(message))
    }
}
