//! Blocking access to the host's file system, for uploads and outputs.
//!
//! This crate has no runtime, and blocking calls must not run on one. So each transfer has one
//! [`HostThread`] for its file operations. Files cross in pieces, one ahead of the reader, so memory
//! stays bounded.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{StreamExt as _, stream};
use sha2::{Digest as _, Sha256};
use tempfile::NamedTempFile;
use tokio::sync::oneshot;
use walkdir::{DirEntry, WalkDir};

use super::{ByteStream, RefusedFile, SandboxError, SandboxErrorKind, SandboxPath};

const PIECE_BYTES: u64 = 256 * 1024;
/// Size of the blocks that are looked at for holes.
const BLOCK_BYTES: usize = 64 * 1024;

/// A thread that runs the blocking file operations of one transfer. It ends when this is dropped.
#[derive(Clone, Debug)]
pub(super) struct HostThread(mpsc::Sender<Box<dyn FnOnce() + Send>>);

impl HostThread {
    pub(super) fn start() -> Result<Self, SandboxError> {
        let (sender, jobs) = mpsc::channel::<Box<dyn FnOnce() + Send>>();
        thread::Builder::new()
            .name("cantle-files".to_owned())
            .spawn(move || jobs.into_iter().for_each(|job| job()))
            .map_err(|error| SandboxError::io("failed to start a thread for files", error))?;
        Ok(Self(sender))
    }

    /// Starts `job` at once; the returned future waits for its result.
    pub(super) fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> Result<T, SandboxError> + Send + 'static,
    ) -> BoxFuture<'static, Result<T, SandboxError>> {
        let (done, result) = oneshot::channel();
        // The receivers are gone after a panic, or if the caller was cancelled.
        let _ = self.0.send(Box::new(move || drop(done.send(job()))));
        Box::pin(async {
            result.await.unwrap_or_else(|_| {
                let message = "the file thread ended unexpectedly";
                Err(SandboxError::new(SandboxErrorKind::Io, message))
            })
        })
    }
}

/// The files of a file or directory of the host, for [`upload_tree`](super::SandboxExt::upload_tree).
///
/// Below a directory, files are opened beneath its descriptor: no link leads out, even if the tree changes
/// meanwhile. Links to files are followed, links to directories are not. Special files are never opened.
pub struct HostTree {
    from: PathBuf,
    entries: walkdir::IntoIter,
    filter: Option<Box<TreeFilter>>,
    /// Descriptor of `from`, if it is a directory.
    root: Option<File>,
}

/// Decides on an entry by its path below the tree's root, and whether it is a directory.
type TreeFilter = dyn FnMut(&Path, bool) -> bool + Send;

impl fmt::Debug for HostTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("HostTree");
        debug.field("from", &self.from).finish_non_exhaustive()
    }
}

/// One entry of a [`HostTree`].
pub(super) enum HostEntry {
    Directory(SandboxPath),
    File(HostFile),
    Refused(RefusedFile),
}

/// An open file of a [`HostTree`].
pub(super) struct HostFile {
    pub(super) from: PathBuf,
    pub(super) to: SandboxPath,
    pub(super) mode: u32,
    pub(super) size_bytes: u64,
    file: File,
}

impl HostTree {
    /// Returns the tree at this path; `from` itself may be a link.
    pub fn new(from: impl Into<PathBuf>) -> Self {
        let from = from.into();
        Self {
            entries: WalkDir::new(&from).sort_by_file_name().into_iter(),
            from,
            filter: None,
            root: None,
        }
    }

    /// Leaves out entries below the root for which `filter` returns false, and the contents of such directories.
    /// It receives the path below the root and whether the entry is a directory.
    #[must_use]
    pub fn with_filter(mut self, filter: impl FnMut(&Path, bool) -> bool + Send + 'static) -> Self {
        self.filter = Some(Box::new(filter));
        self
    }

    /// Returns the next entry, to be copied to its place below `to`. Fails if the root can't be read. Blocks.
    pub(super) fn next(&mut self, to: &SandboxPath) -> Result<Option<HostEntry>, SandboxError> {
        while let Some(entry) = self.entries.next() {
            let (path, opened) = match entry {
                Ok(entry) if !self.accepts(&entry) => continue,
                Ok(entry) => (entry.path().to_owned(), self.open(&entry, to)),
                Err(error) => {
                    let path = error.path().unwrap_or(&self.from).to_owned();
                    (path, Err(error.into()))
                }
            };
            return match opened {
                Ok(entry) => Ok(Some(entry)),
                Err(error) if path == self.from => {
                    let doing = format!("failed to read `{}`", path.display());
                    Err(SandboxError::io(doing, error))
                }
                Err(error) => {
                    let refused = RefusedFile::new(path.display().to_string(), error.to_string());
                    Ok(Some(HostEntry::Refused(refused)))
                }
            };
        }
        Ok(None)
    }

