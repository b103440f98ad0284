//! The sandbox's directory and everything that is done with files in it.
//!
//! `ROOT/work` is the working directory, `ROOT/tmp` the commands' `TMPDIR`. All access starts at a
//! descriptor of the root and is resolved by the kernel (see `resolve`), so that no link leads
//! out, whatever is renamed meanwhile. Everything here blocks, but for [`Root::write`], whose bytes
//! come from a stream.

mod read;
mod remove;
mod resolve;
mod tree;
mod write;

use std::fs::{File, Permissions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use cantle_core::sandbox::{SandboxError, SandboxErrorKind, SandboxPath};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, Stat, fstat, mkdirat, open, openat, statat};
use rustix::io::Errno;

/// The working directory's name in the root.
const WORK: &str = "work";
/// The temporary directory's name in the root.
const TEMPORARY: &str = "tmp";

/// The private directory of a sandbox.
#[derive(Debug)]
pub(crate) struct Root {
    /// Absolute and without links.
    path: PathBuf,
    /// The same, as callers name it.
    own: SandboxPath,
    descriptor: OwnedFd,
    /// To notice when it is gone. As long as it is open, no other directory gets its number.
    work: OwnedFd,
}

impl Root {
    /// Makes a directory that is its owner's alone, below `parent` or the system's temporary
    /// directory.
    pub(crate) fn create(parent: Option<&Path>, prefix: &str) -> Result<Self, SandboxError> {
        let parent = parent.map_or_else(std::env::temp_dir, Path::to_owned);
        let failed = |error| {
            let doing = format!("failed to make a directory in `{}`", parent.display());
            SandboxError::io(doing, error)
                .with_advice("Set TMPDIR to a directory that exists and can be written.")
        };
        let directory = tempfile::Builder::new()
            .prefix(prefix)
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(parent.canonicalize().map_err(failed)?)
            .map_err(failed)?;
        let failed = |error: Errno| failed(error.into());
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let descriptor = open(directory.path(), flags, Mode::empty()).map_err(failed)?;
        for name in [WORK, TEMPORARY] {
            mkdirat(&descriptor, name, Mode::RWXU).map_err(failed)?;
        }
        let work = openat(&descriptor, WORK, flags, Mode::empty()).map_err(failed)?;
        let root = Self {
            path: directory.path().to_owned(),
            own: SandboxPath::from_os(directory.path())?,
            descriptor,
            work,
        };
        root.probe()?;
        // From here on the sandbox removes it.
        let _ = directory.keep();
        Ok(root)
    }

    /// Whether the kernel has what all access needs.
    fn probe(&self) -> Result<(), SandboxError> {
        match self.open_beneath(WORK.as_bytes(), OFlags::PATH) {
            Ok(_) => Ok(()),
            Err(Errno::NOSYS | Errno::PERM) => {
                let message = "the system call `openat2` is not available";
                Err(SandboxError::new(SandboxErrorKind::Unavailable, message)
                    .with_advice("It needs Linux 5.6 or newer, and a container that allows it."))
            }
            Err(error) => Err(self.failure("open", &self.own, error)),
        }
    }

    /// The directory's own name.
    pub(crate) fn name(&self) -> String {
        let name = self.path.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    pub(crate) fn working_directory(&self) -> PathBuf {
        self.path.join(WORK)
    }

    pub(crate) fn temporary_directory(&self) -> PathBuf {
        self.path.join(TEMPORARY)
    }

    /// Makes a file in the temporary directory.
    pub(crate) fn create_temporary(&self, name: &str) -> Result<File, SandboxError> {
        let path = self.temporary_path(name)?;
        self.make_parent(&path)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        Ok(self.open(&path, flags, "create")?.into())
    }

    /// Where a file in the temporary directory is.
    pub(crate) fn temporary_path(&self, name: &str) -> Result<SandboxPath, SandboxError> {
        Ok(self.own.join(TEMPORARY)?.join(name)?)
    }

    /// Whether the working directory is still there.
    ///
    /// # Errors
    /// [`SandboxErrorKind::Gone`] where it isn't.
    pub(crate) fn check(&self) -> Result<(), SandboxError> {
        let path = self.working_directory();
        let is_ours = |found: Stat| {
            fstat(&self.work)
                .is_ok_and(|work| (work.st_dev, work.st_ino) == (found.st_dev, found.st_ino))
        };
        if statat(CWD, &path, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(is_ours) {
            return Ok(());
        }
        let message = format!("the working directory `{}` is gone", path.display());
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
