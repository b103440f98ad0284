//! Files beneath the sandbox's directory. The kernel resolves each path and refuses escaping ones
//! (`openat2` with `RESOLVE_BENEATH`).
//!
//! These calls block for a moment. A backend for many sandboxes would make them on blocking threads.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use bytes::Bytes;
use cantle_core::ids::unique_id;
use cantle_core::sandbox::{
    ByteRange, ByteStream, FileInfo, FileKind, SandboxError, SandboxErrorKind, SandboxPath,
    WriteOptions,
};
use futures_util::{StreamExt as _, stream};
use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, mkdirat, openat, openat2,
    renameat, statat, unlinkat,
};
use rustix::io::Errno;

type Result<T> = std::result::Result<T, SandboxError>;

const CHUNK_BYTES: usize = 65_536;

/// The directory of a sandbox.
#[derive(Debug)]
pub(crate) struct Files {
    working_directory: SandboxPath,
    root: OwnedFd,
}

fn failed(path: &SandboxPath, error: Errno) -> SandboxError {
    match error {
        Errno::XDEV => {
            let message = format!("`{path}` leads out of the sandbox");
            SandboxError::new(SandboxErrorKind::OutsideSandbox, message)
        }
        error => SandboxError::io(format!("failed at `{path}`"), error.into()),
    }
}

fn not_a_file(path: &SandboxPath) -> SandboxError {
    SandboxError::new(SandboxErrorKind::NotAFile, format!("`{path}` is not a regular file"))
}

impl Files {
    pub(crate) fn open(root: &Path, working_directory: SandboxPath) -> Result<Self> {
        let directory = File::open(root);
        let directory = directory.map_err(|error| SandboxError::io("failed to open the directory", error))?;
        Ok(Self { working_directory, root: directory.into() })
    }

    /// Fails if the directory was removed.
    pub(crate) fn check(&self) -> Result<()> {
        match fstat(&self.root).is_ok_and(|stat| stat.st_nlink == 0) {
            true => Err(SandboxError::gone("the working directory was removed")),
            false => Ok(()),
        }
    }

    fn resolve(&self, path: &SandboxPath, flags: OFlags) -> Result<OwnedFd> {
        let relative = match path.is_absolute() {
            true => path.strip_prefix(&self.working_directory).ok_or_else(|| failed(path, Errno::XDEV))?,
            false => path.clone(),
        };
        let bytes = match relative.relative_bytes() {
            b"" => b".",
            bytes => bytes,
        };
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        loop {
            match openat2(&self.root, bytes, flags | OFlags::CLOEXEC, Mode::empty(), resolve) {
                // A component of the path was renamed concurrently.
                Err(Errno::AGAIN) => {}
                opened => return opened.map_err(|error| failed(path, error)),
            }
        }
    }

    pub(crate) fn directory(&self, path: &SandboxPath) -> Result<OwnedFd> {
        self.resolve(path, OFlags::PATH | OFlags::DIRECTORY)
    }

