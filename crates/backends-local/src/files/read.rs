//! Reading a file as a stream.

use std::future::Future as _;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use cantle_core::sandbox::{ByteRange, ByteStream, SandboxError, SandboxErrorKind, SandboxPath};
use futures_core::Stream;
use rustix::buffer::spare_capacity;
use rustix::fs::{FileType, OFlags, fstat};
use rustix::io::{Errno, pread};
use tokio::task::{JoinHandle, spawn_blocking};

use super::Root;
use crate::blocking;

const PIECE_BYTES: u64 = 256 * 1024;

impl Root {
    /// Opens a regular file and reads its first piece, which is all of most files.
    pub(crate) fn read(
        &self,
        path: &SandboxPath,
        range: ByteRange,
    ) -> Result<ByteStream, SandboxError> {
        // Opened without blocking: a pipe without a writer is no reason to wait.
        let file = self.open(path, OFlags::RDONLY, "read")?;
        let stat = fstat(&file).map_err(|error| self.failure("read", path, error))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(not_a_file("read", path));
        }
        let mut source = Source {
            file,
            path: path.clone(),
            size_bytes: u64::try_from(stat.st_size).unwrap_or(0),
            offset: range.offset,
            left_bytes: range.length.unwrap_or(u64::MAX),
        };
        let first = source.next()?;
        Ok(Box::pin(Pieces {
            ready: first,
            ahead: Ahead::Idle(source),
        }))
    }
}

pub(super) fn not_a_file(doing: &str, path: &SandboxPath) -> SandboxError {
    let message = format!("failed to {doing} `{path}`: it is not a regular file");
    SandboxError::new(SandboxErrorKind::NotAFile, message)
}

/// A file and how far it was read.
struct Source {
    file: OwnedFd,
    path: SandboxPath,
    /// When it was opened.
    size_bytes: u64,
    offset: u64,
    left_bytes: u64,
}

impl Source {
    /// Reads the next piece; `None` at the end.
    fn next(&mut self) -> Result<Option<Bytes>, SandboxError> {
        // One more than there should be: a short read is the end, and saves another read.
        let expected = self.size_bytes.saturating_sub(self.offset) + 1;
        let wanted = PIECE_BYTES.min(expected).min(self.left_bytes);
        if wanted == 0 {
            return Ok(None);
        }
        let mut piece = Vec::with_capacity(usize::try_from(wanted).unwrap_or(0));
        let count = loop {
            match pread(&self.file, spare_capacity(&mut piece), self.offset) {
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
        Ok((count > 0).then(|| piece.into()))
    }
}

/// The pieces of a file, one of them read ahead.
struct Pieces {
    ready: Option<Bytes>,
    ahead: Ahead,
}

enum Ahead {
    Idle(Source),
    Reading(JoinHandle<(Source, Result<Option<Bytes>, SandboxError>)>),
    Done,
}

impl Pieces {
    /// Starts to read the next piece.
    fn start(&mut self, mut source: Source) {
        self.ahead = if source.left_bytes == 0 {
            Ahead::Done
        } else {
            Ahead::Reading(spawn_blocking(move || {
                let piece = source.next();
                (source, piece)
            }))
        };
    }
}

impl Stream for Pieces {
    type Item = Result<Bytes, SandboxError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let piece = match &mut self.ahead {
            Ahead::Reading(reading) => match ready!(Pin::new(reading).poll(cx)) {
                Ok((source, Ok(Some(piece)))) => {
                    self.start(source);
                    Some(Ok(piece))
                }
                Ok((_, Ok(None))) => {
                    self.ahead = Ahead::Done;
                    None
                }
                Ok((_, Err(error))) => {
                    self.ahead = Ahead::Done;
                    Some(Err(error))
                }
                Err(error) => {
                    self.ahead = Ahead::Done;
                    Some(Err(blocking::interrupted(error)))
                }
            },
            Ahead::Idle(_) => {
                if let Ahead::Idle(source) = std::mem::replace(&mut self.ahead, Ahead::Done) {
                    self.start(source);
                }
                self.ready.take().map(Ok)
            }
            Ahead::Done => None,
        };
        Poll::Ready(piece)
    }
}
