//! Files, resolved by the kernel beneath the working directory.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

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

use super::Fault;

type Result<T> = std::result::Result<T, SandboxError>;

#[derive(Debug)]
pub(super) struct Files {
    root: PathBuf,
    working_directory: SandboxPath,
    directory: OwnedFd,
    fault: Option<Fault>,
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
    let message = format!("`{path}` is no regular file");
    SandboxError::new(SandboxErrorKind::NotAFile, message)
}

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY);

impl Files {
    pub(super) fn new(
        root: PathBuf,
        working_directory: SandboxPath,
        fault: Option<Fault>,
    ) -> Result<Self> {
        let directory = File::open(&root).map_err(|error| SandboxError::io("no root", error))?;
        Ok(Self {
            root,
            working_directory,
            directory: directory.into(),
            fault,
        })
    }

    pub(super) fn must_exist(&self) -> Result<()> {
        let gone = fstat(&self.directory).is_ok_and(|stat| stat.st_nlink == 0);
        if gone {
            return Err(SandboxError::gone("the working directory was removed"));
        }
        Ok(())
    }

    /// Returns the path relative to the working directory.
    fn relative(&self, path: &SandboxPath) -> Result<SandboxPath> {
        let path = if path.is_absolute() {
            path.strip_prefix(&self.working_directory)
                .ok_or_else(|| failed(path, Errno::XDEV))?
        } else {
            path.clone()
        };
        if self.fault == Some(Fault::DecodesNamesAsText) {
            return Ok(SandboxPath::new(path.to_string())?);
        }
        Ok(path)
    }

    fn open(&self, path: &SandboxPath, flags: OFlags) -> Result<OwnedFd> {
        let relative = self.relative(path)?;
        let bytes = match relative.relative_bytes() {
            b"" => b".",
            bytes => bytes,
        };
        let resolve = match self.fault {
            Some(Fault::ChecksPathsAsText) => ResolveFlags::empty(),
            Some(Fault::RefusesLinks) => ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS,
            _ => ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS,
        };
        loop {
            let flags = flags | OFlags::CLOEXEC;
            match openat2(&self.directory, bytes, flags, Mode::empty(), resolve) {
                // A concurrent rename interfered.
                Err(Errno::AGAIN) => {}
                opened => return opened.map_err(|error| failed(path, error)),
            }
        }
    }

    pub(super) fn open_directory(&self, path: &SandboxPath) -> Result<OwnedFd> {
        self.open(path, DIRECTORY)
    }

