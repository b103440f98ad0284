//! Reading a file as a stream.

use std::os::fd::OwnedFd;

use bytes::Bytes;
use cantle_core::sandbox::{ByteRange, ByteStream, SandboxError, SandboxErrorKind, SandboxPath};
use futures_util::{StreamExt as _, stream};
use rustix::buffer::spare_capacity;
use rustix::fs::{FileType, OFlags, fstat};
use rustix::io::{Errno, pread};
use tokio::task::{JoinHandle, spawn_blocking};

use super::Root;
use crate::blocking;

const CHUNK_BYTES: u64 = 256 * 1024;

impl Root {
    /// Opens a regular file and reads its first chunk, which is all of most files.
    pub(crate) fn read(
        &self,
        path: &SandboxPath,
        range: ByteRange,
    ) -> Result<ByteStream, SandboxError> {
        // Nonblocking: opening a pipe without a writer must not wait.
        let file = self.open(path, OFlags::RDONLY, "read")?;
        let stat = fstat(&file).map_err(|error| self.failure("read", path, error))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(not_a_file("read", path));
        }
        let mut reader = FileReader {
            file,
            path: path.clone(),
            size_bytes: u64::try_from(stat.st_size).unwrap_or(0),
            // Of ranges that end beyond `i64::MAX`, the kernel refuses to read anything.
            offset: range.offset.min(1 << 62),
            left_bytes: range.length.unwrap_or(u64::MAX),
        };
        let first = reader.next()?;
        let rest = stream::unfold(reader.read_ahead(), async |reading| match reading?.await {
            Ok((reader, Ok(Some(chunk)))) => Some((Ok(chunk), reader.read_ahead())),
            Ok((_, last)) => Some((last.transpose()?, None)),
            Err(error) => Some((Err(blocking::interrupted(error)), None)),
        });
        Ok(Box::pin(stream::iter(first.map(Ok)).chain(rest)))
    }
}

pub(super) fn not_a_file(doing: &str, path: &SandboxPath) -> SandboxError {
    let message = format!("failed to {doing} `{path}`: it is not a regular file");
    SandboxError::new(SandboxErrorKind::NotAFile, message)
}

type NextChunk = Result<Option<Bytes>, SandboxError>;

/// An open file and the position in it.
struct FileReader {
    file: OwnedFd,
    path: SandboxPath,
    /// Size when it was opened.
    size_bytes: u64,
    offset: u64,
    left_bytes: u64,
}

impl FileReader {
    /// Reads the next chunk; `None` at the end.
    fn next(&mut self) -> NextChunk {
        // One byte more than expected: a short read shows the end without another read.
        let expected = match self.size_bytes.checked_sub(self.offset) {
            Some(left) => left + 1,
            // It has grown.
            None => CHUNK_BYTES,
        };
        let wanted = CHUNK_BYTES.min(expected).min(self.left_bytes);
        if wanted == 0 {
            return Ok(None);
        }
        let mut chunk = Vec::with_capacity(usize::try_from(wanted).unwrap_or(0));
        let count = loop {
            match pread(&self.file, spare_capacity(&mut chunk), self.offset) {
                Err(Errno::INTR) => {}
                Ok(count) => break count as u64,
                Err(error) => {
                    let doing = format!("failed to read `{}`", self.path);
                    return Err(SandboxError::io(doing, error.into()));
                }
            }
        };
        self.offset += count;
        self.left_bytes = if count < wanted {
            0
        } else {
            self.left_bytes - count
        };
        Ok((count > 0).then(|| chunk.into()))
    }

    /// Starts to read the next chunk, if there may be one.
    fn read_ahead(mut self) -> Option<JoinHandle<(Self, NextChunk)>> {
        if self.left_bytes == 0 {
            return None;
        }
        Some(spawn_blocking(move || {
            let chunk = self.next();
            (self, chunk)
        }))
    }
}
