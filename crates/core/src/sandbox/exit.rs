//! How a command ended.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::SandboxPath;
use crate::policy::PolicyField;

/// Characters of a command line that are listed.
const LONG_COMMAND: usize = 120;

/// How a command ended, and what it left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Exit {
    /// How it ended.
    pub status: ExitStatus,
    /// From its start to its end.
    #[serde(rename = "duration_s", with = "crate::seconds")]
    pub duration: Duration,
    /// What became of its standard output.
    pub stdout: ChannelReport,
    /// What became of its standard error.
    pub stderr: ChannelReport,
    /// What it started and left running; only where the request keeps such processes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub background: Vec<BackgroundProcess>,
    /// What the backend says to the model about this command, each a line of advice: where the
    /// boundary stopped it, which policy field did and what to do instead ("network: `example.com:443`
    /// is not an allowed host; allowed are …"). [`render_command`] shows each once, and not without
    /// end.
    ///
    /// [`render_command`]: super::render_command
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl Exit {
    /// A command that ended like this after `duration`, with nothing written and nothing left.
    #[must_use]
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
    /// By itself, with this code.
    Code(i32),
    /// By this signal, which was not ours.
    Signal(i32),
    /// It was killed with everything it started when its time was over.
    TimedOut {
        /// The time it had.
        #[serde(rename = "limit_s", with = "crate::seconds")]
        limit: Duration,
    },
    /// It was killed, by us or by the kernel, because it used more than the policy grants. Where it
    /// was time, it is [`TimedOut`](Self::TimedOut) instead.
    LimitReached {
        /// Of what it used too much.
        field: PolicyField,
        /// How much it had: bytes, seconds of processor time, or a number, as the field is.
        limit: u64,
    },
    /// It was killed with everything it started because the call was cancelled.
    Cancelled,
}

impl ExitStatus {
    /// Whether it ended by itself with code 0.
    #[must_use]
    pub fn success(self) -> bool {
        self == Self::Code(0)
    }

    /// The code a shell would report: 128 + signal, 124 after a timeout, 130 when cancelled, 137
    /// (killed) at a limit.
    #[must_use]
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
                    amount(*field, *limit)
                )
            }
            Self::Cancelled => f.write_str("cancelled"),
        }
    }
}

/// A limit with its unit.
pub(super) fn amount(field: PolicyField, limit: u64) -> String {
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

/// What became of an output channel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ChannelReport {
    /// Bytes written to it, read or not.
    pub total_bytes: u64,
    /// The file that holds them, where the request asked for one and there were enough.
    pub spilled: Option<SpillFile>,
}

impl ChannelReport {
    /// A channel that carried `total_bytes`.
    #[must_use]
    pub fn new(total_bytes: u64, spilled: Option<SpillFile>) -> Self {
        Self {
            total_bytes,
            spilled,
        }
    }
}

/// A file inside the sandbox that holds a channel's output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SpillFile {
    /// Where it is.
    pub path: SandboxPath,
    /// How many bytes it holds; less than were written where the cap was reached.
    pub size_bytes: u64,
}

impl SpillFile {
    /// `size_bytes` of output at `path`.
    #[must_use]
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
    /// Its command line, shortened.
    pub command: String,
}

impl BackgroundProcess {
    /// A process that runs `command`, of which 120 characters are kept, on one line.
    pub fn new(pid: u32, command: impl Into<String>) -> Self {
        let mut command: String = command.into();
        if command.contains('\n') {
            command = command.replace('\n', " ");
        }
        if command.chars().nth(LONG_COMMAND).is_some() {
            let shown = command.chars().take(LONG_COMMAND - 1);
            command = shown.chain(['…']).collect();
        }
        Self { pid, command }
    }

    /// A process as it is listed: its id, a space and its command line.
    #[must_use]
    pub fn listed(line: &str) -> Option<Self> {
        let (pid, command) = line.split_once(' ')?;
        Some(Self::new(pid.parse().ok()?, command.trim_end()))
    }
}
