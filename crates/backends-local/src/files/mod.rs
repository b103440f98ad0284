//! The sandbox's directory and everything that is done with files in it.
//!
//! `ROOT/work` is the working directory, `ROOT/tmp` the commands' temporary one; commands may see
//! both under other names ([`Seen`]). All access starts at a descriptor of the root and is resolved
//! by the kernel (see `resolve`), so that no link leads out, whatever is renamed meanwhile. Everything
//! here blocks, but for [`Root::write`], whose bytes come from a stream.

mod beneath;
mod kept;
mod read;
mod remove;
mod resolve;
mod tree;
mod usage;
mod write;

use std::fs::{File, Permissions};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use cantle_core::ids::RunId;
use cantle_core::sandbox::{SandboxError, SandboxErrorKind, SandboxPath};
use rustix::fs::{
    AtFlags, Gid, Mode, OFlags, Stat, Uid, chownat, fchown, fstat, mkdirat, open, openat, statat,
};
use rustix::io::Errno;

use self::beneath::LOOK;
#[cfg(confined)]
pub(crate) use self::kept::is_name;
pub(crate) use self::kept::{Wanted, reclaim};

/// `nobody`, and `nogroup`: whom root's commands run as.
pub(crate) const NOBODY: u32 = 65_534;

/// The working directory's name in the root.
const WORK: &str = "work";
/// The temporary directory's name in the root.
const TEMPORARY: &str = "tmp";
/// Mount points that only the sandbox itself uses.
const VIEW: &str = "root";
#[cfg(confined)]
const SIZED: &str = "disk";
/// Only on a file system of limited size.
#[cfg(confined)]
const MEMORY: &str = "shm";

/// Where the directories of a sandbox are on the host.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    /// Absolute and without links.
    base: PathBuf,
}

impl Places {
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
impl Places {
    /// An empty directory in which the commands' view is built.
    pub(crate) fn view(&self) -> PathBuf {
        self.base.join(VIEW)
    }

    /// The files of `/dev/shm`, on a file system of limited size.
    pub(crate) fn memory(&self) -> PathBuf {
        self.base.join(MEMORY)
    }

    /// The same directories on a file system of limited size.
    pub(crate) fn sized(&self) -> Self {
        Self {
            base: self.base.join(SIZED),
        }
    }
}

/// Where commands see the directories of their sandbox.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) work: SandboxPath,
    pub(crate) temporary: SandboxPath,
}

/// The private directory of a sandbox.
#[derive(Debug)]
pub(crate) struct Root {
    places: Places,
    seen: Seen,
    /// What is resolved beneath.
    descriptor: OwnedFd,
    /// To notice when it is gone. As long as it is open, no other directory gets its number.
    work: OwnedFd,
    /// The directory, locked for as long as we live.
    locked: OwnedFd,
    /// What the files that output is spilled to are called first.
    spills: String,
    /// Whose the files are that we write.
    owner: Option<(Uid, Gid)>,
}

