//! How a command ended.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::SandboxPath;
use crate::escape::shorten;
use crate::policy::PolicyField;

/// Maximum length of a listed command line, in characters.
const MAX_COMMAND_CHARS: usize = 120;

/// The result of a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Exit {
    /// How it ended.
    pub status: ExitStatus,
    /// Time from start to exit.
    #[serde(rename = "duration_s", with = "crate::seconds")]
    pub duration: Duration,
    /// Report on standard output.
    pub stdout: ChannelReport,
    /// Report on standard error.
    pub stderr: ChannelReport,
    /// Processes it left running, if the request keeps them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub background: Vec<BackgroundProcess>,
    /// Advice for the model, one line each: which policy field stopped the command, and what to do
    /// instead ("network: `example.com:443` is not an allowed host; allowed are …").
    /// [`render_command`](super::render_command) shows a bounded number of them, each once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl Exit {
    /// Creates the result of a command without output or remaining processes.
    pub fn new(status: ExitStatus, duration: Duration) -> Self {
        Self {
            status,
            duration,
            stdout: ChannelReport::default(),
            stderr: ChannelReport::default(),
            background: Vec::new(),
            notes: Vec::new(),
        }
    }
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ExitStatus {
    /// It exited with this code.
    Code(i32),
    /// It was killed by this signal, which Cantle did not send.
    Signal(i32),
    /// It was killed with its descendants when its time limit expired.
    TimedOut {
        /// The time limit.
        #[serde(rename = "limit_s", with = "crate::seconds")]
        limit: Duration,
    },
    /// It was killed, by the backend or the kernel, for exceeding a limit of the policy other than
    /// [wall time](Self::TimedOut).
    LimitReached {
        /// The limit's policy field.
        field: PolicyField,
        /// The limit, in the field's unit: bytes, seconds of CPU time, or a count.
        limit: u64,
    },
    /// It was killed with its descendants because the call was cancelled.
    Cancelled,
}

impl ExitStatus {
    /// Returns whether the command exited with code 0.
    pub fn success(self) -> bool {
        self == Self::Code(0)
    }

    /// Returns the code that a shell would report: 128 + signal, 124 after a timeout, 130 after
    /// cancellation, 137 (killed) at a limit.
    pub fn shell_code(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128 + signal,
            Self::TimedOut { .. } => 124,
            Self::Cancelled => 130,
            Self::LimitReached { .. } => 137,
        }
    }
}

impl fmt::Display for ExitStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => write!(f, "killed by signal {signal}"),
            Self::TimedOut { limit } => write!(f, "timed out after {} s", limit.as_secs_f64()),
            Self::LimitReached { field, limit } => {
                write!(
                    f,
                    "stopped at the limit of {field} ({})",
                    format_limit(*field, *limit)
                )
            }
            Self::Cancelled => f.write_str("cancelled"),
        }
    }
}

/// Formats a limit with its unit.
pub(super) fn format_limit(field: PolicyField, limit: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match field {
        PolicyField::Memory | PolicyField::FileSize | PolicyField::Disk | PolicyField::Output => {
            let unit = UNITS
                .iter()
                .find(|(size, _)| limit != 0 && limit.is_multiple_of(*size));
            match unit {
                Some((size, name)) => format!("{} {name}", limit / size),
                None => format!("{limit} bytes"),
            }
        }
        PolicyField::WallTime | PolicyField::CpuTime => format!("{limit} s"),
        _ => limit.to_string(),
    }
}

/// Report on an output channel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ChannelReport {
    /// Bytes written to the channel, including discarded ones.
    pub total_bytes: u64,
    /// The spill file, if the request asked for one and the output was large enough.
    pub spilled: Option<SpillFile>,
}

impl ChannelReport {
    /// Creates the report on a channel that carried `total_bytes`.
    pub fn new(total_bytes: u64, spilled: Option<SpillFile>) -> Self {
        Self {
            total_bytes,
            spilled,
        }
    }
}

/// A file in the sandbox that holds a channel's output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SpillFile {
    /// Its path.
    pub path: SandboxPath,
    /// Its size; less than the channel's total if the cap was reached or not all of it could be written in time.
    pub size_bytes: u64,
}

impl SpillFile {
    /// Creates a reference to a spill file.
    pub fn new(path: SandboxPath, size_bytes: u64) -> Self {
        Self { path, size_bytes }
    }
}

/// A process that a command left running.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct BackgroundProcess {
    /// Its process id, as seen inside the sandbox.
    pub pid: u32,
    /// Its command line, truncated.
    pub command: String,
}

impl BackgroundProcess {
    /// Creates an entry with the first 120 characters of `command`, on one line.
    pub fn new(pid: u32, command: impl Into<String>) -> Self {
        let mut command = command.into().replace('\n', " ");
        if command.chars().nth(MAX_COMMAND_CHARS).is_some() {
            command = shorten(&command, MAX_COMMAND_CHARS - 1);
        }
        Self { pid, command }
    }

    /// Parses a line of a process list: the process id, a space and the command line.
    pub fn parse(line: &str) -> Option<Self> {
        let (pid, command) = line.split_once(' ')?;
        Some(Self::new(pid.parse().ok()?, command.trim_end()))
    }
}
