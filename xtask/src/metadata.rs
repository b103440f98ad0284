//! The packages of the workspace, as Cargo sees them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::shell;

/// The output of `cargo metadata`.
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
    pub manifest_path: PathBuf,
    pub license: Option<String>,
    /// Absent for packages of this workspace.
    pub source: Option<String>,
    pub features: BTreeMap<String, Vec<String>>,
    /// Registries it may be published to; empty for `publish = false`.
    publish: Option<Vec<String>>,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
    src_path: PathBuf,
}

impl Package {
    pub fn is_published(&self) -> bool {
        self.publish
            .as_ref()
            .is_none_or(|registries| !registries.is_empty())
    }

    /// Returns the root files of its libraries and programs.
    pub fn roots(&self) -> impl Iterator<Item = &Path> {
        let roots = self.targets.iter().filter(|target| {
            let mut kinds = target.kind.iter().map(String::as_str);
            kinds.any(|kind| matches!(kind, "lib" | "proc-macro" | "bin"))
        });
        roots.map(|target| target.src_path.as_path())
    }

    /// Reports whether it has a library, macro crates included.
    pub fn is_library(&self) -> bool {
        let mut kinds = self.targets.iter().flat_map(|target| &target.kind);
        kinds.any(|kind| kind == "lib" || kind == "proc-macro")
    }
}

impl Metadata {
    /// Reads the packages of the workspace.
    pub fn read() -> Result<Metadata> {
        Self::read_with("--no-deps")
    }

    /// Reads the packages of the workspace and all that they depend on.
    pub fn with_dependencies() -> Result<Metadata> {
        Self::read_with("--all-features")
    }

    fn read_with(option: &str) -> Result<Metadata> {
        let json = shell::output(shell::cargo().args(["metadata", "--format-version=1", option]))?;
        serde_json::from_str(&json).context("failed to parse the output of cargo metadata")
    }
}
