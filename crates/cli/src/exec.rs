//! `cantle exec`: one command in a fresh sandbox, with its input, output and exit code passed
//! through as they are.

use std::fmt::Write as _;
use std::io::{self, Read as _};
use std::sync::Arc;
use std::thread;

use anyhow::anyhow;
use bytes::Bytes;
use cantle::backends::local::LocalBackend;
use cantle::core::ids::RunId;
use cantle::core::policy::{Network, Policy};
use cantle::core::sandbox::{
    Backend as _, Channel, ExitStatus, OutputStream, Process, ProcessStdin, PtySize, Sandbox,
    SandboxContext, SandboxError, SandboxErrorKind, SandboxInfo, SpawnRequest, Stdin,
};
use cantle::core::tool::Progress;
use futures_util::StreamExt as _;
use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::args::ExecArgs;
use crate::display::{boundary, clean, enforcement, one_line, unenforced};
use crate::exit::{Failure, FailureExt as _};
use crate::place::Place;
use crate::terminal::{self, Raw};
use crate::{policy, settings};

// As `env`, `timeout` and shells have them.
pub(crate) const CANCELLED: u8 = 130;
const FAILED: u8 = 125;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;
/// What a program reports that writes to a pipe without a reader: 128 + SIGPIPE.
const NOT_READ: i32 = 141;

/// How much of our input waits for the command to read it.
const INPUT_PIECES: usize = 4;
const PIECE_BYTES: usize = 64 * 1024;

/// Ctrl-D: at the start of a line, the end of a terminal's input.
const END_OF_INPUT: &[u8] = b"\x04";

/// Runs the command, and returns the exit code.
pub(crate) async fn perform(
    args: ExecArgs,
    cancellation: CancellationToken,
) -> Result<u8, Failure> {
    let policy = settings::resolve_policy(&args.policy)?;
    let place = settings::resolve_place(&args.place)?;
    let sandbox = open(&place, &policy).await?;
    tell(sandbox.info(), policy.network.as_ref(), args.verbose).await;
    let code = run(args, &*sandbox, cancellation).await;
    let closed = sandbox
        .close()
        .await
        .map_err(|error| failure(FAILED, &error));
    let code = code?;
    closed.map(|()| code)
}

async fn open(place: &Place, policy: &Policy) -> Result<Arc<dyn Sandbox>, Failure> {
    let context =
        || SandboxContext::new(RunId::new(), policy.clone()).with_progress(Arc::new(Said));
    let backend = place.backend(LocalBackend::new()).usage()?;
    let opened = match backend.open(context()).await {
        // No shell reads the command, so there need not be one.
        Err(error) if place.is_local() && error.kind() == SandboxErrorKind::Unavailable => {
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
    opened.map_err(|error| failure(FAILED, &error))
}

/// Says what takes long before the command starts, where the command's own errors go.
#[derive(Debug)]
struct Said;

impl Progress for Said {
    fn output(&self, text: &str) {
        // Where nobody reads it, the command runs all the same.
        let line = format!("cantle: {}\n", clean(text));
        let _ = io::Write::write_all(&mut io::stderr(), line.as_bytes());
    }
}

/// Says what the sandbox is kept by, where that is wanted; and always what was asked for and isn't
/// there.
async fn tell(info: &SandboxInfo, network: Option<&Network>, verbose: bool) {
    let mut text = String::new();
    if verbose {
        let _ = writeln!(text, "cantle: sandbox {}", boundary(info, network));
        if let Some(enforced) = enforcement(info) {
            let _ = writeln!(text, "cantle: enforced {enforced}");
        }
    }
    let unenforced = unenforced(info);
    if !unenforced.is_empty() {
        let _ = writeln!(text, "cantle: not enforced here: {}", unenforced.join(", "));
    }
    // Where nobody reads it, the command runs all the same.
    let _ = pass(&mut tokio::io::stderr(), text.as_bytes()).await;
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
        let failure = failure(code, &error);
        let context = format!("failed to start `{}`", name.to_string_lossy());
        Failure {
            error: failure.error.context(context),
            ..failure
        }
    })?;
    let (input, output) = (process.take_stdin(), process.take_output());
    let mut raw = None;
    if args.tty {
        let entered = Raw::enter().map_err(|error| Failure {
            code: FAILED,
            error: anyhow!(error).context("failed to take over the terminal"),
        })?;
        raw = Some(entered);
    }
    // Where a file is typed, its end is a key.
    let end = raw.as_ref().is_some_and(|raw| !raw.is_terminal());
    let exit = tokio::select! {
        exit = finish(&mut *process, output, raw) => exit.map_err(|error| failure(FAILED, &error))?,
        never = feed(input, end.then_some(END_OF_INPUT)) => match never {},
    };
    // 128 + a signal is at most 192; other codes have a byte anyway.
    Ok(u8::try_from(exit).unwrap_or(FAILED))
}

