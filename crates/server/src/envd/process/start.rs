//! Starting a command.

use std::sync::Arc;
use std::time::Duration;

use cantle_core::sandbox::{
    Background, Process, PtySize, Sandbox, SandboxErrorKind, SandboxPath, SpawnRequest, Stdin,
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::messages::{ProcessConfig, Size, StartRequest};
use super::running::{Parts, Running, Told};
use crate::envd::fault::Fault;
use crate::envd::path;
use crate::fleet::Live;

/// What nobody else may call a command.
const RESERVED_TAG: &str = "_system";

/// A shell that goes to a directory first: backends start commands in directories of their own only.
const GO_THERE: &str = r#"cd -- "$0" && exec "$@""#;

/// Starts a command, and returns it with its first listener.
pub(crate) async fn start(
    live: &Arc<Live>,
    request: StartRequest,
    limit: Option<Duration>,
) -> Result<(Arc<Running>, mpsc::Receiver<Told>), Fault> {
    let StartRequest {
        process,
        pty,
        tag,
        stdin,
    } = request;
    let config = process.unwrap_or_default();
    if config.cmd.is_empty() {
        return Err(Fault::invalid("what to run is not said"));
    }
    if tag.as_deref() == Some(RESERVED_TAG) {
        return Err(Fault::invalid(format!(
            "the tag {RESERVED_TAG} is reserved"
        )));
    }
    let visit = live.visit()?;
    let slot = live.commands.slot()?;
    let kill = CancellationToken::new();
    let size = pty.map(|pty| pty_size(pty.size.as_ref()));
    let wants_stdin = size.is_some() || stdin.unwrap_or(true);
    let spawn = |argv: Vec<String>, directory: SandboxPath| {
        let mut request = SpawnRequest::argv(argv)
            .in_directory(directory)
            .with_cancellation(kill.clone())
            // What is killed is killed at once.
            .with_grace(Duration::ZERO)
            .with_background(Background::Keep);
        if wants_stdin {
            request = request.with_stdin(Stdin::Piped);
        }
        request.pty = size;
        request.timeout = limit;
        for (name, value) in &config.envs {
            request = request.with_env(name, value.as_str());
        }
        request
    };
    let argv = || {
        let mut argv = vec![config.cmd.clone()];
        argv.extend(config.args.iter().cloned());
        argv
    };
    let asked = config.cwd.as_deref().unwrap_or_default();
    let directory = path::resolve(asked, &live.home)?;
    let spawned = match visit.spawn(spawn(argv(), directory.clone())).await {
        Err(error) if error.kind() == SandboxErrorKind::OutsideSandbox => {
            check_directory(&*visit, asked, &directory).await?;
            let mut around = vec!["/bin/bash".to_owned(), "-c".to_owned(), GO_THERE.to_owned()];
            around.push(directory.to_string());
            around.extend(argv());
            visit.spawn(spawn(around, live.home.clone())).await
        }
        spawned => spawned,
    };
    let mut process: Box<dyn Process> = match spawned {
        Ok(process) => process,
        Err(error) => return Err(not_started(&*visit, &config, &directory, error).await),
    };
    let pid = process.id().unwrap_or_else(|| live.commands.make_up_pid());
    let (output, input) = (process.take_output(), process.take_stdin());
    let is_pty = size.is_some();
    let (running, orders) = Running::new(pid, tag, config, is_pty, input, kill);
    let first = running.listen();
    let parts = Parts {
        process,
        output,
        orders,
        patience: live.commands.patience,
    };
    live.commands.add(&running);
    drop(slot);
    let task = {
        let (running, cut, gone) = (Arc::clone(&running), live.cut.clone(), live.gone.clone());
        async move {
            // Until its end it uses the sandbox.
            let _visit = visit;
            tokio::select! {
                ended = running.look_after(parts) => if ended.is_err_and(|error| {
                    error.kind() == SandboxErrorKind::Gone
                }) {
                    gone.cancel();
                },
                () = cut.cancelled() => {}
            }
        }
    };
    live.tasks.spawn(task);
    Ok((running, first))
}

/// The size of a terminal; what is not said is as usual.
pub(crate) fn pty_size(size: Option<&Size>) -> PtySize {
    let fit = |asked: u32, usual: u16| match u16::try_from(asked) {
        Ok(0) => usual,
        Ok(asked) => asked,
        Err(_) => u16::MAX,
    };
    let (rows, columns) = size.map_or((0, 0), |size| (size.rows, size.cols));
    PtySize {
        rows: fit(rows, 24),
        columns: fit(columns, 80),
    }
}

/// Refuses a directory that commands don't see.
async fn check_directory(
    sandbox: &dyn Sandbox,
    asked: &str,
    directory: &SandboxPath,
) -> Result<(), Fault> {
    use cantle_core::sandbox::SandboxExt as _;

    let argv = ["test", "-d", &directory.to_string()].map(str::to_owned);
    let exit = sandbox.exec(SpawnRequest::argv(argv), &mut |_| {}).await?;
    if exit.status.success() {
        return Ok(());
    }
    Err(no_directory(asked))
}

fn no_directory(asked: &str) -> Fault {
    Fault::invalid(format!("cwd '{asked}' does not exist"))
}

/// Why a command could not be started, as envd says it.
async fn not_started(
    sandbox: &dyn Sandbox,
    config: &ProcessConfig,
    directory: &SandboxPath,
    error: cantle_core::sandbox::SandboxError,
) -> Fault {
    let kind = error.kind();
    let fault = Fault::from(error);
    match kind {
        SandboxErrorKind::NotFound | SandboxErrorKind::NotADirectory => {
            // The directory, or the program.
            let there = sandbox.list(directory).await;
            let asked = config.cwd.as_deref().unwrap_or_default();
            match there.map_err(|error| error.kind()) {
                Err(SandboxErrorKind::NotFound | SandboxErrorKind::NotADirectory) => {
                    no_directory(asked)
                }
                _ => Fault::invalid(fault.message),
            }
        }
        SandboxErrorKind::PermissionDenied => Fault::invalid(fault.message),
        _ => fault,
    }
}
