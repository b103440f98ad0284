//! Trust in a directory whose files configure Cantle.
//!
//! `cantle.toml`, `AGENTS.md`, `mcp.json` and the files that they name may have come with a cloned repository or belong
//! to someone else. They count only after `cantle trust`, which records the directory with a digest of each file; the record
//! is in the user's state directory. Each file is read once, and the bytes that are compared with the
//! record are those that are used. Programs of MCP servers are the exception: they are loaded from their paths later.

use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::fs::OFlags;
use rustix::process::geteuid;
use sha2::{Digest as _, Sha256};

use crate::state_dir::{StateDir, create_traversable, try_lock};

/// Maximum size of a file with settings or instructions.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Attempts to lock the record, and the pause between them. Other processes lock it only while they write it.
const LOCK_ATTEMPTS: u32 = 500;
const LOCK_INTERVAL: Duration = Duration::from_millis(10);

/// SHA-256 of each file that counts, by its name.
pub(crate) type Digests = BTreeMap<String, String>;

/// The files of a directory that were read to configure Cantle.
#[derive(Debug, Default)]
pub(crate) struct ProjectFiles {
    digests: Digests,
    /// The reason why the files can't be trusted, whatever the record says.
    problem: Option<String>,
}

impl ProjectFiles {
    /// Reads a file; returns `None` if it does not exist.
    ///
    /// # Errors
    /// If it can't be read, is not a regular file, or is too large.
    pub(crate) fn read(&mut self, path: &Path) -> anyhow::Result<Option<String>> {
        let Some((text, metadata)) = read_regular(path)? else {
            return Ok(None);
        };
        self.add_content(path, text.as_bytes(), &metadata);
        Ok(Some(text))
    }

    /// Adds a file that was read, under a name.
    pub(crate) fn add_content(&mut self, name: &Path, content: &[u8], metadata: &Metadata) {
        self.add(name, &format!("{:x}", Sha256::digest(content)), metadata);
    }

    /// Adds a file that another program will load, under a name.
    ///
    /// # Errors
    /// If it can't be read, or is not a regular file.
    pub(crate) fn add_file(&mut self, path: &Path, name: &Path) -> anyhow::Result<()> {
        let (mut file, metadata) =
            open_regular(path)?.with_context(|| format!("there is no file {}", path.display()))?;
        let mut digest = Sha256::new();
        io::copy(&mut file, &mut digest)
            .with_context(|| format!("failed to read {}", path.display()))?;
        self.add(name, &format!("{:x}", digest.finalize()), &metadata);
        Ok(())
    }

    /// Adds a file, or a directory, with a digest of its content.
    pub(crate) fn add(&mut self, path: &Path, digest: &str, metadata: &Metadata) {
        self.check(path, metadata);
        self.digests
            .insert(path.display().to_string(), digest.to_owned());
    }

    /// Rules out trust in all files read so far if another user owns this one or may write to it.
    pub(crate) fn check(&mut self, path: &Path, metadata: &Metadata) {
        if let Some(problem) = foreign_access(metadata) {
            self.problem = Some(format!("{} {problem}", path.display()));
        }
    }

    /// Returns the files with their digests.
    pub(crate) fn digests(&self) -> &Digests {
        &self.digests
    }

    /// Returns why these files can never be trusted, if they can't.
    pub(crate) fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// Returns why the files read so far do not count, if they don't: the user trusts neither these files of the directory
    /// nor, for this call, any of it (`trust_directory`). Without a record there is no trust.
    pub(crate) fn distrust(&self, directory: &Path, trust_directory: bool) -> Option<String> {
        if self.problem.is_some() || trust_directory {
            return self.problem.clone();
        }
        let trusted = || {
            let record = TrustRecord::read(&StateDir::find()?)?;
            anyhow::Ok(record.get(&canonical(directory)?).cloned())
        };
        let trusted = match trusted() {
            Ok(Some(trusted)) => trusted,
            Ok(None) => return Some("this directory is not trusted".to_owned()),
            Err(error) => return Some(format!("{error:#}")),
        };
        let changed = |(name, digest): &(&String, &String)| trusted.get(*name) != Some(*digest);
        let (name, _) = self.digests.iter().find(changed)?;
        Some(format!("{name} is not as it was trusted"))
    }
}

/// Reads a text file of at most [`MAX_FILE_BYTES`]; returns `None` if it does not exist.
///
/// # Errors
/// If it can't be read, is not a regular file or not UTF-8, or is too large.
pub(crate) fn read_regular(path: &Path) -> anyhow::Result<Option<(String, Metadata)>> {
    let Some((content, metadata)) = read_start(path)? else {
        return Ok(None);
    };
    let shown = path.display();
    if content.len() as u64 > MAX_FILE_BYTES {
        bail!("{shown} is larger than {} KiB", MAX_FILE_BYTES / 1024);
    }
    let text = String::from_utf8(content).with_context(|| format!("failed to read {shown}"))?;
    Ok(Some((text, metadata)))
}

/// Reads a file, of a larger one [`MAX_FILE_BYTES`] and a byte; returns `None` if it does not exist.
///
/// # Errors
/// If it can't be read, or is not a regular file.
pub(crate) fn read_start(path: &Path) -> anyhow::Result<Option<(Vec<u8>, Metadata)>> {
    let Some((file, metadata)) = open_regular(path)? else {
        return Ok(None);
    };
    let mut content = Vec::new();
    file.take(MAX_FILE_BYTES + 1)
        .read_to_end(&mut content)
        .with_context(|| format!("failed to read {}", path.display()))?;
    Ok(Some((content, metadata)))
}

