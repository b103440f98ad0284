//! Start of a command.

use std::sync::Arc;

use cantle_command_driver::{CommandDriver, DrivenProcess, Launch, StartedCommand};
use cantle_core::sandbox::{SandboxError, SpawnRequest};

use super::output::LocalOutput;
use super::process::{self, WriteAccess};
use super::transport::LocalTransport;
use crate::blocking;
use crate::files::Root;
use crate::shared::Shared;

/// Starts a command and drives it.
pub(crate) async fn start(
    shared: &Arc<Shared>,
    request: SpawnRequest,
) -> Result<DrivenProcess<LocalTransport>, SandboxError> {
    let mut launch = Launch::new(
        &request,
        shared.root.directory_path(&request.directory)?,
        shared.environment.clone(),
        Some(shared.shell.as_os_str()),
    )?;
    let id = shared.next_number();
    let mark = shared.engine.mark();
    let driver = CommandDriver::new(request, &shared.limits.command);
    let access = write_access(&shared.root).await?;
    if let Some(directory) = &driver.request().read_only_except {
        launch.read_only_except = Some(shared.root.directory_path(directory)?);
    }
    let launched = process::launch(shared, id, &launch, driver.request(), access);
    let (process, reports, ends) = launched.await?;
    let (stdout, stderr) = (Arc::new(ends.stdout), Arc::new(ends.stderr));
    Ok(driver.drive(StartedCommand {
        pid: Some(process.pid()),
        reports,
        stdout: LocalOutput::new(Arc::clone(&stdout)),
        stderr: LocalOutput::new(Arc::clone(&stderr)),
        input: ends.stdin,
        transport: Arc::new(LocalTransport {
            shared: Arc::clone(shared),
            id,
            process,
            access,
            mark,
            stdout,
            stderr,
            terminal: ends.terminal,
        }),
    }))
}

/// Returns what a new command may do to files, measuring them if that is necessary.
async fn write_access(root: &Arc<Root>) -> Result<WriteAccess, SandboxError> {
    if root.is_known_within_limits() {
        return Ok(WriteAccess::Full);
    }
    let root = Arc::clone(root);
    let exceeded = blocking::run(move || Ok(root.exceeded_limit_at_rest())).await?;
    Ok(match exceeded {
        Some(_) => WriteAccess::RemovalOnly,
        None => WriteAccess::Full,
    })
}
