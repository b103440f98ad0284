//! The directory of a sandbox and the operations on its files.
//!
//! `ROOT/work` is the working directory, `ROOT/tmp` the commands' temporary directory; commands may see both
//! at other paths ([`ViewPaths`]). All access starts at a descriptor of the root and is resolved by the kernel
//! (see `resolve`), so that no symbolic link leads out, whatever is renamed concurrently. Everything here
//! blocks, except [`Root::write`], whose bytes come from a stream.

#[cfg(confined)]
mod attributes;
mod beneath;
#[cfg(confined)]
mod image;
mod kept;
mod meter;
mod read;
mod remove;
mod resolve;
mod tree;
mod usage;
mod walk;
mod write;

use std::fs::{File, Permissions};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cantle_core::ids::RunId;
use cantle_core::sandbox::{SandboxError, SandboxErrorKind, SandboxPath};
use parking_lot::Mutex;
use rustix::fs::{
    AtFlags, Dir, DirEntry, Gid, Mode, OFlags, Stat, Uid, chownat, fchown, fstat, mkdirat, open,
    openat, statat,
};
use rustix::io::Errno;

use self::beneath::PATH_ONLY;
#[cfg(confined)]
pub(crate) use self::image::SizedFields;
pub(crate) use self::kept::reclaim;
#[cfg(confined)]
pub(crate) use self::kept::{is_name, renamed};
use self::meter::Meter;
pub(crate) use self::meter::{ExceededLimit, FileLimits};
pub(crate) use self::usage::DiskUsage;
pub(crate) use self::write::Batch;
use self::write::create_private;

/// The account `nobody` and the group `nogroup`, with which commands run if this process is root's.
pub(crate) const NOBODY: u32 = 65_534;

/// Names in the root.
const WORK: &str = "work";
const TEMPORARY: &str = "tmp";
/// Mount point for the private view.
const VIEW: &str = "root";
/// Mount point for a file system of limited size, and an additional directory on it.
#[cfg(confined)]
const SIZED: &str = "disk";
#[cfg(confined)]
const MEMORY: &str = "shm";

/// The paths of a sandbox's directories on the host.
#[derive(Clone, Debug)]
pub(crate) struct HostPaths {
    /// Canonical path of the root.
    base: PathBuf,
}

impl HostPaths {
    pub(crate) fn base(&self) -> PathBuf {
        self.base.clone()
    }

    pub(crate) fn work(&self) -> PathBuf {
        self.base.join(WORK)
    }

    pub(crate) fn temporary(&self) -> PathBuf {
        self.base.join(TEMPORARY)
    }
}

#[cfg(confined)]
impl HostPaths {
    /// Returns the mount point of the private view.
    pub(crate) fn view(&self) -> PathBuf {
        self.base.join(VIEW)
    }

    /// Returns the directory for `/dev/shm` on a file system of limited size.
    pub(crate) fn memory(&self) -> PathBuf {
        self.base.join(MEMORY)
    }

    /// Returns the paths of the same directories on a file system of limited size.
    pub(crate) fn sized(&self) -> Self {
        Self {
            base: self.base.join(SIZED),
        }
    }
}

/// The paths at which commands see their directories.
#[derive(Clone, Debug)]
pub(crate) struct ViewPaths {
    pub(crate) work: SandboxPath,
    pub(crate) temporary: SandboxPath,
}

/// The open directories with the sandbox's files.
#[derive(Debug)]
struct Directories {
    /// The directory beneath which paths are resolved.
    root: OwnedFd,
    /// Detects the removal of the working directory: while it is open, its inode is not reused.
    work: OwnedFd,
}

impl Directories {
    /// Opens the working directory beneath the root.
    fn new(root: OwnedFd) -> Result<Self, Errno> {
        let flags = DIRECTORY.union(OFlags::NOFOLLOW);
        let work = openat(&root, WORK, flags, Mode::empty())?;
        Ok(Self { root, work })
    }
}

/// The private directory of a sandbox.
#[derive(Debug)]
pub(crate) struct Root {
    host_paths: HostPaths,
    view_paths: ViewPaths,
    /// Paths relative to the root at which commands see roots of the policy.
    mounted: Vec<Vec<u8>>,
    directories: Mutex<Arc<Directories>>,
    /// The root, locked while this process uses it.
    locked: OwnedFd,
    /// Prefix of the names of spill files.
    spill_prefix: String,
    /// The owner of created files, if not this process's user.
    owner: Option<(Uid, Gid)>,
    meter: Meter,
}

