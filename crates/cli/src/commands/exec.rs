//! `cantle exec`: one command in a new sandbox, with its streams and its exit code passed through.

use std::fmt::Write as _;
use std::io::{self, Read as _};
use std::sync::Arc;
use std::thread;

use anyhow::Context as _;
use bytes::Bytes;
use cantle::backends::local::LocalBackend;
use cantle::core::ids::RunId;
use cantle::core::policy::Policy;
use cantle::core::sandbox::{
    Backend as _, Channel, ExitStatus, OutputStream, Process, ProcessStdin, Sandbox,
    SandboxContext, SandboxError, SandboxErrorKind, SandboxInfo, SpawnRequest, Stdin,
};
use futures_util::StreamExt as _;
use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::args::ExecArgs;
use crate::backend::BackendArg;
use crate::config;
use crate::display::{enforcement, isolation, unenforced};
use crate::exit::{Failure, FailureExt as _, sandbox_failure};
use crate::messages::ProgressMessages;
use crate::publish;
use crate::terminal::{self, Raw};
use crate::text::one_line;

// The exit codes of `env`, `timeout` and shells.
pub(crate) const CANCELLED: u8 = 130;
pub(super) const FAILED: u8 = 125;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;
/// Exit code of a program that writes to a closed pipe: 128 + SIGPIPE.
const BROKEN_PIPE: i32 = 141;

/// Chunks of standard input that are read ahead.
const INPUT_CHUNKS: usize = 4;
const CHUNK_BYTES: usize = 64 * 1024;

/// Ctrl-D, which ends a terminal's input at the start of a line.
const END_OF_INPUT: &[u8] = b"\x04";

/// Runs the command, and returns the exit code.
pub(crate) async fn perform(
    args: ExecArgs,
    cancellation: CancellationToken,
) -> Result<u8, Failure> {
    let (backend, mut policy) = config::resolve_sandbox(&args.sandbox)?;
    policy.environment = args.variables.resolve(&[]).usage()?;
    let listeners = publish::listen(&args.publish).await.with_code(FAILED)?;
    let sandbox = open(&backend, &policy).await?;
    report(sandbox.info(), args.verbose).await;
    let published = publish::check(&args.publish, &*sandbox).await;
    let running = async {
        published.map_err(|error| sandbox_failure(FAILED, &error))?;
        tokio::select! {
            code = run(args, &*sandbox, cancellation) => code,
            never = publish::serve(listeners, &*sandbox) => match never {},
        }
    };
    let code = running.await;
    ended(code, sandbox.close().await)
}

/// Returns how a command ended; the first failure is the one to report.
pub(super) fn ended(
    code: Result<u8, Failure>,
    closed: Result<(), SandboxError>,
) -> Result<u8, Failure> {
    let code = code?;
    closed.map_err(|error| sandbox_failure(FAILED, &error))?;
    Ok(code)
}

/// Returns the context of a new sandbox, with progress on standard error.
pub(super) fn context(policy: &Policy) -> SandboxContext {
    SandboxContext::new(RunId::new(), policy.clone()).with_progress(Arc::new(ProgressMessages))
}

pub(super) async fn open(
    backend: &BackendArg,
    policy: &Policy,
) -> Result<Arc<dyn Sandbox>, Failure> {
    let context = || context(policy);
    let opened = backend.open(LocalBackend::new()).usage()?;
    let opened = match opened.open(context()).await {
        // The command needs no shell, so it may run without one.
        Err(error) if backend.is_local() && error.kind() == SandboxErrorKind::Unavailable => {
            match std::env::current_exe() {
                Ok(program) => {
                    let without_shell = LocalBackend::new().with_shell(program);
                    without_shell.open(context()).await
                }
                Err(_) => Err(error),
            }
        }
        opened => opened,
    };
    opened.map_err(|error| sandbox_failure(FAILED, &error))
}

/// Reports what is not enforced and, if `verbose`, what isolates the sandbox.
pub(super) async fn report(info: &SandboxInfo, verbose: bool) {
    let mut text = String::new();
    if verbose {
        let _ = writeln!(text, "cantle: sandbox {}", isolation(info));
        if let Some(enforced) = enforcement(info) {
            let _ = writeln!(text, "cantle: enforced {enforced}");
        }
    }
    let unenforced = unenforced(info);
    if !unenforced.is_empty() {
        let _ = writeln!(text, "cantle: not enforced here: {}", unenforced.join(", "));
    }
    // The command runs even if nothing reads standard error.
    let _ = write_all(&mut tokio::io::stderr(), text.as_bytes()).await;
}

