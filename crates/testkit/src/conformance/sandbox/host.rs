//! Host side of the suite: processes, memory, and files that no sandbox may reach.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::super::check::{Checked, Failure};

/// Reports whether a process of this host has the argument `argument`.
pub(super) fn is_running(argument: &str) -> Checked<bool> {
    for process in processes()? {
        // The process may have ended since the directory was read.
        let command_line = fs::read(process.join("cmdline")).unwrap_or_default();
        let mut arguments = command_line.split(|byte| *byte == 0);
        if arguments.any(|own| own == argument.as_bytes()) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the process ids of unreaped children of this process.
pub(super) fn zombies() -> Checked<BTreeSet<String>> {
    let own = std::process::id().to_string();
    let mut zombies = BTreeSet::new();
    for process in processes()? {
        let stat = fs::read_to_string(process.join("stat")).unwrap_or_default();
        // `PID (NAME) STATE PARENT …`, where the name may hold anything.
        let Some((_, rest)) = stat.rsplit_once(") ") else {
            continue;
        };
        let mut fields = rest.split(' ');
        if fields.next() == Some("Z") && fields.next() == Some(&own) {
            zombies.extend(stat.split(' ').next().map(str::to_owned));
        }
    }
    Ok(zombies)
}

fn processes() -> Checked<impl Iterator<Item = PathBuf>> {
    let entries = fs::read_dir("/proc")
        .map_err(|_| Failure::skip("this host has no list of processes in `/proc`"))?;
    Ok(entries.flatten().map(|entry| entry.path()).filter(|path| {
        let name = path.file_name().map(|name| name.as_encoded_bytes());
        name.is_some_and(|name| name.iter().all(u8::is_ascii_digit))
    }))
}

/// Returns the resident set size of this process.
pub(super) fn resident_bytes() -> Checked<u64> {
    /// With larger pages the result is too small.
    const PAGE_BYTES: u64 = 4096;
    let unknown = || Failure::skip("this host does not report a process's memory");
    let statm = fs::read_to_string("/proc/self/statm").map_err(|_| unknown())?;
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok());
    let pages: u64 = pages.ok_or_else(unknown)?;
    Ok(pages * PAGE_BYTES)
}

/// Host directory outside every sandbox, with a file that commands may not read or change.
pub(super) struct Outside {
    directory: TempDir,
    path: PathBuf,
}

impl Outside {
    const SECRET: &'static [u8] = b"a secret of the host";

    pub(super) fn new() -> Checked<Self> {
        let directory = tempfile::Builder::new().prefix("outside-").tempdir()?;
        let path = directory.path().canonicalize()?;
        fs::write(path.join("secret"), Self::SECRET)?;
        Ok(Self { directory, path })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of the protected file.
    pub(super) fn secret(&self) -> PathBuf {
        self.path.join("secret")
    }

    pub(super) fn is_secret(bytes: &[u8]) -> bool {
        bytes == Self::SECRET
    }

    /// Checks that the directory holds only its unchanged file.
    #[track_caller]
    pub(super) fn must_be_untouched(&self) -> Checked {
        let names: Vec<_> = fs::read_dir(self.directory.path())?
            .flatten()
            .map(|entry| entry.file_name())
            .collect();
        let untouched = names == ["secret"] && fs::read(self.secret())? == Self::SECRET;
        if untouched {
            return Ok(());
        }
        Err(Failure::new(format!(
            "a directory outside the sandbox was changed; it holds {names:?}"
        )))
    }
}