impl Root {
    /// Creates a private directory below `parent`. A durable one needs a file system with locks.
    pub(crate) fn create(
        parent: &Path,
        run: RunId,
        is_durable: bool,
    ) -> Result<Self, SandboxError> {
        let failed = |error| {
            let doing = format!("failed to create a directory in `{}`", parent.display());
            SandboxError::io(doing, error)
                .with_advice("Set TMPDIR to a directory that exists and can be written.")
        };
        let directory = tempfile::Builder::new()
            .prefix(&kept::name_prefix(run))
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(parent.canonicalize().map_err(failed)?)
            .map_err(failed)?;
        let failed = |error: Errno| failed(error.into());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let locked = open(directory.path(), flags, Mode::empty()).map_err(failed)?;
        match kept::lock(&locked) {
            Err(error) if is_durable => return Err(failed(error)),
            // Without a lock, the directory is never reclaimed.
            Ok(()) | Err(_) => {}
        }
        let descriptor = open(directory.path(), DIRECTORY, Mode::empty()).map_err(failed)?;
        for name in [WORK, TEMPORARY, VIEW] {
            mkdirat(&descriptor, name, Mode::RWXU).map_err(failed)?;
        }
        let directories = Directories::new(descriptor).map_err(failed)?;
        let base = directory.path().to_owned();
        let root = Self::new(base, directories, locked, "output".to_owned())?;
        root.probe()?;
        // From here on `delete` removes it.
        let _ = directory.keep();
        Ok(root)
    }

    fn new(
        base: PathBuf,
        directories: Directories,
        locked: OwnedFd,
        spill_prefix: String,
    ) -> Result<Self, SandboxError> {
        let host_paths = HostPaths { base };
        Ok(Self {
            // The same, for commands that see the host's files.
            view_paths: ViewPaths {
                work: SandboxPath::from_os(host_paths.work())?,
                temporary: SandboxPath::from_os(host_paths.temporary())?,
            },
            host_paths,
            mounted: Vec::new(),
            directories: Mutex::new(Arc::new(directories)),
            locked,
            spill_prefix,
            owner: None,
            meter: Meter::default(),
        })
    }

    pub(crate) fn host_paths(&self) -> &HostPaths {
        &self.host_paths
    }

    pub(crate) fn view_paths(&self) -> &ViewPaths {
        &self.view_paths
    }

    fn directories(&self) -> Arc<Directories> {
        let directories = self.directories.lock();
        Arc::clone(&directories)
    }

    fn set_directories(&self, directories: Directories) {
        let mut current = self.directories.lock();
        *current = Arc::new(directories);
    }

    /// Gives a created file to its owner.
    fn give(&self, made: impl AsFd) -> Result<(), Errno> {
        match self.owner {
            Some((uid, gid)) => fchown(made, Some(uid), Some(gid)),
            None => Ok(()),
        }
    }

    /// Checks that the kernel supports `openat2`.
    fn probe(&self) -> Result<(), SandboxError> {
        match self.open_beneath(WORK.as_bytes(), PATH_ONLY) {
            Ok(_) => Ok(()),
            Err(Errno::NOSYS | Errno::PERM) => Err(SandboxError::unavailable(
                "the system call `openat2` is not available",
            )
            .with_advice("It needs Linux 5.6 or newer, and a container that allows it.")),
            Err(error) => Err(self.failure("open", &self.view_paths.work, error)),
        }
    }

