//! Blocking access to the host's file system, for uploads and outputs.
//!
//! This crate has no runtime, and blocking calls must not run on one. So each transfer has one
//! [`HostThread`] for its file operations. Files cross in pieces, one ahead of the reader, so memory
//! stays bounded.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{StreamExt as _, stream};
use tokio::sync::oneshot;
use walkdir::{DirEntry, WalkDir};

use super::{ByteStream, RefusedFile, SandboxError, SandboxErrorKind, SandboxPath};
use crate::ids::unique_id;

const PIECE_BYTES: u64 = 256 * 1024;

/// A thread that runs the blocking file operations of one transfer. It ends when this is dropped.
#[derive(Clone)]
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

/// The entries of a file or directory of the host, to be copied to `to`.
pub(super) struct HostTree {
    from: PathBuf,
    /// `from` without links; links in the tree must not lead out of it.
    real: PathBuf,
    to: SandboxPath,
    entries: walkdir::IntoIter,
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
    pub(super) fn new(from: PathBuf, to: SandboxPath) -> Self {
        Self {
            real: from.canonicalize().unwrap_or_else(|_| from.clone()),
            entries: WalkDir::new(&from).sort_by_file_name().into_iter(),
            from,
            to,
        }
    }

    /// Returns the next entry. Fails if `from` itself can't be read.
    pub(super) fn next(&mut self) -> Result<Option<HostEntry>, SandboxError> {
        let Some(entry) = self.entries.next() else {
            return Ok(None);
        };
        let (path, opened) = match entry {
            Ok(entry) => (entry.path().to_owned(), self.open(&entry)),
            Err(error) => {
                let path = error.path().unwrap_or(&self.from).to_owned();
                (path, Err(error.into()))
            }
        };
        match opened {
            Ok(entry) => Ok(Some(entry)),
            Err(error) if path == self.from => {
                let doing = format!("failed to read `{}`", path.display());
                Err(SandboxError::io(doing, error))
            }
            Err(error) => {
                let refused = RefusedFile::new(path.display().to_string(), error.to_string());
                Ok(Some(HostEntry::Refused(refused)))
            }
        }
    }

    fn open(&self, entry: &DirEntry) -> io::Result<HostEntry> {
        let path = entry.path();
        if entry.path_is_symlink() && !path.canonicalize()?.starts_with(&self.real) {
            return Err(io::Error::other("the link leads out of the directory"));
        }
        let below = path.strip_prefix(&self.from).unwrap_or(path);
        let to = self.to.join(below.as_os_str().as_encoded_bytes());
        let to = to.map_err(|error| io::Error::other(error.to_string()))?;
        let metadata = fs::metadata(path)?;
        if metadata.is_dir() {
            // A link to a directory above would never end.
            if entry.path_is_symlink() && entry.depth() > 0 {
                return Err(io::Error::other("a link to a directory is not followed"));
            }
            return Ok(HostEntry::Directory(to));
        }
        if !metadata.is_file() {
            return Err(io::Error::other("it is neither a file nor a directory"));
        }
        Ok(HostEntry::File(HostFile {
            file: File::open(path)?,
            from: path.to_owned(),
            to,
            mode: mode_of(&metadata),
            size_bytes: metadata.len(),
        }))
    }
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
pub(super) struct TemporaryFile {
    file: File,
    path: PathBuf,
    size_bytes: u64,
    is_renamed: bool,
}

impl TemporaryFile {
    fn create(directory: &Path) -> io::Result<Self> {
        let path = directory.join(format!(".cantle-{}", unique_id()));
        Ok(Self {
            file: OpenOptions::new()
                .write(true)
                .create_new(true)
                .open(&path)?,
            path,
            size_bytes: 0,
            is_renamed: false,
        })
    }

    fn append(&mut self, piece: &[u8]) -> io::Result<()> {
        self.file.write_all(piece)?;
        self.size_bytes += piece.len() as u64;
        Ok(())
    }

    fn finish(&self, mode: Option<u32>) -> io::Result<()> {
        #[cfg(unix)]
        if let Some(mode) = mode {
            use std::os::unix::fs::PermissionsExt as _;
            let permissions = fs::Permissions::from_mode(mode & 0o777);
            self.file.set_permissions(permissions)?;
        }
        #[cfg(not(unix))]
        let _ = mode;
        self.file.sync_all()
    }

    /// Moves the file to its final name, replacing a file or link, and returns its size.
    pub(super) fn rename(mut self, to: &Path) -> io::Result<u64> {
        fs::rename(&self.path, to)?;
        self.is_renamed = true;
        Ok(self.size_bytes)
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        if !self.is_renamed {
            let _ = fs::remove_file(&self.path);
        }
    }
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
