//! The processes of a command: `supervised`, or a process group (`grouped`) on systems without a supervisor.

#[cfg(not(confined))]
mod grouped;
#[cfg(confined)]
mod supervised;

use cantle_core::sandbox::SandboxError;

#[cfg(not(confined))]
pub(super) use self::grouped::{CommandProcess, ProcessReports, count_processes, launch};
#[cfg(confined)]
pub(super) use self::supervised::{CommandProcess, ProcessReports, count_processes, launch};
use super::channels::OpenEnds;
use crate::shared::Shared;

/// A process that has been started, its reports, and our ends of its channels.
type LaunchedProcess = (CommandProcess, ProcessReports, OpenEnds);

/// The access of a command to files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteAccess {
    /// As the policy allows.
    Full,
    /// Only read and remove them, because a limit on files is exceeded.
    RemovalOnly,
}

/// Returns the error for a start that failed: the sandbox's own directory may be missing.
fn launch_error(shared: &Shared, error: SandboxError) -> SandboxError {
    shared.root.check().err().unwrap_or(error)
}