/// Opens a file; returns `None` if it does not exist.
fn open_regular(path: &Path) -> anyhow::Result<Option<(File, Metadata)>> {
    let shown = path.display();
    let failed = || format!("failed to read {shown}");
    // Opening a pipe would wait for its writer.
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    // Users without a home directory have /dev/null.
    let is_missing = |kind| matches!(kind, io::ErrorKind::NotFound | io::ErrorKind::NotADirectory);
    let file = match File::options().read(true).custom_flags(flags).open(path) {
        Err(error) if is_missing(error.kind()) => return Ok(None),
        file => file.with_context(failed)?,
    };
    let metadata = file.metadata().with_context(failed)?;
    if !metadata.is_file() {
        bail!("{shown} is not a regular file");
    }
    Ok(Some((file, metadata)))
}

/// Returns the canonical path of a directory whose files may be trusted.
///
/// # Errors
/// If there is none.
pub(crate) fn canonical(directory: &Path) -> anyhow::Result<PathBuf> {
    directory
        .canonicalize()
        .with_context(|| format!("failed to find the directory {}", directory.display()))
}

/// Returns whether another user owns a file or may write to it.
fn foreign_access(metadata: &Metadata) -> Option<&'static str> {
    let owner = metadata.uid();
    if owner != geteuid().as_raw() && owner != 0 {
        return Some("belongs to another user");
    }
    // Many systems give each user a group of the same number, and new files to it.
    let has_own_group = metadata.gid() == owner;
    let writable = if has_own_group { 0o002 } else { 0o022 };
    // Links have all permissions, which mean nothing.
    let is_writable = !metadata.is_symlink() && metadata.mode() & writable != 0;
    is_writable.then_some("can be changed by other users")
}

/// The directories that the user trusts.
#[derive(Debug)]
pub(crate) struct TrustRecord {
    path: PathBuf,
    directories: BTreeMap<PathBuf, Digests>,
}

impl TrustRecord {
    /// Reads the user's record.
    ///
    /// # Errors
    /// If it can't be read, or another user may have written it.
    pub(crate) fn read(state: &StateDir) -> anyhow::Result<Self> {
        let mut record = Self {
            path: state.trust_record(),
            directories: BTreeMap::new(),
        };
        record.update()?;
        Ok(record)
    }

    /// Reads the directories of the record.
    fn update(&mut self) -> anyhow::Result<()> {
        let Some((text, metadata)) = read_regular(&self.path)? else {
            self.directories.clear();
            return Ok(());
        };
        let shown = self.path.display();
        if let Some(problem) = foreign_access(&metadata) {
            bail!("{shown} {problem}");
        }
        self.directories = serde_json::from_str(&text)
            .with_context(|| format!("{shown} is damaged; remove it"))?;
        Ok(())
    }

    /// Returns the files of a directory as they were trusted.
    pub(crate) fn get(&self, directory: &Path) -> Option<&Digests> {
        self.directories.get(directory)
    }

    /// Returns the trusted directories.
    pub(crate) fn directories(&self) -> impl Iterator<Item = &Path> {
        self.directories.keys().map(PathBuf::as_path)
    }

    /// Trusts the files of a directory, or with `None` no longer.
    ///
    /// # Errors
    /// If the record can't be read or written.
    pub(crate) fn set(&mut self, directory: PathBuf, files: Option<Digests>) -> anyhow::Result<()> {
        // Another process may have changed the record meanwhile.
        let _lock = self.lock()?;
        self.update()?;
        match files {
            Some(files) => self.directories.insert(directory, files),
            None => self.directories.remove(&directory),
        };
        let parent = self.path.parent().unwrap_or(Path::new("/"));
        let write = || -> io::Result<()> {
            let mut file = tempfile::NamedTempFile::new_in(parent)?;
            file.write_all(serde_json::to_string_pretty(&self.directories)?.as_bytes())?;
            file.as_file().sync_all()?;
            file.persist(&self.path)?;
            Ok(())
        };
        write().with_context(|| format!("failed to write {}", self.path.display()))
    }

    /// Locks the record until the returned file is dropped.
    fn lock(&self) -> anyhow::Result<File> {
        let path = self.path.with_extension("lock");
        let failed = || {
            format!(
                "failed to lock {}; remove it if it belongs to another user",
                path.display()
            )
        };
        create_traversable(path.parent().unwrap_or(Path::new("/"))).with_context(failed)?;
        for _ in 0..LOCK_ATTEMPTS {
            if let Some(lock) = try_lock(&path).with_context(failed)? {
                return Ok(lock);
            }
            thread::sleep(LOCK_INTERVAL);
        }
        bail!("another process keeps {} locked", path.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_several_processes_are_all_recorded() {
        let state = tempfile::tempdir().unwrap();
        let read = || TrustRecord {
            path: state.path().join("trust.json"),
            directories: BTreeMap::new(),
        };
        let (mut one, mut other) = (read(), read());
        one.set("/one".into(), Some(Digests::new())).unwrap();
        other.set("/other".into(), Some(Digests::new())).unwrap();
        let directories: Vec<_> = other.directories().collect();
        assert_eq!(directories, [Path::new("/one"), Path::new("/other")]);
        one.set("/other".into(), None).unwrap();
        let directories: Vec<_> = one.directories().collect();
        assert_eq!(directories, [Path::new("/one")]);
    }
}
