//! Names of policy fields, for reports and errors.

use serde::{Deserialize, Serialize};

/// A field of [`Policy`](super::Policy), for reports and errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum PolicyField {
    /// [`Policy::read_roots`](super::Policy::read_roots).
    ReadRoots,
    /// [`Policy::write_roots`](super::Policy::write_roots).
    WriteRoots,
    /// [`Policy::hidden_paths`](super::Policy::hidden_paths).
    HiddenPaths,
    /// A read-only [`Policy::working_directory`](super::Policy::working_directory).
    WorkingDirectory,
    /// [`Policy::network`](super::Policy::network).
    Network,
    /// [`Policy::subprocesses`](super::Policy::subprocesses).
    Subprocesses,
    /// [`Policy::environment`](super::Policy::environment).
    Environment,
    /// [`Limits::wall_time`](super::Limits::wall_time).
    WallTime,
    /// [`Limits::cpu_time`](super::Limits::cpu_time).
    CpuTime,
    /// [`Limits::memory_bytes`](super::Limits::memory_bytes).
    Memory,
    /// [`Limits::processes`](super::Limits::processes).
    Processes,
    /// [`Limits::file_size_bytes`](super::Limits::file_size_bytes).
    FileSize,
    /// [`Limits::disk_bytes`](super::Limits::disk_bytes).
    Disk,
    /// [`Limits::inodes`](super::Limits::inodes).
    Inodes,
    /// [`Limits::open_files`](super::Limits::open_files).
    OpenFiles,
    /// [`Limits::output_bytes`](super::Limits::output_bytes).
    Output,
}

// As in JSON and on the command line.
names!(PolicyField {
    ReadRoots: "read_roots",
    WriteRoots: "write_roots",
    HiddenPaths: "hidden_paths",
    WorkingDirectory: "working_directory",
    Network: "network",
    Subprocesses: "subprocesses",
    Environment: "environment",
    WallTime: "wall_time",
    CpuTime: "cpu_time",
    Memory: "memory",
    Processes: "processes",
    FileSize: "file_size",
    Disk: "disk",
    Inodes: "inodes",
    OpenFiles: "open_files",
    Output: "output",
});
