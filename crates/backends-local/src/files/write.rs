//! Writing a file atomically.
//!
//! A large file has no name until it is complete, if the file system supports that: nothing is left of it if
//! this process is killed.

use std::fs::File;
use std::io::Write as _;
#[cfg(confined)]
use std::os::fd::AsRawFd as _;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bytes::Bytes;
use cantle_core::ids::unique_id;
use cantle_core::sandbox::{ByteStream, SandboxError, SandboxPath, WriteOptions};
use futures_util::StreamExt as _;
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, RawMode, fchmod, openat, renameat, statat, unlinkat,
};
#[cfg(confined)]
use rustix::fs::{CWD, linkat};
use rustix::io::Errno;

use super::Root;
use super::meter::Reservation;
use super::read::not_a_file;
use super::usage::DiskUsage;
use crate::blocking;

/// Bytes written at once: a switch to a blocking thread costs more than writing a few.
const BATCH_BYTES: usize = 256 * 1024;

impl Root {
    /// Writes an unnamed or temporary file and renames it when it is complete. An existing symbolic link is
    /// replaced, not followed. All writes are atomic.
    pub(crate) async fn write(
        root: &Arc<Self>,
        path: &SandboxPath,
        options: WriteOptions,
        mut data: ByteStream,
    ) -> Result<(), SandboxError> {
        let mut total_bytes = 0;
        let mut unfinished = None;
        loop {
            let batch = Batch::take(&mut data).await?;
            total_bytes += batch.size_bytes as u64;
            options.check_size(path, total_bytes, batch.is_last)?;
            root.check_file_size(path, total_bytes)?;
            let (root, path) = (Arc::clone(root), path.clone());
            let is_last = batch.is_last;
            // Most files are one batch, and so take one switch.
            unfinished = blocking::run(move || {
                let mut file = match unfinished {
                    Some(file) => file,
                    None => UnfinishedFile::create(&root, path, !is_last)?,
                };
                file.append(&root, &batch)?;
                if batch.is_last {
                    file.publish(&root, options.mode)?;
                    return Ok(None);
                }
                Ok(Some(file))
            })
            .await?;
            if is_last {
                return Ok(());
            }
        }
    }
}

/// Bytes that are written together.
#[derive(Default)]
pub(crate) struct Batch {
    pub(crate) pieces: Vec<Bytes>,
    pub(crate) size_bytes: usize,
    /// Whether the data have ended.
    pub(crate) is_last: bool,
}

impl Batch {
    /// Takes data until there are enough, or no more.
    pub(crate) async fn take(data: &mut ByteStream) -> Result<Self, SandboxError> {
        let mut batch = Self::default();
        while !batch.is_last && batch.size_bytes < BATCH_BYTES {
            match data.next().await.transpose()? {
                Some(piece) => {
                    batch.size_bytes += piece.len();
                    batch.pieces.push(piece);
                }
                None => batch.is_last = true,
            }
        }
        Ok(batch)
    }
}

/// A file that is not complete, with a temporary name or none. Dropping removes it.
struct UnfinishedFile {
    path: SandboxPath,
    directory: OwnedFd,
    temporary: String,
    file: File,
    is_named: bool,
    reservation: Reservation,
}

impl UnfinishedFile {
    fn create(root: &Arc<Root>, path: SandboxPath, is_large: bool) -> Result<Self, SandboxError> {
        if path.is_base() {
            return Err(not_a_file("write", &path));
        }
        let reservation = root.reserve(&path, DiskUsage::entries(1))?;
        root.make_parent(&path)?;
        let (directory, name) = root.open_parent(&path, "write")?;
        let failed = |error| root.failure("write", &path, error);
        match statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile | FileType::Symlink => {}
                _ => return Err(not_a_file("write", &path)),
            },
            Err(Errno::NOENT) => {}
            Err(error) => return Err(failed(error)),
        }
        let temporary = format!(".cantle-{}", unique_id());
        let unnamed = is_large.then(|| unnamed_file(&directory)).flatten();
        let is_named = unnamed.is_none();
        let file = match unnamed {
            Some(file) => file,
            None => create_private(&directory, temporary.as_bytes()).map_err(failed)?,
        };
        Ok(Self {
            path,
            directory,
            temporary,
            file: file.into(),
            is_named,
            reservation,
        })
    }

    fn append(&mut self, root: &Root, batch: &Batch) -> Result<(), SandboxError> {
        let usage = DiskUsage::data(batch.size_bytes as u64);
        self.reservation.extend(&self.path, usage)?;
        for piece in &batch.pieces {
            self.file.write_all(piece).map_err(|error| {
                let errno = Errno::from_io_error(&error);
                errno.map_or_else(
                    || SandboxError::io(format!("failed to write `{}`", self.path), error),
                    |errno| root.failure("write", &self.path, errno),
                )
            })?;
        }
        Ok(())
    }

    fn publish(mut self, root: &Root, mode: u32) -> Result<(), SandboxError> {
        let name = self.path.file_name().unwrap_or_default();
        let mode = Mode::from_raw_mode((mode & 0o777) as RawMode);
        let given = root
            .give(&self.file)
            .and_then(|()| fchmod(&self.file, mode));
        // Only a named file can be renamed over another one.
        let named = match given {
            Ok(()) if !self.is_named => link_file(&self.file, &self.directory, &self.temporary),
            given => given,
        };
        self.is_named |= named.is_ok();
        named
            .and_then(|()| renameat(&self.directory, &self.temporary, &self.directory, name))
            .map_err(|error| root.failure("write", &self.path, error))?;
        self.is_named = false;
        self.reservation.complete();
        Ok(())
    }
}

impl Drop for UnfinishedFile {
    fn drop(&mut self) {
        if self.is_named {
            // It may be gone together with its directory.
            let _ = unlinkat(&self.directory, &self.temporary, AtFlags::empty());
        }
    }
}

const PRIVATE: Mode = Mode::RUSR.union(Mode::WUSR);

/// Creates a file that only its owner can access.
pub(super) fn create_private(directory: &OwnedFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    openat(directory, name, flags, PRIVATE)
}

/// Creates an unnamed file, if the file system supports that.
#[cfg(confined)]
fn unnamed_file(directory: &OwnedFd) -> Option<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
    openat(directory, ".", flags, PRIVATE).ok()
}

#[cfg(not(confined))]
fn unnamed_file(_directory: &OwnedFd) -> Option<OwnedFd> {
    None
}

/// Gives an unnamed file a name.
#[cfg(confined)]
fn link_file(file: &File, directory: &OwnedFd, name: &str) -> Result<(), Errno> {
    // Through `/proc`: linking by descriptor takes privileges on most kernels.
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    linkat(CWD, path, directory, name, AtFlags::SYMLINK_FOLLOW)
}

#[cfg(not(confined))]
fn link_file(_file: &File, _directory: &OwnedFd, _name: &str) -> Result<(), Errno> {
    Err(Errno::NOSYS)
}