    fn accepts(&mut self, entry: &DirEntry) -> bool {
        let Some(filter) = self.filter.as_mut().filter(|_| entry.depth() > 0) else {
            return true;
        };
        let is_directory = entry.file_type().is_dir();
        let below = entry.path().strip_prefix(&self.from);
        let is_accepted = filter(below.unwrap_or(entry.path()), is_directory);
        if !is_accepted && is_directory {
            self.entries.skip_current_dir();
        }
        is_accepted
    }

    fn open(&mut self, entry: &DirEntry, to: &SandboxPath) -> io::Result<HostEntry> {
        let path = entry.path();
        let below = path.strip_prefix(&self.from).unwrap_or(path);
        let to = to.join(below.as_os_str().as_encoded_bytes());
        let to = to.map_err(|error| io::Error::other(error.to_string()))?;
        let kind = entry.file_type();
        if kind.is_dir() && entry.depth() > 0 {
            return Ok(HostEntry::Directory(to));
        }
        // Opening a device can have effects.
        if !kind.is_dir() && !kind.is_file() && !kind.is_symlink() {
            return Err(not_a_file());
        }
        let file = match &self.root {
            Some(root) => open_beneath(root, &self.from, below),
            None => open_without_waiting(path),
        };
        let file = file.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound if kind.is_symlink() => {
                io::Error::new(error.kind(), "the target of the link does not exist")
            }
            _ => error,
        })?;
        let metadata = file.metadata()?;
        if metadata.is_dir() {
            if entry.depth() > 0 {
                return Err(io::Error::other("a link to a directory is not followed"));
            }
            self.root = Some(file);
            return Ok(HostEntry::Directory(to));
        }
        if !metadata.is_file() {
            return Err(not_a_file());
        }
        Ok(HostEntry::File(HostFile {
            file,
            from: path.to_owned(),
            to,
            mode: mode_of(&metadata),
            size_bytes: metadata.len(),
        }))
    }
}

fn not_a_file() -> io::Error {
    io::Error::other("it is neither a file nor a directory")
}

