//! What the supervisor answers.

use super::{Reader, put};

/// Bytes of a [`Ready`].
pub const READY_BYTES: usize = 24;
/// Bytes of a [`Report`].
pub const REPORT_BYTES: usize = 40;

/// The answer to [`Order::Setup`](super::Order::Setup).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// The sandbox stands. The descriptors of [`Step::OpenDirectory`](super::Step::OpenDirectory) and
    /// [`Step::Listen`](super::Step::Listen) come along, in the order of the steps.
    Ready {
        /// One bit for each [`Step`](super::Step)'s wall that could not be built.
        missing: u64,
        /// The version of Landlock's interface that was used; 0 for none.
        landlock: u32,
    },
    /// It can't be built.
    Failed {
        /// The number of the step; [`Ready::BEFORE_STEPS`] where the namespaces could not be made.
        step: u32,
        /// The kernel's error number.
        errno: i32,
    },
}

impl Ready {
    /// "Step" of what comes before the first one.
    pub const BEFORE_STEPS: u32 = u32::MAX;
    /// The wall that is missing where a control group could not be joined.
    pub const GROUPS: u8 = 63;

    /// The answer in a message.
    #[must_use]
    pub fn encode(self) -> [u8; READY_BYTES] {
        let mut bytes = [0; READY_BYTES];
        match self {
            Self::Ready { missing, landlock } => {
                put(&mut bytes, 4, landlock);
                put(&mut bytes, 8, missing as u32);
                put(&mut bytes, 12, (missing >> 32) as u32);
            }
            Self::Failed { step, errno } => {
                put(&mut bytes, 0, 1);
                put(&mut bytes, 4, step);
                put(&mut bytes, 8, errno as u32);
            }
        }
        bytes
    }

    /// The answer of a message.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        let (failed, number, value) = (reader.u32()?, reader.u32()?, reader.u64()?);
        Some(if failed == 0 {
            Self::Ready {
                missing: value,
                landlock: number,
            }
        } else {
            Self::Failed {
                step: number,
                errno: value as i32,
            }
        })
    }
}

/// What a command says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// It could not be started.
    Failed {
        /// What failed.
        stage: Stage,
        /// The kernel's error number.
        errno: i32,
    },
    /// It runs. The master of its terminal comes along, where it has one of ours.
    Started {
        /// Its first process, as seen inside the sandbox.
        pid: i32,
    },
    /// Its first process has ended.
    Ended {
        /// As `wait` packs it.
        status: i32,
        /// Whether it has left nothing running.
        alone: bool,
        /// Processor time of all its processes that were waited for, in microseconds.
        cpu_us: u64,
        /// The largest memory of one of them, in KiB.
        max_rss_kib: u64,
    },
}

/// What of a command's start failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Making a process.
    Fork,
    /// Making its terminal.
    Terminal,
    /// Its limits, its input and output.
    Prepare,
    /// Going to its directory.
    Directory,
    /// Executing its program.
    Execute,
}

impl Report {
    /// The report in a message.
    #[must_use]
    pub fn encode(self) -> [u8; REPORT_BYTES] {
        let mut bytes = [0; REPORT_BYTES];
        match self {
            Self::Failed { stage, errno } => {
                put(&mut bytes, 0, 1);
                put(&mut bytes, 4, stage as u32);
                put(&mut bytes, 8, errno as u32);
            }
            Self::Started { pid } => {
                put(&mut bytes, 0, 2);
                put(&mut bytes, 4, pid as u32);
            }
            Self::Ended {
                status,
                alone,
                cpu_us,
                max_rss_kib,
            } => {
                put(&mut bytes, 0, 3);
                put(&mut bytes, 4, status as u32);
                put(&mut bytes, 8, u32::from(alone));
                put(&mut bytes, 16, cpu_us as u32);
                put(&mut bytes, 20, (cpu_us >> 32) as u32);
                put(&mut bytes, 24, max_rss_kib as u32);
                put(&mut bytes, 28, (max_rss_kib >> 32) as u32);
            }
        }
        bytes
    }

    /// The report of a message.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        let (kind, first, second) = (reader.u32()?, reader.u32()?, reader.u32()?);
        reader.u32()?;
        let (cpu_us, max_rss_kib) = (reader.u64()?, reader.u64()?);
        Some(match kind {
            1 => Self::Failed {
                stage: match first {
                    0 => Stage::Fork,
                    1 => Stage::Terminal,
                    2 => Stage::Prepare,
                    3 => Stage::Directory,
                    4 => Stage::Execute,
                    _ => return None,
                },
                errno: second as i32,
            },
            2 => Self::Started { pid: first as i32 },
            3 => Self::Ended {
                status: first as i32,
                alone: second != 0,
                cpu_us,
                max_rss_kib,
            },
            _ => return None,
        })
    }
}
