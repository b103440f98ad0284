//! A command that the engine started: its output, its end, and how it is killed.
//!
//! An exec can't be killed through the engine's API. So another one finds what carries the command's
//! mark, and kills it, until nothing is found any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use cantle_core::policy::PolicyField;
use cantle_core::sandbox::{
    Channel, ChannelReport, CommandAction, CommandEvent, CommandLifecycle, Exit, ExitStatus,
    OutputChunk, OutputStream, Process, ProcessStdin, SandboxError, SandboxErrorKind, SpawnRequest,
    Stdin,
};
use futures_util::stream;
use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::exec::{Exec, Script};
use super::{MARK, Shared};
use crate::clock::{now, reached};

/// Pieces of output between the command and its reader.
const PIECES: usize = 16;
/// How long the output may go on after the end of the command.
const LAST_OUTPUT: Duration = Duration::from_millis(550);
/// Between two looks whether the command has ended; its output ends first, usually.
const LOOK_EVERY: Duration = Duration::from_millis(100);
const KILL_DEADLINE: Duration = Duration::from_secs(10);

/// Sends the signal `$1` to all that carries the mark `$2`, and again until nothing is found where it
/// is the one that kills.
const KILL: &str = r#"echo ok
n=0
while [ $n -lt 50 ]; do
  found=
  for d in /proc/[0-9]*; do
    if grep -q "CANTLE_COMMAND=$2" "$d/environ" 2>/dev/null; then
      found=1; kill -s "$1" "${d#/proc/}" 2>/dev/null
    fi
  done
  [ -n "$found" ] && [ "$1" = KILL ] || break
  n=$((n+1))
done"#;

type Ended = Option<Result<Exit, Arc<SandboxError>>>;

pub(super) fn start(
    shared: &Arc<Shared>,
    mut exec: Exec,
    request: SpawnRequest,
    mark: String,
) -> Box<dyn Process> {
    let (sender, receiver) = mpsc::channel(PIECES);
    let (end, ended) = watch::channel(None);
    let abandoned = CancellationToken::new();
    let input = exec.input.take();
    let command = Command {
        shared: Arc::clone(shared),
        id: exec.id.clone(),
        mark,
        totals: Arc::default(),
        started: Instant::now(),
        abandoned: abandoned.clone(),
    };
    let mut stdin = None;
    if let Some(input) = input {
        let (pieces, received) = mpsc::channel(1);
        let bytes = match &request.stdin {
            Stdin::Bytes(bytes) => bytes.clone(),
            _ => {
                stdin = Some(Box::new(Input { pieces }) as Box<dyn ProcessStdin>);
                Bytes::new()
            }
        };
        shared.attend(feed(input, bytes, received, abandoned.clone()));
    }
    shared.attend(async move {
        let exit = command.drive(exec, sender, &request).await;
        // Nobody may be left to be told.
        let _ = end.send(Some(exit.map_err(Arc::new)));
    });
    Box::new(Running {
        output: Some(receiver),
        stdin,
        ended,
        abandoned,
    })
}

/// Writes what a command is to read, and then closes it.
async fn feed(
    mut input: std::pin::Pin<Box<dyn AsyncWrite + Send>>,
    first: Bytes,
    mut pieces: mpsc::Receiver<Piece>,
    over: CancellationToken,
) {
    let feeding = async {
        // A command that doesn't read all of it is no failure.
        let mut open = input.write_all(&first).await.is_ok();
        while let Some((piece, done)) = pieces.recv().await {
            let written = input.write_all(&piece).await;
            open = open && written.is_ok();
            // Who waits for it may be gone.
            let _ = done.send(written);
        }
        if open {
            let _ = input.shutdown().await;
        }
    };
    over.run_until_cancelled(feeding).await;
}

/// Some input, and who is told that it was written.
type Piece = (Bytes, oneshot::Sender<std::io::Result<()>>);

/// A command, as the task sees it that looks after it.
struct Command {
    shared: Arc<Shared>,
    id: String,
    mark: String,
    totals: Arc<[AtomicU64; 2]>,
    started: Instant,
    abandoned: CancellationToken,
}

impl Command {
    async fn drive(
        &self,
        exec: Exec,
        sender: mpsc::Sender<Result<OutputChunk, SandboxError>>,
        request: &SpawnRequest,
    ) -> Result<Exit, SandboxError> {
        let over = CancellationToken::new();
        let pump = pump(exec, sender, Arc::clone(&self.totals), over.clone());
        tokio::pin!(pump);
        let mut pumped = false;
        let end = self.end(request);
        tokio::pin!(end);
        let status = loop {
            tokio::select! {
                status = &mut end => break status,
                () = &mut pump, if !pumped => pumped = true,
            }
        };
        if !matches!(status, Ok(ExitStatus::Code(_))) || !pumped {
            // Its children may live on, and hold its output.
            self.signal("KILL").await;
        }
        if !pumped {
            let _ = timeout(LAST_OUTPUT, &mut pump).await;
            over.cancel();
        } else {
            self.signal("KILL").await;
        }
        let mut exit = Exit::new(status?, self.started.elapsed());
        let [stdout, stderr] = &*self.totals;
        exit.stdout = ChannelReport::new(stdout.load(Ordering::Relaxed), None);
        exit.stderr = ChannelReport::new(stderr.load(Ordering::Relaxed), None);
        Ok(exit)
    }