    /// Returns the directory's name.
    pub(crate) fn name(&self) -> String {
        let name = self.host_paths.base.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    /// Gives a file in a directory to the owner of created files; a symbolic link is not followed.
    fn give_at(&self, directory: impl AsFd, name: &[u8]) -> Result<(), Errno> {
        match self.owner {
            Some((uid, gid)) => {
                let flags = AtFlags::SYMLINK_NOFOLLOW;
                chownat(directory, name, Some(uid), Some(gid), flags)
            }
            None => Ok(()),
        }
    }

    /// Returns the name of the spill file of a command's output.
    pub(crate) fn spill_name(&self, command: u32, channel: &str) -> String {
        format!("{}-{command}.{channel}", self.spill_prefix)
    }

    /// Creates a file in the temporary directory.
    pub(crate) fn create_temporary(&self, name: &str) -> Result<File, SandboxError> {
        let path = self.temporary_path(name)?;
        self.charge(&path, DiskUsage::entries(1))?;
        // A command may have removed the directory.
        let root = &self.directories().root;
        let made = mkdirat(root, TEMPORARY, Mode::RWXU)
            .and_then(|()| self.give_at(root, TEMPORARY.as_bytes()));
        match made {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(self.failure("create", &path, error)),
        }
        let (directory, name) = self.open_parent(&path, "create")?;
        let created =
            create_private(&directory, name).and_then(|file| self.give(&file).map(|()| file));
        let file = created.map_err(|error| self.failure("create", &path, error))?;
        Ok(file.into())
    }

    /// Returns the path of a file in the temporary directory, as commands see it.
    pub(crate) fn temporary_path(&self, name: &str) -> Result<SandboxPath, SandboxError> {
        Ok(self.view_paths.temporary.join(name)?)
    }

    /// Checks that the working directory exists.
    ///
    /// # Errors
    /// [`SandboxErrorKind::Gone`] if it does not.
    pub(crate) fn check(&self) -> Result<(), SandboxError> {
        let Directories { root, work } = &*self.directories();
        let is_ours = |found: Stat| {
            fstat(work).is_ok_and(|work| (work.st_dev, work.st_ino) == (found.st_dev, found.st_ino))
        };
        if statat(root, WORK, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(is_ours) {
            return Ok(());
        }
        Err(SandboxError::gone(format!(
            "the working directory `{}` is gone",
            self.view_paths.work
        )))
    }

    /// Returns the error for a failed system call; `doing` is a verb.
    fn failure(&self, doing: &str, path: &SandboxPath, error: Errno) -> SandboxError {
        let say = |kind, what: &str| {
            SandboxError::new(kind, format!("failed to {doing} `{path}`: {what}"))
                .with_source(std::io::Error::from(error))
        };
        match error {
            Errno::NOENT | Errno::STALE if self.check().is_err() => {
                let message = format!("failed to {doing} `{path}`: the working directory is gone");
                SandboxError::gone(message)
            }
            Errno::XDEV => say(
                SandboxErrorKind::OutsideSandbox,
                "the path leads out of the sandbox",
            ),
            Errno::LOOP => say(SandboxErrorKind::NotFound, "its symbolic links form a loop"),
            Errno::NXIO | Errno::NODEV => {
                say(SandboxErrorKind::NotAFile, "it is not a regular file")
            }
            _ => SandboxError::io(format!("failed to {doing} `{path}`"), error.into()),
        }
    }
}

/// Confined sandboxes.
#[cfg(confined)]
impl Root {
    /// Gives the directories, and all files created from now on, to the user that runs commands.
    pub(crate) fn give_to(&mut self, uid: Uid, gid: Gid) -> Result<(), SandboxError> {
        self.owner = Some((uid, gid));
        let root = &self.directories().root;
        [".", WORK, TEMPORARY]
            .into_iter()
            .try_for_each(|name| self.give_at(root, name.as_bytes()))
            .map_err(|error| self.failure("change the owner of", &self.view_paths.work, error))
    }

    /// Creates the mount point for a file system of limited size.
    pub(crate) fn make_sized(&self) -> Result<(), SandboxError> {
        match mkdirat(&self.locked, SIZED, Mode::RWXU) {
            // That of an earlier sandbox.
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(error) => Err(self.failure("create a directory in", &self.view_paths.work, error)),
        }
    }

    /// Sets the paths at which commands see the directories, and the roots of the policy in these.
    pub(crate) fn set_view_paths(&mut self, paths: ViewPaths, roots: &[PathBuf]) {
        self.view_paths = paths;
        let mounted = roots
            .iter()
            .filter_map(|root| self.relative_to_root(root.as_os_str().as_encoded_bytes()));
        self.mounted = mounted.collect();
    }

    /// Switches to another file system with the same directories.
    pub(crate) fn move_to(&self, root: OwnedFd) -> Result<(), SandboxError> {
        let directories = Directories::new(root)
            .map_err(|error| self.failure("open", &self.view_paths.work, error))?;
        self.set_directories(directories);
        Ok(())
    }
}

const DIRECTORY: OFlags = PATH_ONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// A readable directory, not a symbolic link.
const READ: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Lists a directory, without `.` and `..`.
fn entries(directory: impl AsFd) -> Result<impl Iterator<Item = Result<DirEntry, Errno>>, Errno> {
    let is_other = |entry: &Result<DirEntry, Errno>| {
        let name = entry.as_ref().map(|entry| entry.file_name().to_bytes());
        !matches!(name, Ok(b"." | b".."))
    };
    Ok(Dir::read_from(directory)?.filter(is_other))
}
