//! Starting a command.

use std::sync::Arc;
use std::time::Duration;

use cantle_core::sandbox::{
    Background, PtySize, Sandbox, SandboxError, SandboxErrorKind, SandboxPath, SpawnRequest, Stdin,
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::envd::RunningSandbox;
use crate::envd::commands::command::{ProcessEvent, RunningCommand};
use crate::envd::commands::messages::{ProcessConfig, ProcessInfo, StartRequest, TerminalSize};
use crate::envd::error::{EnvdError, Result};
use crate::envd::{helper, path};

/// The tag reserved by envd.
const RESERVED_TAG: &str = "_system";

/// Changes the directory in a shell: backends start commands only in directories they manage.
const CHANGE_DIRECTORY: &str = r#"cd -- "$0" && exec "$@""#;

/// Starts a command and returns its process id and its first subscription.
pub(crate) async fn start(
    live: &Arc<RunningSandbox>,
    request: StartRequest,
    limit: Option<Duration>,
) -> Result<(u32, mpsc::Receiver<ProcessEvent>)> {
    let StartRequest {
        process,
        pty,
        tag,
        stdin,
    } = request;
    let config = process.unwrap_or_default();
    check(&config, tag.as_deref())?;
    let sandbox_use = live.acquire()?;
    let slot = live.commands.reserve()?;
    let descriptors = live.account.take_descriptors()?;
    let mut kept = live.account.charge();
    kept.grow(config.size_bytes() + tag.as_ref().map_or(0, String::len))?;
    let kill = CancellationToken::new();
    let size = pty.map(|pty| pty_size(pty.size.as_ref()));
    let wants_stdin = size.is_some() || stdin.unwrap_or(true);
    let spawn = |argv: Vec<String>, directory: SandboxPath| {
        let mut request = SpawnRequest::argv(argv)
            .in_directory(directory)
            .with_cancellation(kill.clone())
            // A kill takes effect at once.
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
    let argv = || std::iter::once(&config.cmd).chain(&config.args).cloned();
    let requested = config.cwd.as_deref().unwrap_or_default();
    let directory = path::resolve(requested, &live.home)?;
    let plain = spawn(argv().collect(), directory.clone());
    let spawned = match sandbox_use.spawn(plain).await {
        Err(error) if error.kind() == SandboxErrorKind::OutsideSandbox => {
            let directory = directory.to_string();
            let found = helper::run(&sandbox_use, ["test", "-d", &directory], 0).await?;
            if found.is_none_or(|found| !found.exit.status.success()) {
                return Err(directory_not_found(requested));
            }
            let shell = ["/bin/bash", "-c", CHANGE_DIRECTORY, &directory];
            let wrapped = shell.map(str::to_owned).into_iter().chain(argv()).collect();
            sandbox_use.spawn(spawn(wrapped, live.home.clone())).await
        }
        spawned => spawned,
    };
    let mut process = match spawned {
        Ok(process) => process,
        Err(error) => return Err(start_error(&*sandbox_use, &config, &directory, error).await),
    };
    let pid = (process.id()).unwrap_or_else(|| live.commands.synthetic_pid());
    let (output, input) = (process.take_output(), process.take_stdin());
    let info = ProcessInfo { config, pid, tag };
    let (command, requests) = RunningCommand::new(info, size.is_some(), input, kill, kept);
    let events = command.subscribe();
    let idle = live.commands.idle_timeout;
    live.commands.add(&command);
    let gone = live.gone.clone();
    live.spawn(async move {
        // Keeps the sandbox until the command has ended.
        let _held = (sandbox_use, descriptors);
        let driven = command.drive(process, output, requests, idle, slot);
        if driven.await.is_err() {
            gone.cancel();
        }
    });
    Ok((pid, events))
}

fn check(config: &ProcessConfig, tag: Option<&str>) -> Result<()> {
    if config.cmd.is_empty() {
        return Err(EnvdError::invalid("the command is missing"));
    }
    if tag == Some(RESERVED_TAG) {
        let message = format!("the tag {RESERVED_TAG} is reserved");
        return Err(EnvdError::invalid(message));
    }
    Ok(())
}

/// Returns the terminal size, with defaults for missing values.
pub(crate) fn pty_size(size: Option<&TerminalSize>) -> PtySize {
    let fit = |requested: u32, default: u16| match u16::try_from(requested) {
        Ok(0) => default,
        Ok(requested) => requested,
        Err(_) => u16::MAX,
    };
    let (rows, columns) = size.map_or((0, 0), |size| (size.rows, size.cols));
    PtySize {
        rows: fit(rows, 24),
        columns: fit(columns, 80),
    }
}

fn directory_not_found(requested: &str) -> EnvdError {
    EnvdError::invalid(format!("cwd '{requested}' does not exist"))
}

/// Converts a failure to start a command to envd's error.
async fn start_error(
    sandbox: &dyn Sandbox,
    config: &ProcessConfig,
    directory: &SandboxPath,
    error: SandboxError,
) -> EnvdError {
    let kind = error.kind();
    let error = EnvdError::from(error);
    match kind {
        SandboxErrorKind::NotFound | SandboxErrorKind::NotADirectory => {
            // Either the directory or the program is missing.
            let listing = sandbox.list(directory).await;
            let requested = config.cwd.as_deref().unwrap_or_default();
            match listing.map_err(|error| error.kind()) {
                Err(SandboxErrorKind::NotFound | SandboxErrorKind::NotADirectory) => {
                    directory_not_found(requested)
                }
                _ => EnvdError::invalid(error.message),
            }
        }
        SandboxErrorKind::PermissionDenied => EnvdError::invalid(error.message),
        _ => error,
    }
}