async fn run(
    args: ExecArgs,
    sandbox: &dyn Sandbox,
    cancellation: CancellationToken,
) -> Result<u8, Failure> {
    let name = args.command.first().cloned().unwrap_or_default();
    let mut request = SpawnRequest::argv(args.command)
        .with_stdin(Stdin::Piped)
        .with_cancellation(cancellation);
    request.timeout = args.timeout;
    if args.tty {
        request = request.with_pty(terminal::size());
        if let Ok(term) = std::env::var("TERM") {
            request = request.with_env("TERM", term);
        }
    }
    let mut process = sandbox.spawn(request).await.map_err(|error| {
        let code = match error.kind() {
            SandboxErrorKind::NotFound => NOT_FOUND,
            SandboxErrorKind::PermissionDenied | SandboxErrorKind::InvalidInput => NOT_EXECUTABLE,
            _ => FAILED,
        };
        let failure = sandbox_failure(code, &error);
        let context = format!("failed to start `{}`", name.to_string_lossy());
        if failure.error.to_string().starts_with(&context) {
            return failure;
        }
        Failure {
            error: failure.error.context(context),
            ..failure
        }
    })?;
    let (input, output) = (process.take_stdin(), process.take_output());
    let mut raw = None;
    if args.tty {
        let entered = Raw::enter().context("failed to take over the terminal");
        raw = Some(entered.with_code(FAILED)?);
    }
    // The end of a file must be typed as a key.
    let end = raw.as_ref().is_some_and(|raw| !raw.is_terminal());
    let exit = tokio::select! {
        exit = forward(&mut *process, output, raw) => exit.map_err(|error| sandbox_failure(FAILED, &error))?,
        never = feed(input, end.then_some(END_OF_INPUT)) => match never {},
    };
    // 128 + a signal is at most 192; other codes fit a byte.
    Ok(u8::try_from(exit).unwrap_or(FAILED))
}

/// Forwards output until the command ends or the reader of ours has gone away.
///
/// `raw` is this process's terminal if the command has one.
pub(super) async fn forward(
    process: &mut dyn Process,
    output: Option<OutputStream>,
    mut raw: Option<Raw>,
) -> Result<i32, SandboxError> {
    let (mut stdout, mut stderr) = (tokio::io::stdout(), tokio::io::stderr());
    if let Some(mut output) = output {
        loop {
            let chunk = tokio::select! {
                chunk = output.next() => chunk,
                Some(size) = async { Some(raw.as_mut()?.resized().await) }, if raw.is_some() => {
                    process.resize(size).await?;
                    continue;
                }
            };
            let Some(chunk) = chunk else { break };
            let chunk = chunk?;
            let written = match chunk.channel {
                Channel::Stdout => write_all(&mut stdout, &chunk.bytes).await,
                Channel::Stderr => write_all(&mut stderr, &chunk.bytes).await,
            };
            if written.is_err() {
                return Ok(BROKEN_PIPE);
            }
        }
    }
    let exit = process.wait().await?;
    // Messages of this program follow.
    drop(raw);
    // The command can't report what stopped it, or which host was refused.
    let stopped = matches!(exit.status, ExitStatus::LimitReached { .. });
    let stopped = stopped.then(|| exit.status.to_string());
    for line in stopped.iter().chain(&exit.notes) {
        let line = format!("cantle: {}\n", one_line(line));
        let _ = write_all(&mut stderr, line.as_bytes()).await;
    }
    Ok(exit.status.shell_code())
}

async fn write_all<W: AsyncWrite + Unpin>(writer: &mut W, bytes: &[u8]) -> io::Result<()> {
    writer.write_all(bytes).await?;
    writer.flush().await
}

/// Forwards standard input and then `end` to the command. Never returns: the command's end is what ends
/// the program.
async fn feed(
    input: Option<Box<dyn ProcessStdin>>,
    end: Option<&'static [u8]>,
) -> std::convert::Infallible {
    if let Some(mut input) = input {
        let mut chunks = read_input();
        let mut is_open = true;
        while let Some(chunk) = chunks.recv().await {
            is_open = input.write(chunk).await.is_ok();
            if !is_open {
                break;
            }
        }
        if let (Some(end), true) = (end, is_open) {
            // The command may have ended.
            let _ = input.write(Bytes::from_static(end)).await;
        }
    }
    std::future::pending().await
}

/// Reads standard input on a separate thread, because a read from a terminal can't be interrupted and
/// must not delay the exit.
fn read_input() -> mpsc::Receiver<Bytes> {
    let (sender, receiver) = mpsc::channel(INPUT_CHUNKS);
    thread::spawn(move || {
        let mut stdin = io::stdin().lock();
        let mut chunk = vec![0; CHUNK_BYTES];
        while let Ok(read @ 1..) = stdin.read(&mut chunk) {
            let bytes = Bytes::copy_from_slice(chunk.get(..read).unwrap_or_default());
            if sender.blocking_send(bytes).is_err() {
                break;
            }
        }
    });
    receiver
}
