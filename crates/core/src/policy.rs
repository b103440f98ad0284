//! Policy: what code in a sandbox may do.
//!
//! Every field is optional. What is set must be enforced, or [`Backend::open`] fails; in
//! [`Strictness::BestEffort`] it is listed in the sandbox's report instead. What is not set is not
//! promised. Roots protect the host: a disposable image, in which nothing of the host can be seen,
//! counts as their enforcement.
//!
//! [`Backend::open`]: crate::sandbox::Backend::open

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::secret::SecretText;

/// What code in a sandbox may do. `None` means: not restricted, nothing promised.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Policy {
    /// Paths of the host that code may read, besides its working directory.
    pub read_roots: Option<Vec<PathBuf>>,
    /// Paths of the host that code may write, besides its working directory.
    pub write_roots: Option<Vec<PathBuf>>,
    /// What it may reach over the network.
    pub network: Option<Network>,
    /// Whether a command may start other programs.
    pub subprocesses: Option<bool>,
    /// Variables a command gets, besides the few every shell needs. Never inherited.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, SecretText>,
    /// How much it may use.
    pub limits: Limits,
    /// What happens where a field can't be enforced.
    pub strictness: Strictness,
}

impl Policy {
    /// No restriction and no promise.
    #[must_use]
    pub fn unconfined() -> Self {
        Self::default()
    }

    /// The fields that are set, which a backend must enforce or refuse.
    #[must_use]
    pub fn fields(&self) -> Vec<PolicyField> {
        let limits = &self.limits;
        [
            (self.read_roots.is_some(), PolicyField::ReadRoots),
            (self.write_roots.is_some(), PolicyField::WriteRoots),
            (self.network.is_some(), PolicyField::Network),
            (self.subprocesses.is_some(), PolicyField::Subprocesses),
            (!self.environment.is_empty(), PolicyField::Environment),
            (limits.wall_time.is_some(), PolicyField::WallTime),
            (limits.cpu_time.is_some(), PolicyField::CpuTime),
            (limits.memory_bytes.is_some(), PolicyField::Memory),
            (limits.processes.is_some(), PolicyField::Processes),
            (limits.file_size_bytes.is_some(), PolicyField::FileSize),
            (limits.disk_bytes.is_some(), PolicyField::Disk),
            (limits.inodes.is_some(), PolicyField::Inodes),
            (limits.open_files.is_some(), PolicyField::OpenFiles),
            (limits.output_bytes.is_some(), PolicyField::Output),
        ]
        .into_iter()
        .filter_map(|(set, field)| set.then_some(field))
        .collect()
    }
}

/// Names a field of [`Policy`], in reports and errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum PolicyField {
    /// [`Policy::read_roots`].
    ReadRoots,
    /// [`Policy::write_roots`].
    WriteRoots,
    /// [`Policy::network`].
    Network,
    /// [`Policy::subprocesses`].
    Subprocesses,
    /// [`Policy::environment`].
    Environment,
    /// [`Limits::wall_time`].
    WallTime,
    /// [`Limits::cpu_time`].
    CpuTime,
    /// [`Limits::memory_bytes`].
    Memory,
    /// [`Limits::processes`].
    Processes,
    /// [`Limits::file_size_bytes`].
    FileSize,
    /// [`Limits::disk_bytes`].
    Disk,
    /// [`Limits::inodes`].
    Inodes,
    /// [`Limits::open_files`].
    OpenFiles,
    /// [`Limits::output_bytes`].
    Output,
}

impl fmt::Display for PolicyField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ReadRoots => "read_roots",
            Self::WriteRoots => "write_roots",
            Self::Network => "network",
            Self::Subprocesses => "subprocesses",
            Self::Environment => "environment",
            Self::WallTime => "wall_time",
            Self::CpuTime => "cpu_time",
            Self::Memory => "memory",
            Self::Processes => "processes",
            Self::FileSize => "file_size",
            Self::Disk => "disk",
            Self::Inodes => "inodes",
            Self::OpenFiles => "open_files",
            Self::Output => "output",
        })
    }
}

/// What code may reach over the network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Network {
    /// Nothing.
    Off,
    /// These hosts by name, e.g. `pypi.org` or `*.debian.org`, and nothing else.
    Hosts(Vec<String>),
}

/// How much a sandbox may use. `None` means: no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Limits {
    /// Time one command may take.
    pub wall_time: Option<Duration>,
    /// Processor time one command may use.
    pub cpu_time: Option<Duration>,
    /// Memory of all processes together.
    pub memory_bytes: Option<u64>,
    /// Processes and threads at once.
    pub processes: Option<u64>,
    /// Size of one file.
    pub file_size_bytes: Option<u64>,
    /// Size of all files together.
    pub disk_bytes: Option<u64>,
    /// Number of files and directories.
    pub inodes: Option<u64>,
    /// Open files of one process.
    pub open_files: Option<u64>,
    /// Output of one command on either channel, after which it is stopped.
    pub output_bytes: Option<u64>,
}

/// What happens where a policy field can't be enforced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Strictness {
    /// Opening the sandbox fails and says which field.
    #[default]
    Strict,
    /// The sandbox opens, and its report says which field is not enforced.
    BestEffort,
}

#[cfg(test)]
mod tests;