    /// Returns the parent directory of a path and its name there; `None` for the working directory.
    fn parent<'p>(&self, path: &'p SandboxPath) -> Result<Option<(OwnedFd, &'p [u8])>> {
        if *path == self.working_directory {
            return Ok(None);
        }
        match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) => Ok(Some((self.directory(&parent)?, name))),
            _ => Ok(None),
        }
    }

    pub(crate) fn read(&self, path: &SandboxPath, range: ByteRange) -> Result<ByteStream> {
        // Opening a pipe must not wait for its writer.
        let file = File::from(self.resolve(path, OFlags::RDONLY | OFlags::NONBLOCK)?);
        if !file.metadata().is_ok_and(|metadata| metadata.is_file()) {
            return Err(not_a_file(path));
        }
        let (mut at, mut left) = (range.offset, range.length.unwrap_or(u64::MAX));
        let chunks = std::iter::from_fn(move || {
            let mut chunk = vec![0; CHUNK_BYTES.min(usize::try_from(left).unwrap_or(usize::MAX))];
            match file.read_at(&mut chunk, at) {
                Ok(0) => None,
                Ok(count) => {
                    chunk.truncate(count);
                    at += count as u64;
                    left -= count as u64;
                    Some(Ok(Bytes::from(chunk)))
                }
                Err(error) => Some(Err(SandboxError::io("failed to read", error))),
            }
        });
        // Other tasks run between two chunks.
        Ok(Box::pin(stream::iter(chunks).then(async |chunk| {
            tokio::task::yield_now().await;
            chunk
        })))
    }

    pub(crate) async fn write(
        &self,
        path: &SandboxPath,
        options: WriteOptions,
        mut data: ByteStream,
    ) -> Result<()> {
        if let Some(parent) = path.parent() {
            self.mkdir(&parent).map_err(|error| match error.kind() {
                SandboxErrorKind::AlreadyExists => failed(path, Errno::NOTDIR),
                _ => error,
            })?;
        }
        let (directory, name) = self.parent(path)?.ok_or_else(|| not_a_file(path))?;
        if let Ok(stat) = statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW)
            && !matches!(kind(&stat), FileKind::File | FileKind::Symlink)
        {
            return Err(not_a_file(path));
        }
        // The file gets its name when it is complete.
        let name_until_then = format!(".write-{}", unique_id());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = openat(&directory, &*name_until_then, flags, Mode::from(0o600));
        let mut file = File::from(file.map_err(|error| failed(path, error))?);
        let mut partial = PartialFile { directory, name: Some(name_until_then) };
        let io = |error| SandboxError::io("failed to write", error);
        while let Some(chunk) = data.next().await {
            self.check()?;
            file.write_all(&chunk?).map_err(io)?;
        }
        let size = file.metadata().map_err(io)?.size();
        if options.size_bytes.is_some_and(|announced| announced != size) {
            let message = format!("{size} bytes came, not as many as announced");
            return Err(SandboxError::new(SandboxErrorKind::InvalidInput, message));
        }
        file.set_permissions(std::fs::Permissions::from_mode(options.mode)).map_err(io)?;
        partial.rename(name).map_err(|error| failed(path, error))
    }

    pub(crate) fn stat(&self, path: &SandboxPath) -> Result<FileInfo> {
        let stat = match self.parent(path)? {
            Some((directory, name)) => statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW),
            None => fstat(&self.root),
        };
        Ok(info(path.clone(), &stat.map_err(|error| failed(path, error))?))
    }

    pub(crate) fn list(&self, path: &SandboxPath) -> Result<Vec<FileInfo>> {
        let directory = self.resolve(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let failed = |error| failed(path, error);
        let mut entries = Vec::new();
        for name in names(&directory).map_err(failed)? {
            let stat = statat(&directory, &name[..], AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
            entries.push(info(SandboxPath::new(name)?, &stat));
        }
        entries.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(entries)
    }

    pub(crate) fn mkdir(&self, path: &SandboxPath) -> Result<()> {
        match self.directory(path) {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == SandboxErrorKind::NotFound => {}
            Err(error) if error.kind() == SandboxErrorKind::NotADirectory => {
                return Err(failed(path, Errno::EXIST));
            }
            Err(error) => return Err(error),
        }
        if let Some(parent) = path.parent() {
            self.mkdir(&parent)?;
        }
        let Some((directory, name)) = self.parent(path)? else {
            return Ok(());
        };
        match mkdirat(&directory, name, Mode::from(0o755)) {
            Ok(()) => Ok(()),
            // A concurrent call may have created it.
            Err(Errno::EXIST) => self.directory(path).map(drop),
            Err(error) => Err(failed(path, error)),
        }
    }

    pub(crate) fn remove(&self, path: &SandboxPath) -> Result<()> {
        let (directory, name) = self.parent(path)?.ok_or_else(|| failed(path, Errno::BUSY))?;
        remove_at(&directory, name).map_err(|error| failed(path, error))
    }

    pub(crate) fn rename(&self, from: &SandboxPath, to: &SandboxPath) -> Result<()> {
        let (Some((old_parent, old)), Some((new_parent, new))) = (self.parent(from)?, self.parent(to)?)
        else {
            return Err(failed(from, Errno::BUSY));
        };
        renameat(&old_parent, old, &new_parent, new).map_err(|error| failed(from, error))
    }
}

/// A file that is being written; removed unless it gets its name.
struct PartialFile {
    directory: OwnedFd,
    name: Option<String>,
}

impl PartialFile {
    fn rename(&mut self, name: &[u8]) -> rustix::io::Result<()> {
        if let Some(old) = &self.name {
            renameat(&self.directory, &**old, &self.directory, name)?;
        }
        self.name = None;
        Ok(())
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            let _ = unlinkat(&self.directory, &**name, AtFlags::empty());
        }
    }
}

fn remove_at(directory: &OwnedFd, name: &[u8]) -> rustix::io::Result<()> {
    if kind(&statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?) != FileKind::Directory {
        return unlinkat(directory, name, AtFlags::empty());
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let below = openat(directory, name, flags, Mode::empty())?;
    for name in names(&below)? {
        remove_at(&below, &name)?;
    }
    unlinkat(directory, name, AtFlags::REMOVEDIR)
}

/// Removes a directory, in which some may not be writable.
pub(crate) fn remove_tree(directory: &Path) -> io::Result<()> {
    if std::fs::remove_dir_all(directory).is_err() && directory.exists() {
        let chmod = std::process::Command::new("chmod").args(["-R", "u+rwx"]).arg(directory).status();
        chmod.and_then(|_| std::fs::remove_dir_all(directory))?;
    }
    Ok(())
}

fn names(directory: &OwnedFd) -> rustix::io::Result<Vec<Vec<u8>>> {
    let names = Dir::read_from(directory)?.map(|entry| Ok(entry?.file_name().to_bytes().to_vec()));
    let names = names.filter(|name| !matches!(name.as_deref(), Ok(b"." | b"..")));
    names.collect()
}

fn kind(stat: &Stat) -> FileKind {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        _ => FileKind::Other,
    }
}

fn info(path: SandboxPath, stat: &Stat) -> FileInfo {
    FileInfo::new(path, kind(stat), stat.st_size.cast_unsigned(), Some(stat.st_mode & 0o777))
}
