//! What is known and said about files.

use super::SandboxPath;

/// What is at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileInfo {
    /// Its path: as asked for by `stat`; relative to the listed directory from `list`.
    pub path: SandboxPath,
    /// What it is.
    pub kind: FileKind,
    /// Its size; of use for regular files.
    pub size_bytes: u64,
    /// Its permission bits (`0o777` and below), where the backend knows them.
    pub mode: Option<u32>,
}

impl FileInfo {
    /// What is at `path`.
    #[must_use]
    pub fn new(path: SandboxPath, kind: FileKind, size_bytes: u64, mode: Option<u32>) -> Self {
        Self {
            path,
            kind,
            size_bytes,
            mode,
        }
    }
}

/// What a directory entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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

/// A part of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ByteRange {
    /// The first byte, counted from 0. Past the end: nothing.
    pub offset: u64,
    /// How many bytes at most; `None` for all that follow.
    pub length: Option<u64>,
}

impl ByteRange {
    /// The whole file.
    #[must_use]
    pub fn all() -> Self {
        Self::default()
    }

    /// At most `length` bytes from `offset`.
    #[must_use]
    pub fn new(offset: u64, length: u64) -> Self {
        Self {
            offset,
            length: Some(length),
        }
    }
}

/// How a file is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WriteOptions {
    /// How many bytes will come, where known. A stream of another length fails the write.
    pub size_bytes: Option<u64>,
    /// Permission bits of the file (`0o777` and below).
    pub mode: u32,
    /// Whether the file appears whole or not at all.
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

impl WriteOptions {
    /// The same with these permission bits.
    #[must_use]
    pub fn with_mode(mut self, mode: u32) -> Self {
        self.mode = mode & 0o777;
        self
    }

    /// The same with this size.
    #[must_use]
    pub fn with_size(mut self, size_bytes: u64) -> Self {
        self.size_bytes = Some(size_bytes);
        self
    }
}