/// Passes output on until the command's end, or until nobody reads it any more; `raw` is our
/// terminal where the command has one.
async fn finish(
    process: &mut dyn Process,
    output: Option<OutputStream>,
    mut raw: Option<Raw>,
) -> Result<i32, SandboxError> {
    let (mut stdout, mut stderr) = (tokio::io::stdout(), tokio::io::stderr());
    if let Some(mut output) = output {
        loop {
            let chunk = tokio::select! {
                chunk = output.next() => chunk,
                size = resized(&mut raw) => {
                    process.resize(size).await?;
                    continue;
                }
            };
            let Some(chunk) = chunk else { break };
            let chunk = chunk?;
            let passed = match chunk.channel {
                Channel::Stdout => pass(&mut stdout, &chunk.bytes).await,
                Channel::Stderr => pass(&mut stderr, &chunk.bytes).await,
            };
            if passed.is_err() {
                return Ok(NOT_READ);
            }
        }
    }
    let exit = process.wait().await?;
    // What comes now is ours.
    drop(raw);
    // The command doesn't know what stopped it, or which host was refused.
    let stopped = matches!(exit.status, ExitStatus::LimitReached { .. });
    let stopped = stopped.then(|| exit.status.to_string());
    for line in stopped.iter().chain(&exit.notes) {
        let line = format!("cantle: {}\n", one_line(line));
        let _ = pass(&mut stderr, line.as_bytes()).await;
    }
    Ok(exit.status.shell_code())
}

async fn resized(raw: &mut Option<Raw>) -> PtySize {
    match raw {
        Some(raw) => raw.resized().await,
        None => std::future::pending().await,
    }
}

async fn pass<W: AsyncWrite + Unpin>(writer: &mut W, bytes: &[u8]) -> io::Result<()> {
    writer.write_all(bytes).await?;
    writer.flush().await
}

/// Passes our input on, and `end` after it, to its end or to the command's. Never returns: what ends
/// is the command.
async fn feed(
    input: Option<Box<dyn ProcessStdin>>,
    end: Option<&'static [u8]>,
) -> std::convert::Infallible {
    if let Some(mut input) = input {
        let mut pieces = read_input();
        let mut is_read = true;
        while let Some(piece) = pieces.recv().await {
            is_read = input.write(piece).await.is_ok();
            if !is_read {
                break;
            }
        }
        if let (Some(end), true) = (end, is_read) {
            // A command that has ended reads no end.
            let _ = input.write(Bytes::from_static(end)).await;
        }
    }
    std::future::pending().await
}

/// Our standard input, read by a thread of its own: nothing can end a read from a terminal, and the
/// end of the process must not wait for it.
fn read_input() -> mpsc::Receiver<Bytes> {
    let (sender, receiver) = mpsc::channel(INPUT_PIECES);
    thread::spawn(move || {
        let mut stdin = io::stdin().lock();
        let mut piece = vec![0; PIECE_BYTES];
        while let Ok(read @ 1..) = stdin.read(&mut piece) {
            let bytes = Bytes::copy_from_slice(piece.get(..read).unwrap_or_default());
            if sender.blocking_send(bytes).is_err() {
                break;
            }
        }
    });
    receiver
}

fn failure(code: u8, error: &SandboxError) -> Failure {
    let advice = error.advice().map(|advice| format!(". {advice}"));
    let hint = policy::hint(error).map(|hint| format!(" {hint}"));
    let error = anyhow!(
        "{error}{}{}",
        advice.unwrap_or_default(),
        hint.unwrap_or_default()
    );
    Failure { code, error }
}
