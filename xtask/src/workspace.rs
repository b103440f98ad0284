//! The files of the repository.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Returns the root of the repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies in the root of the repository")
}

/// Lists the files under a directory, sorted, without build results and `.git`.
pub fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let entries = std::fs::read_dir(directory)
        .with_context(|| format!("failed to list {}", directory.display()))?;
    for entry in entries {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_file() {
            found.push(entry.path());
        } else if kind.is_dir()
            && !["target", ".git"]
                .iter()
                .any(|name| entry.file_name() == *name)
        {
            found.extend(files(&entry.path())?);
        }
    }
    found.sort();
    Ok(found)
}