/// Opens a file for reading; a pipe would wait for its writer.
#[cfg(unix)]
fn open_without_waiting(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let flags = READ_FLAGS.bits().cast_signed();
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

#[cfg(not(unix))]
fn open_without_waiting(path: &Path) -> io::Result<File> {
    File::open(path)
}

#[cfg(unix)]
const READ_FLAGS: rustix::fs::OFlags = rustix::fs::OFlags::NONBLOCK
    .union(rustix::fs::OFlags::NOCTTY)
    .union(rustix::fs::OFlags::CLOEXEC);

/// Opens a file below a directory for reading, through links that stay below it.
#[cfg(target_os = "linux")]
fn open_beneath(root: &File, directory: &Path, below: &Path) -> io::Result<File> {
    use rustix::fs::{Mode, ResolveFlags, openat2};
    use rustix::io::Errno;

    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    // The kernel gives up if a directory on the way is moved.
    for _ in 0..8 {
        return match openat2(root, below, READ_FLAGS, Mode::empty(), resolve) {
            Ok(file) => Ok(File::from(file)),
            Err(Errno::AGAIN) => continue,
            Err(Errno::XDEV | Errno::LOOP) => Err(leads_out()),
            Err(Errno::NOSYS) => open_checked(directory, below),
            Err(error) => Err(error.into()),
        };
    }
    Err(Errno::AGAIN.into())
}

#[cfg(not(target_os = "linux"))]
fn open_beneath(_: &File, directory: &Path, below: &Path) -> io::Result<File> {
    open_checked(directory, below)
}

/// Like [`open_beneath`] where the kernel can't do it: a tree that changes meanwhile can lead out.
fn open_checked(directory: &Path, below: &Path) -> io::Result<File> {
    let path = directory.join(below);
    if !path.canonicalize()?.starts_with(directory.canonicalize()?) {
        return Err(leads_out());
    }
    open_without_waiting(&path)
}

fn leads_out() -> io::Error {
    io::Error::other("the link leads out of the directory")
}

impl HostFile {
    /// Streams the content, read on `host`.
    pub(super) fn into_stream(self, host: HostThread) -> ByteStream {
        let path = self.from;
        // One byte more than the file should have: its end is then read with the last piece.
        let capacity = PIECE_BYTES.min(self.size_bytes + 1);
        let read = move |host: &HostThread, file: File| {
            let path = path.clone();
            host.run(move || {
                let mut piece = Vec::with_capacity(capacity as usize);
                let read = (&file).take(capacity).read_to_end(&mut piece);
                read.map_err(|error| {
                    SandboxError::io(format!("failed to read `{}`", path.display()), error)
                })?;
                Ok((Bytes::from(piece), file))
            })
        };
        let first = read(&host, self.file);
        Box::pin(stream::unfold(Some(first), move |next| {
            let (host, read) = (host.clone(), read.clone());
            async move {
                match next?.await {
                    Ok((piece, _)) if piece.is_empty() => None,
                    Ok((piece, file)) => Some((Ok(piece), Some(read(&host, file)))),
                    Err(error) => Some((Err(error), None)),
                }
            }
        }))
    }
}

#[cfg(unix)]
fn mode_of(metadata: &fs::Metadata) -> u32 {
    use std::os::unix::fs::PermissionsExt as _;
    metadata.permissions().mode() & 0o777
}

#[cfg(not(unix))]
fn mode_of(_: &fs::Metadata) -> u32 {
    0o644
}

/// A file under a unique name, removed when dropped before [`rename`](Self::rename).
#[derive(Debug)]
pub(super) struct TemporaryFile {
    file: NamedTempFile,
    size_bytes: u64,
}

impl TemporaryFile {
    fn create(directory: &Path) -> io::Result<Self> {
        let mut builder = tempfile::Builder::new();
        builder.prefix(".cantle-");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            // Those of any new file, less the mask.
            builder.permissions(fs::Permissions::from_mode(0o666));
        }
        Ok(Self {
            file: builder.tempfile_in(directory)?,
            size_bytes: 0,
        })
    }

    fn append(&mut self, piece: &[u8]) -> io::Result<()> {
        for block in piece.chunks(BLOCK_BYTES) {
            // A hole of the source stays one.
            if block.iter().all(|byte| *byte == 0) {
                self.file.seek(SeekFrom::Current(block.len() as i64))?;
            } else {
                self.file.write_all(block)?;
            }
        }
        self.size_bytes += piece.len() as u64;
        Ok(())
    }

    fn finish(&self, mode: Option<u32>) -> io::Result<()> {
        let file = self.file.as_file();
        file.set_len(self.size_bytes)?;
        #[cfg(unix)]
        if let Some(mode) = mode {
            use std::os::unix::fs::PermissionsExt as _;
            let permissions = fs::Permissions::from_mode(mode & 0o777);
            file.set_permissions(permissions)?;
        }
        #[cfg(not(unix))]
        let _ = mode;
        file.sync_all()
    }

    /// Moves the file to its final name, replacing a file or link, and returns its size.
    pub(super) fn rename(self, to: &Path) -> io::Result<u64> {
        self.file.persist(to)?;
        Ok(self.size_bytes)
    }

    /// Moves the file to its final name unless something has that name; the file is returned then.
    pub(super) fn rename_new(self, to: &Path) -> io::Result<Result<u64, Self>> {
        let size_bytes = self.size_bytes;
        match self.file.persist_noclobber(to) {
            Ok(_) => Ok(Ok(size_bytes)),
            Err(failed) if failed.error.kind() == io::ErrorKind::AlreadyExists => Ok(Err(Self {
                file: failed.file,
                size_bytes,
            })),
            Err(failed) => Err(failed.error),
        }
    }
}

/// Returns the SHA-256 of a regular file in hexadecimal; `None` if it is something else.
pub(super) fn sha256_of(path: &Path) -> io::Result<Option<String>> {
    if !fs::symlink_metadata(path)?.is_file() {
        return Ok(None);
    }
    let mut digest = Sha256::new();
    io::copy(&mut open_without_waiting(path)?, &mut digest)?;
    Ok(Some(format!("{:x}", digest.finalize())))
}

/// Returns the number of bytes that can be written to a directory's file system.
#[cfg(unix)]
pub(super) fn free_bytes(directory: &Path) -> io::Result<u64> {
    let system = rustix::fs::statvfs(directory)?;
    Ok(system.f_bavail.saturating_mul(system.f_frsize))
}

#[cfg(not(unix))]
pub(super) fn free_bytes(_: &Path) -> io::Result<u64> {
    Ok(u64::MAX)
}

/// Writes a stream to a new file in `directory` and syncs it.
pub(super) async fn write_temporary(
    host: &HostThread,
    directory: PathBuf,
    mode: Option<u32>,
    mut data: ByteStream,
) -> Result<TemporaryFile, SandboxError> {
    let doing = format!("failed to write in `{}`", directory.display());
    let failed = move |error| SandboxError::io(doing.clone(), error);
    let on_error = failed.clone();
    let mut writing = host.run(move || TemporaryFile::create(&directory).map_err(on_error));
    while let Some(piece) = data.next().await {
        let mut file = writing.await?;
        let (piece, on_error) = (piece?, failed.clone());
        writing = host.run(move || {
            file.append(&piece).map_err(on_error)?;
            Ok(file)
        });
    }
    let file = writing.await?;
    host.run(move || {
        file.finish(mode).map_err(failed)?;
        Ok(file)
    })
    .await
}