impl Root {
    /// Makes a directory that is its owner's alone, below `parent`. One that is to be used again must
    /// be on a file system that has locks.
    pub(crate) fn create(
        parent: &Path,
        run: RunId,
        is_durable: bool,
    ) -> Result<Self, SandboxError> {
        let failed = |error| {
            let doing = format!("failed to make a directory in `{}`", parent.display());
            SandboxError::io(doing, error)
                .with_advice("Set TMPDIR to a directory that exists and can be written.")
        };
        let directory = tempfile::Builder::new()
            .prefix(&kept::name_of(run))
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(parent.canonicalize().map_err(failed)?)
            .map_err(failed)?;
        let failed = |error: Errno| failed(error.into());
        let places = Places {
            base: directory.path().to_owned(),
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let locked = open(directory.path(), flags, Mode::empty()).map_err(failed)?;
        match kept::lock(&locked) {
            Err(error) if is_durable => return Err(failed(error)),
            // Nobody can tell then that we are dead, and it stays.
            Ok(()) | Err(_) => {}
        }
        let descriptor = open_directory(directory.path()).map_err(failed)?;
        for name in [WORK, TEMPORARY, VIEW] {
            mkdirat(&descriptor, name, Mode::RWXU).map_err(failed)?;
        }
        let work = openat(&descriptor, WORK, DIRECTORY, Mode::empty()).map_err(failed)?;
        let root = Self {
            seen: Seen {
                work: SandboxPath::from_os(places.work())?,
                temporary: SandboxPath::from_os(places.temporary())?,
            },
            places,
            descriptor,
            work,
            locked,
            spills: "output".to_owned(),
            owner: None,
        };
        root.probe()?;
        // From here on the sandbox removes it.
        let _ = directory.keep();
        Ok(root)
    }

    pub(crate) fn places(&self) -> &Places {
        &self.places
    }

    pub(crate) fn seen(&self) -> &Seen {
        &self.seen
    }

    /// Gives what was just made to its owner.
    fn give(&self, made: impl AsFd) -> Result<(), Errno> {
        match self.owner {
            Some((uid, gid)) => fchown(made, Some(uid), Some(gid)),
            None => Ok(()),
        }
    }

    /// Whether the kernel has what all access needs.
    fn probe(&self) -> Result<(), SandboxError> {
        match self.open_beneath(WORK.as_bytes(), LOOK) {
            Ok(_) => Ok(()),
            Err(Errno::NOSYS | Errno::PERM) => {
                let message = "the system call `openat2` is not available";
                Err(SandboxError::new(SandboxErrorKind::Unavailable, message)
                    .with_advice("It needs Linux 5.6 or newer, and a container that allows it."))
            }
            Err(error) => Err(self.failure("open", &self.seen.work, error)),
        }
    }

    /// The directory's own name.
    pub(crate) fn name(&self) -> String {
        let name = self.places.base.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    /// The same for what `name` is in a directory; a link is not followed.
    fn give_at(&self, directory: impl AsFd, name: &[u8]) -> Result<(), Errno> {
        match self.owner {
            Some((uid, gid)) => {
                let flags = AtFlags::SYMLINK_NOFOLLOW;
                chownat(directory, name, Some(uid), Some(gid), flags)
            }
            None => Ok(()),
        }
    }

    /// What the file for a command's output is called.
    pub(crate) fn spill_name(&self, command: u32, channel: &str) -> String {
        format!("{}-{command}.{channel}", self.spills)
    }

    /// Makes a file in the temporary directory.
    pub(crate) fn create_temporary(&self, name: &str) -> Result<File, SandboxError> {
        let path = self.temporary_path(name)?;
        // A command may have removed the directory.
        let made = mkdirat(&self.descriptor, TEMPORARY, Mode::RWXU)
            .and_then(|()| self.give_at(&self.descriptor, TEMPORARY.as_bytes()));
        match made {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(self.failure("create", &path, error)),
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let file = self.open(&path, flags, "create")?;
        self.give(&file)
            .map_err(|error| self.failure("create", &path, error))?;
        Ok(file.into())
    }

    /// Where a file in the temporary directory is.
    pub(crate) fn temporary_path(&self, name: &str) -> Result<SandboxPath, SandboxError> {
        Ok(self.seen.temporary.join(name)?)
    }

    /// Whether the working directory is still there.
    ///
    /// # Errors
    /// [`SandboxErrorKind::Gone`] where it isn't.
    pub(crate) fn check(&self) -> Result<(), SandboxError> {
        let is_ours = |found: Stat| {
            fstat(&self.work)
                .is_ok_and(|work| (work.st_dev, work.st_ino) == (found.st_dev, found.st_ino))
        };
        if statat(&self.descriptor, WORK, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(is_ours) {
            return Ok(());
        }
        let message = format!("the working directory `{}` is gone", self.seen.work);
        Err(SandboxError::gone(message))
    }

    /// What a failed system call says; `doing` is a verb.
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
                "it leads out of the sandbox",
            ),
            Errno::LOOP => say(SandboxErrorKind::NotFound, "its links lead in a circle"),
            Errno::NXIO | Errno::NODEV => {
                say(SandboxErrorKind::NotAFile, "it is not a regular file")
            }
            _ => SandboxError::io(format!("failed to {doing} `{path}`"), error.into()),
        }
    }
}

/// What becomes of the directory where commands are confined.
#[cfg(confined)]
impl Root {
    /// Gives the directories, and all files that will be written, to the user who runs commands.
    pub(crate) fn give_to(&mut self, uid: Uid, gid: Gid) -> Result<(), SandboxError> {
        self.owner = Some((uid, gid));
        for name in [".", WORK, TEMPORARY] {
            chownat(
                &self.descriptor,
                name,
                Some(uid),
                Some(gid),
                AtFlags::empty(),
            )
            .map_err(|error| self.failure("give away", &self.seen.work, error))?;
        }
        Ok(())
    }

    /// Makes the mount point for a file system of limited size.
    pub(crate) fn make_sized(&self) -> Result<(), SandboxError> {
        mkdirat(&self.descriptor, SIZED, Mode::RWXU)
            .map_err(|error| self.failure("make a directory in", &self.seen.work, error))
    }

    /// Says where commands see the directories.
    pub(crate) fn see(&mut self, seen: Seen) {
        self.seen = seen;
    }

    /// Keeps the files on another file system from now on, which has the same directories.
    pub(crate) fn move_to(&mut self, descriptor: OwnedFd) -> Result<(), SandboxError> {
        self.work = openat(&descriptor, WORK, DIRECTORY, Mode::empty())
            .map_err(|error| self.failure("open", &self.seen.work, error))?;
        self.descriptor = descriptor;
        Ok(())
    }
}

const DIRECTORY: OFlags = LOOK.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

fn open_directory(path: &Path) -> Result<OwnedFd, Errno> {
    open(path, DIRECTORY, Mode::empty())
}
