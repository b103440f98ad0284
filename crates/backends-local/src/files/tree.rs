//! Listing and creating directories, and renaming.

use cantle_core::sandbox::{
    FileInfo, FileKind, MAX_LIST_ENTRIES, SandboxError, SandboxErrorKind, SandboxPath,
};
use rustix::fs::{AtFlags, Mode, OFlags, Stat, fstat, mkdirat, renameat, statat};
use rustix::io::Errno;

use super::beneath::PATH_ONLY;
use super::{DiskUsage, Root, entries};

impl Root {
    /// Returns the status of a path; a symbolic link is not followed.
    pub(crate) fn stat(&self, path: SandboxPath) -> Result<FileInfo, SandboxError> {
        let failed = |error| self.failure("look at", &path, error);
        let stat = match self.open_parent(&path, "look at") {
            Ok((directory, name)) => statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW),
            // A fixed directory, or an error.
            Err(_) => fstat(self.open(&path, PATH_ONLY | OFlags::DIRECTORY, "look at")?),
        };
        let stat = stat.map_err(failed)?;
        Ok(info(path, &stat))
    }

    /// Lists a directory, sorted by name.
    pub(crate) fn list(&self, path: &SandboxPath) -> Result<Vec<FileInfo>, SandboxError> {
        let failed = |error| self.failure("list", path, error);
        let directory = self.open(path, OFlags::RDONLY | OFlags::DIRECTORY, "list")?;
        let mut found = Vec::new();
        for entry in entries(&directory).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            match statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(_) if found.len() >= MAX_LIST_ENTRIES => {
                    return Err(SandboxError::too_many_entries(path));
                }
                Ok(stat) => found.push(info(SandboxPath::new(name.to_bytes())?, &stat)),
                // Removed since it was listed.
                Err(Errno::NOENT) => {}
                Err(error) => return Err(failed(error)),
            }
        }
        found.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(found)
    }

    /// Creates a directory and those above it.
    pub(crate) fn mkdir(&self, path: &SandboxPath) -> Result<(), SandboxError> {
        self.make_directories(path).map_err(|error| {
            // The file is at the path itself, not above it.
            let in_the_way = error.kind() == SandboxErrorKind::NotADirectory;
            if in_the_way && self.stat(path.clone()).is_ok() {
                return already_exists("make", path);
            }
            error
        })
    }

    /// Creates the directories above a path.
    pub(super) fn make_parent(&self, path: &SandboxPath) -> Result<(), SandboxError> {
        match path.parent() {
            Some(parent) => self.make_directories(&parent),
            None => Ok(()),
        }
    }

    fn make_directories(&self, path: &SandboxPath) -> Result<(), SandboxError> {
        let open = |path: &SandboxPath| self.open(path, PATH_ONLY | OFlags::DIRECTORY, "make");
        let mut missing = Vec::new();
        let mut above = Some(path.clone());
        while let Some(directory) = above {
            match open(&directory) {
                Ok(_) => break,
                Err(error) if error.kind() == SandboxErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            above = directory.parent();
            missing.push(directory);
        }
        self.charge(path, DiskUsage::entries(missing.len() as u64))?;
        for directory in missing.iter().rev() {
            let (parent, name) = self.open_parent(directory, "make")?;
            let made = mkdirat(&parent, name, Mode::from_raw_mode(0o755))
                .and_then(|()| self.give_at(&parent, name));
            match made {
                Ok(()) => {}
                // Created meanwhile; or a dangling symbolic link.
                Err(Errno::EXIST) if open(directory).is_ok() => {}
                Err(Errno::EXIST) => return Err(already_exists("make", directory)),
                Err(error) => return Err(self.failure("make", directory, error)),
            }
        }
        Ok(())
    }

    /// Renames a file or directory, replacing an existing file.
    pub(crate) fn rename(&self, from: &SandboxPath, to: &SandboxPath) -> Result<(), SandboxError> {
        self.refuse_fixed("move", from)?;
        self.refuse_fixed("move to", to)?;
        let (source, name) = self.open_parent(from, "move")?;
        let (target, new_name) = self.open_parent(to, "move to")?;
        renameat(&source, name, &target, new_name).map_err(|error| match error {
            // Caused by a mount point here, not by a symbolic link.
            Errno::XDEV => SandboxError::io(format!("failed to move `{from}`"), error.into()),
            Errno::NOENT => self.failure("move", from, error),
            Errno::ISDIR | Errno::NOTEMPTY | Errno::EXIST => already_exists("move to", to),
            _ => self.failure("move to", to, error),
        })
    }
}

fn already_exists(doing: &str, path: &SandboxPath) -> SandboxError {
    let message = format!("failed to {doing} `{path}`: something else is there");
    SandboxError::new(SandboxErrorKind::AlreadyExists, message)
}

fn info(path: SandboxPath, stat: &Stat) -> FileInfo {
    let mode = mode(stat.st_mode);
    let size_bytes = u64::try_from(stat.st_size).unwrap_or(0);
    FileInfo::new(
        path,
        FileKind::from_mode(mode),
        size_bytes,
        Some(mode & 0o777),
    )
}

/// Converts a mode, whose width depends on the system.
pub(super) fn mode(mode: impl Into<u32>) -> u32 {
    mode.into()
}