    /// Returns the parent directory of a path and its name there; `None` for the working directory.
    fn place<'p>(&self, path: &'p SandboxPath) -> Result<Option<(OwnedFd, &'p [u8])>> {
        self.relative(path)?;
        match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) if *path != self.working_directory => {
                let parent = match self.fault {
                    Some(Fault::ChecksThenChanges) => self.check_then_open(&parent)?.into(),
                    _ => self.open_directory(&parent)?,
                };
                Ok(Some((parent, name)))
            }
            _ => Ok(None),
        }
    }

    pub(super) fn read(&self, path: &SandboxPath, range: ByteRange) -> Result<ByteStream> {
        let file = match self.fault {
            Some(Fault::ChecksThenOpens) => self.check_then_open(path)?,
            Some(Fault::OpensSpecialFiles) => {
                let opened = File::open(self.root.join(path.to_string()));
                opened.map_err(|error| SandboxError::io("failed to open", error))?
            }
            _ => File::from(self.open(path, OFlags::RDONLY | OFlags::NONBLOCK)?),
        };
        let is_file = file.metadata().is_ok_and(|metadata| metadata.is_file());
        if !is_file && self.fault != Some(Fault::OpensSpecialFiles) {
            return Err(not_a_file(path));
        }
        let mut at = range.offset;
        let mut left = match self.fault {
            Some(Fault::IgnoresRanges) => u64::MAX,
            Some(Fault::ReadsNothing) => 0,
            _ => range.length.unwrap_or(u64::MAX),
        };
        if self.fault == Some(Fault::BuffersFiles) {
            // One allocation: smaller ones could reuse free memory and not be measured.
            let failed = |error| SandboxError::io("failed to read", error);
            let there = file.metadata().map_err(failed)?.len().saturating_sub(at);
            let mut whole = vec![0; usize::try_from(there.min(left)).unwrap_or(usize::MAX)];
            file.read_exact_at(&mut whole, at).map_err(failed)?;
            let mut rest = Bytes::from(whole);
            let pieces = std::iter::from_fn(move || {
                let piece = rest.split_to(rest.len().min(65_536));
                (!piece.is_empty()).then_some(Ok(piece))
            });
            return Ok(Box::pin(stream::iter(pieces)));
        }
        let pieces = std::iter::from_fn(move || {
            let mut piece = vec![0; 65_536.min(usize::try_from(left).unwrap_or(usize::MAX))];
            let count = match file.read_at(&mut piece, at) {
                Ok(0) => return None,
                Ok(count) => count,
                Err(error) => return Some(Err(SandboxError::io("failed to read", error))),
            };
            piece.truncate(count);
            at += count as u64;
            left -= count as u64;
            Some(Ok(Bytes::from(piece)))
        });
        Ok(Box::pin(stream::iter(pieces)))
    }

    fn check_then_open(&self, path: &SandboxPath) -> Result<File> {
        let failed = |error| SandboxError::io(format!("failed at `{path}`"), error);
        let path = self.root.join(self.relative(path)?.to_string());
        let checked = path.canonicalize().map_err(failed)?;
        if !checked.starts_with(&self.root) {
            return Err(SandboxError::new(
                SandboxErrorKind::OutsideSandbox,
                "it leads out of the sandbox",
            ));
        }
        // Widens the window between the two system calls.
        std::thread::sleep(Duration::from_millis(2));
        File::open(path).map_err(failed)
    }

    pub(super) async fn write(
        &self,
        path: &SandboxPath,
        options: WriteOptions,
        data: ByteStream,
    ) -> Result<()> {
        if let Some(parent) = path.parent()
            && self.fault != Some(Fault::CreatesNoParents)
        {
            self.mkdir(&parent).map_err(|error| match error.kind() {
                SandboxErrorKind::AlreadyExists => failed(path, Errno::NOTDIR),
                _ => error,
            })?;
        }
        let (directory, name) = self.place(path)?.ok_or_else(|| not_a_file(path))?;
        if let Ok(stat) = statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW)
            && !matches!(kind(&stat), FileKind::File | FileKind::Symlink)
        {
            return Err(not_a_file(path));
        }
        let temporary = match self.fault {
            Some(Fault::WritesInPlace | Fault::OverwritesWithoutTruncation) => name.to_vec(),
            Some(Fault::NamesTemporaryFilesAfterTheFile) => [b".", name, b".new"].concat(),
            Some(Fault::SharesTheTemporaryFile) => b".write".to_vec(),
            _ => format!(".write-{}", unique_id()).into_bytes(),
        };
        let mut flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
        if self.fault == Some(Fault::OverwritesWithoutTruncation) {
            flags.remove(OFlags::TRUNC);
        }
        let file = openat(&directory, &temporary[..], flags, Mode::from(0o600));
        let file = File::from(file.map_err(|error| failed(path, error))?);
        let mut guard = Temporary {
            directory: &directory,
            name: &temporary,
            remove: !matches!(
                self.fault,
                Some(
                    Fault::WritesInPlace
                        | Fault::OverwritesWithoutTruncation
                        | Fault::LeavesTemporaryFiles
                )
            ),
        };
        self.fill(file, options, data).await?;
        renameat(&directory, &temporary[..], &directory, name).map_err(|it| failed(path, it))?;
        guard.remove = false;
        Ok(())
    }

    async fn fill(
        &self,
        mut file: File,
        options: WriteOptions,
        mut data: ByteStream,
    ) -> Result<()> {
        let io = |error| SandboxError::io("failed to write", error);
        while let Some(piece) = data.next().await {
            file.write_all(&piece?).map_err(io)?;
            if self.fault == Some(Fault::WritesTheFirstPiece) {
                break;
            }
        }
        let mut size = file.metadata().map_err(io)?.size();
        if self.fault == Some(Fault::OverwritesWithoutTruncation) {
            size = options.size_bytes.unwrap_or(size);
        }
        let other = options
            .size_bytes
            .is_some_and(|announced| announced != size);
        if other && self.fault != Some(Fault::IgnoresTheSize) {
            let message =
                format!("{size} bytes were received, which differs from the announced size");
            return Err(SandboxError::new(SandboxErrorKind::InvalidInput, message));
        }
        let mode = match self.fault {
            Some(Fault::LosesModes) => 0o600,
            _ => options.mode,
        };
        let permissions = std::fs::Permissions::from_mode(mode);
        file.set_permissions(permissions).map_err(io)
    }

    pub(super) fn stat(&self, path: &SandboxPath) -> Result<FileInfo> {
        let stat = match self.place(path)? {
            Some((directory, name)) => self.stat_at(&directory, name),
            None => fstat(&self.directory),
        };
        let stat = stat.map_err(|error| failed(path, error))?;
        Ok(info(path.clone(), &stat))
    }

    fn stat_at(&self, directory: &OwnedFd, name: &[u8]) -> rustix::io::Result<Stat> {
        let flags = match self.fault {
            Some(Fault::FollowsLinks) => AtFlags::empty(),
            _ => AtFlags::SYMLINK_NOFOLLOW,
        };
        statat(directory, name, flags)
    }

    pub(super) fn list(&self, path: &SandboxPath) -> Result<Vec<FileInfo>> {
        let directory = self.open(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let failed = |error| failed(path, error);
        let mut listed = Vec::new();
        for name in names(&directory).map_err(failed)? {
            let stat = self.stat_at(&directory, &name).map_err(failed)?;
            listed.push(info(SandboxPath::new(name)?, &stat));
        }
        if self.fault != Some(Fault::ListsUnsorted) {
            listed.sort_by(|one, other| one.path.cmp(&other.path));
        }
        Ok(listed)
    }

    pub(super) fn mkdir(&self, path: &SandboxPath) -> Result<()> {
        let missing = match self.open_directory(path) {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == SandboxErrorKind::NotFound => path,
            Err(error) if error.kind() == SandboxErrorKind::NotADirectory => {
                return Err(failed(path, Errno::EXIST));
            }
            Err(error) => return Err(error),
        };
        if let Some(parent) = missing.parent() {
            self.mkdir(&parent)?;
        }
        let Some((directory, name)) = self.place(missing)? else {
            return Ok(());
        };
        match mkdirat(&directory, name, Mode::from(0o755)) {
            Ok(()) => Ok(()),
            // A concurrent call may have created it.
            Err(Errno::EXIST) => self.open_directory(missing).map(drop),
            Err(error) => Err(failed(path, error)),
        }
    }

    pub(super) fn remove(&self, path: &SandboxPath) -> Result<()> {
        let place = self.place(path)?;
        let (directory, name) = place.ok_or_else(|| failed(path, Errno::BUSY))?;
        if self.fault == Some(Fault::RemovesByPath) {
            let removed = remove_by_path(&self.root.join(path.to_string()));
            return removed.map_err(|error| SandboxError::io("failed to remove", error));
        }
        self.remove_at(&directory, name)
            .map_err(|error| failed(path, error))
    }

    fn remove_at(&self, directory: &OwnedFd, name: &[u8]) -> rustix::io::Result<()> {
        if kind(&self.stat_at(directory, name)?) != FileKind::Directory {
            return unlinkat(directory, name, AtFlags::empty());
        }
        let below = openat(
            directory,
            name,
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        for name in names(&below)? {
            self.remove_at(&below, &name)?;
        }
        unlinkat(directory, name, AtFlags::REMOVEDIR)
    }

    pub(super) fn rename(&self, from: &SandboxPath, to: &SandboxPath) -> Result<()> {
        let (Some((from_directory, old)), Some((to_directory, new))) =
            (self.place(from)?, self.place(to)?)
        else {
            return Err(failed(from, Errno::BUSY));
        };
        let renamed = renameat(&from_directory, old, &to_directory, new);
        renamed.map_err(|error| failed(from, error))
    }
}

/// Incomplete file, removed on drop unless completed.
struct Temporary<'d> {
    directory: &'d OwnedFd,
    name: &'d [u8],
    remove: bool,
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        if self.remove {
            let _ = unlinkat(self.directory, self.name, AtFlags::empty());
        }
    }
}

fn remove_by_path(path: &Path) -> io::Result<()> {
    if path.symlink_metadata()?.is_dir() {
        for entry in path.read_dir()? {
            remove_by_path(&entry?.path())?;
        }
        return std::fs::remove_dir(path);
    }
    std::fs::remove_file(path)
}

fn names(directory: &OwnedFd) -> rustix::io::Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(name);
        }
    }
    Ok(names)
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
    let mode = Some(stat.st_mode & 0o777);
    FileInfo::new(path, kind(stat), stat.st_size.cast_unsigned(), mode)
}
