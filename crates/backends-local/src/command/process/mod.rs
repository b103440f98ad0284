//! The processes of a command: `supervised`, or a process group (`grouped`) on systems without a supervisor.

#[cfg(not(confined))]
mod grouped;
#[cfg(confined)]
mod supervised;

use std::io;

use cantle_command_driver::Launch;
use cantle_core::sandbox::SandboxError;

#[cfg(not(confined))]
pub(super) use self::grouped::{CommandProcess, ProcessReports, count_processes, launch};
#[cfg(confined)]
pub(super) use self::supervised::{CommandProcess, count_processes, launch};
use super::channels::OpenEnds;
#[cfg(confined)]
pub(super) use super::reports::ProcessReports;
use crate::shared::Shared;

/// A process that has been started.
pub(super) struct LaunchedProcess {
    pub(super) process: CommandProcess,
    /// As seen inside the sandbox.
    pub(super) pid: i32,
    pub(super) reports: ProcessReports,
    pub(super) ends: OpenEnds,
}

/// The access of a command to files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteAccess {
    /// As the policy allows.
    Full,
    /// Only read and remove them, because a limit on files is exceeded.
    RemovalOnly,
}

/// The step of a start that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(confined),
    expect(dead_code, reason = "only the supervisor reports the step")
)]
enum LaunchStep {
    /// Creating the process, its channels or its limits.
    Prepare,
    /// Changing to its directory.
    Directory,
    /// Executing its program.
    Execute,
}

/// The error for a start that failed.
fn launch_error(
    shared: &Shared,
    launch: &Launch,
    step: LaunchStep,
    error: io::Error,
) -> SandboxError {
    // The sandbox's own directory may be missing.
    if let Err(gone) = shared.root.check() {
        return gone;
    }
    match step {
        LaunchStep::Execute => launch.program.exec_error(error),
        LaunchStep::Directory => {
            let directory = &launch.directory;
            SandboxError::io(format!("failed to start in `{directory}`"), error)
        }
        LaunchStep::Prepare => {
            let name = launch.program.name.to_string_lossy();
            SandboxError::io(format!("failed to create a process for `{name}`"), error)
        }
    }
}
