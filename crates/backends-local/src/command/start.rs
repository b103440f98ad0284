//! Start of a command.

use std::sync::Arc;

use cantle_command_driver::{CommandDriver, DrivenProcess, Launch, StartedCommand};
use cantle_core::sandbox::{SandboxError, SpawnRequest};

use super::channels::OpenEnds;
use super::output::LocalOutput;
use super::process::{self, LaunchedProcess};
use super::transport::LocalTransport;
use crate::shared::Shared;

/// Starts a command and drives it.
pub(crate) async fn start(
    shared: &Arc<Shared>,
    request: SpawnRequest,
) -> Result<DrivenProcess<LocalTransport>, SandboxError> {
    let launch = Launch::new(
        &request,
        shared.root.directory_path(&request.directory)?,
        shared.environment.variables().iter().cloned().collect(),
        Some(shared.shell.as_os_str()),
    )?;
    let id = shared.next_number();
    let mark = shared.engine.mark();
    let driver = CommandDriver::new(request, shared.limits.command);
    let LaunchedProcess {
        process,
        pid,
        reports,
        ends,
    } = process::launch(shared, id, &launch, driver.request()).await?;
    let OpenEnds {
        stdin,
        stdout,
        stderr,
        terminal,
    } = ends;
    let (stdout, stderr) = (Arc::new(stdout), Arc::new(stderr));
    Ok(driver.drive(StartedCommand {
        pid: Some(pid.unsigned_abs()),
        reports,
        stdout: LocalOutput::new(Arc::clone(&stdout)),
        stderr: LocalOutput::new(Arc::clone(&stderr)),
        input: stdin,
        transport: Arc::new(LocalTransport {
            shared: Arc::clone(shared),
            id,
            process,
            mark,
            stdout,
            stderr,
            terminal,
        }),
    }))
}