    /// Waits for its end, however it comes.
    async fn end(&self, request: &SpawnRequest) -> Result<ExitStatus, SandboxError> {
        let wall_time = self.shared.limits.wall_time;
        let mut lifecycle = CommandLifecycle::new(request, wall_time, self.started.into_std());
        loop {
            let event = tokio::select! {
                () = self.shared.gone.cancelled() => return Err(self.shared.gone()),
                () = self.abandoned.cancelled() => return Ok(ExitStatus::Cancelled),
                () = request.cancellation.cancelled(), if lifecycle.heeds_cancellation() => {
                    Some(CommandEvent::Cancelled)
                }
                () = reached(lifecycle.deadline()) => Some(CommandEvent::Time),
                () = sleep(LOOK_EVERY) => None,
            };
            match event.and_then(|event| lifecycle.on(event, now())) {
                Some(CommandAction::Terminate) => {
                    self.signal("TERM").await;
                }
                // Whoever waits for the end does it.
                Some(CommandAction::Kill) => {
                    return Ok(lifecycle.stopped().unwrap_or(ExitStatus::Cancelled));
                }
                _ => {}
            }
            if let Some(limit) = self.shared.limits.output_bytes
                && self
                    .totals
                    .iter()
                    .any(|total| total.load(Ordering::Relaxed) > limit)
            {
                let field = PolicyField::Output;
                return Ok(ExitStatus::LimitReached { field, limit });
            }
            let api = self.shared.container.engine.api();
            match api.inspect_exec(&self.id).await {
                Ok(state) if state.running == Some(true) => {}
                Ok(state) => {
                    // In its last moments, because we said so.
                    if let Some(status) = lifecycle.stopped() {
                        return Ok(status);
                    }
                    let code = state.exit_code.and_then(|code| i32::try_from(code).ok());
                    // With its container, perhaps, whose end is noticed a little later: in one that has
                    // ended nothing can be started.
                    if code == Some(137) && !self.signal("KILL").await {
                        let gone = timeout(KILL_DEADLINE, self.shared.gone.cancelled());
                        if gone.await.is_ok() {
                            return Err(self.shared.gone());
                        }
                    }
                    return Ok(match code.unwrap_or(-1) {
                        code @ 129..=192 => ExitStatus::Signal(code - 128),
                        code => ExitStatus::Code(code),
                    });
                }
                Err(_) => return Err(self.shared.gone()),
            }
        }
    }

    /// Sends a signal to all that belongs to it; whether that could be tried.
    async fn signal(&self, signal: &str) -> bool {
        let script = Script {
            text: KILL,
            arguments: vec![signal.to_owned(), self.mark.clone()],
            variables: &self.shared.variables,
            has_input: false,
        };
        let killed = async {
            let exec = Exec::start(&self.shared, script).await?;
            exec.into_result("failed to signal a command")?
                .rest(1000)
                .await
        };
        let killed = timeout(KILL_DEADLINE, killed).await;
        let is_done = matches!(killed, Ok(Ok(_)));
        if !is_done && !self.shared.gone.is_cancelled() {
            tracing::debug!(mark = MARK, "a command could not be signalled");
        }
        is_done
    }
}

/// Passes output on, at the pace of its reader; without one it is counted only.
async fn pump(
    mut exec: Exec,
    sender: mpsc::Sender<Result<OutputChunk, SandboxError>>,
    totals: Arc<[AtomicU64; 2]>,
    over: CancellationToken,
) {
    let passing = async {
        while let Some(piece) = exec.next().await {
            if let Ok(chunk) = &piece {
                let [stdout, stderr] = &*totals;
                let total = match chunk.channel {
                    Channel::Stdout => stdout,
                    Channel::Stderr => stderr,
                };
                total.fetch_add(chunk.bytes.len() as u64, Ordering::Relaxed);
            }
            let _ = sender.send(piece).await;
        }
    };
    over.run_until_cancelled(passing).await;
}

struct Running {
    output: Option<mpsc::Receiver<Result<OutputChunk, SandboxError>>>,
    stdin: Option<Box<dyn ProcessStdin>>,
    ended: watch::Receiver<Ended>,
    abandoned: CancellationToken,
}

#[async_trait]
impl Process for Running {
    fn id(&self) -> Option<u32> {
        None
    }

    fn take_output(&mut self) -> Option<OutputStream> {
        let receiver = self.output.take()?;
        Some(Box::pin(stream::unfold(receiver, |mut receiver| async {
            let piece = receiver.recv().await?;
            Some((piece, receiver))
        })))
    }

    fn take_stdin(&mut self) -> Option<Box<dyn ProcessStdin>> {
        self.stdin.take()
    }

    async fn signal(&mut self, _signal: i32) -> Result<(), SandboxError> {
        Err(SandboxError::unsupported(
            "signals need the supervisor, which doesn't run in this container",
        ))
    }

    async fn wait(&mut self) -> Result<Exit, SandboxError> {
        // What nobody took is nobody's.
        self.output = None;
        let interrupted = || SandboxError::gone("nobody looks after the command any more");
        let ended = self.ended.wait_for(Option::is_some).await;
        let ended = ended.map_err(|_| interrupted())?.clone();
        match ended.ok_or_else(interrupted)? {
            Ok(exit) => Ok(exit),
            Err(error) => Err(SandboxError::new(error.kind(), error.to_string())),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.abandoned.cancel();
    }
}

struct Input {
    pieces: mpsc::Sender<Piece>,
}

#[async_trait]
impl ProcessStdin for Input {
    async fn write(&mut self, data: Bytes) -> Result<(), SandboxError> {
        let closed = || SandboxError::new(SandboxErrorKind::Closed, "the command no longer reads");
        let (done, written) = oneshot::channel();
        let sent = self.pieces.send((data, done)).await;
        sent.map_err(|_| closed())?;
        let written = written.await.map_err(|_| closed())?;
        written.map_err(|error| closed().with_source(error))
    }
}
