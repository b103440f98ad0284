//! Where things are: the root of the repository, its packages, its target directory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::shell;

/// The root of the repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies in the root of the repository")
}

/// What `cargo metadata` says about the workspace's own packages.
#[derive(Deserialize)]
pub struct Metadata {
    pub packages: Vec<Package>,
    #[serde(rename = "target_directory")]
    pub target: PathBuf,
}

#[derive(Deserialize)]
pub struct Package {
    pub name: String,
    pub version: String,
    pub features: BTreeMap<String, Vec<String>>,
    /// The registries it may go to; none of them where its manifest says `publish = false`.
    publish: Option<Vec<String>>,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
}

impl Package {
    pub fn is_published(&self) -> bool {
        self.publish
            .as_ref()
            .is_none_or(|registries| !registries.is_empty())
    }

    /// Whether it has a library (a macro crate counts).
    pub fn is_library(&self) -> bool {
        let kinds = self.targets.iter().flat_map(|target| &target.kind);
        kinds
            .into_iter()
            .any(|kind| kind == "lib" || kind == "proc-macro")
    }
}

impl Metadata {
    pub fn read() -> Result<Metadata> {
        let json =
            shell::output(shell::cargo().args(["metadata", "--format-version=1", "--no-deps"]))?;
        serde_json::from_str(&json).context("failed to read what cargo metadata says")
    }
}

/// The files under a directory, in order, without what is built, fetched or git's.
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
