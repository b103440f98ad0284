//! The command driver's transport for a command that the engine started as an exec.
//!
//! The engine's API can't signal an exec. Another exec finds the processes that carry the command's mark
//! in their environment, and signals these.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use bytes::Bytes;
use cantle_command_driver::{
    CommandDriver, DrivenProcess, InputChannel, Report, StartedCommand, Transport,
};
use cantle_core::sandbox::{
    BackgroundProcess, ByteStream, Channel, ExitStatus, OutputChunk, PtySize, SandboxError,
    SandboxErrorKind, SandboxPath, Signal,
};
use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::select;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};

use super::ExecRunner;
use super::exec::{Exec, Script};
use crate::engine::failure::status;

/// Chunks of output between the exec and the driver, for each channel.
const CHUNKS_IN_FLIGHT: usize = 16;
/// How long output is read after the end of the command.
const DRAIN_DEADLINE: Duration = Duration::from_millis(550);
/// Between two checks whether the command has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
const SIGNAL_DEADLINE: Duration = Duration::from_secs(10);
/// The exit code of a process that SIGKILL ended.
const KILLED: i32 = 128 + 9;

/// Sends the signal `$1` to all processes with the mark `$2`; repeats KILL until none is found.
const SIGNAL: &str = r#"echo ok
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

/// Drives a command that was started as `exec`, whose processes carry `mark`.
pub(super) fn drive(
    runner: &Arc<ExecRunner>,
    mut exec: Exec,
    driver: CommandDriver,
    mark: String,
) -> DrivenProcess<PlainTransport> {
    let (orders, order_receiver) = mpsc::unbounded_channel();
    let (report_sender, reports) = mpsc::unbounded_channel();
    let (stdout_sender, stdout) = mpsc::channel(CHUNKS_IN_FLIGHT);
    let (stderr_sender, stderr) = mpsc::channel(CHUNKS_IN_FLIGHT);
    let (input_sender, writes) = mpsc::channel(1);
    let input = exec.input.take();
    let has_input = input.is_some();
    let control = ExecControl {
        runner: Arc::clone(runner),
        id: exec.id.clone(),
        mark,
    };
    runner.tasks.spawn(async move {
        let mut pump = pin!(pump(exec, [stdout_sender, stderr_sender]));
        let mut feed = pin!(feed(input, writes));
        let (mut output_ended, mut input_ended) = (false, false);
        {
            let mut control = pin!(control.run(order_receiver, report_sender));
            loop {
                select! {
                    () = &mut control => break,
                    () = &mut pump, if !output_ended => output_ended = true,
                    () = &mut feed, if !input_ended => input_ended = true,
                }
            }
        }
        if !output_ended {
            // A process that cleared its environment may hold the output open.
            let _ = timeout(DRAIN_DEADLINE, pump).await;
        }
    });
    driver.drive(StartedCommand {
        transport: Arc::new(PlainTransport {
            runner: Arc::clone(runner),
            orders,
        }),
        pid: None,
        reports,
        stdout,
        stderr,
        input: has_input.then_some(PlainInput(input_sender)),
    })
}

/// A running command of a container without the supervisor.
pub(super) struct PlainTransport {
    runner: Arc<ExecRunner>,
    orders: mpsc::UnboundedSender<Order>,
}

#[derive(Clone, Copy, Debug)]
enum Order {
    Terminate,
    Kill,
}

impl Transport for PlainTransport {
    type Reports = mpsc::UnboundedReceiver<Report>;
    type Output = mpsc::Receiver<Result<Bytes, SandboxError>>;
    type Input = PlainInput;

    const CHANNELS_END: bool = true;
    const KILL_DEADLINE: Duration = SIGNAL_DEADLINE;

    // An order fails only if the command has ended.
    fn terminate(&self) {
        let _ = self.orders.send(Order::Terminate);
    }

    fn kill(&self) {
        let _ = self.orders.send(Order::Kill);
    }

    async fn signal(&self, _signal: Signal) -> Result<(), SandboxError> {
        Err(SandboxError::unsupported(
            "signals need the supervisor, which doesn't run in this container",
        ))
    }

    async fn resize(&self, _size: PtySize) -> Result<(), SandboxError> {
        Err(SandboxError::unsupported("the command has no terminal"))
    }

    async fn list(&self) -> Vec<BackgroundProcess> {
        Vec::new()
    }

    fn check(&self) -> Result<(), SandboxError> {
        if self.runner.gone.is_cancelled() {
            return Err(self.runner.gone());
        }
        Ok(())
    }

    fn spill_path(&self, _channel: Channel) -> Option<SandboxPath> {
        None
    }

    async fn write_spill(&self, _channel: Channel, _data: ByteStream, _written_bytes: &AtomicU64) {}
}

/// Performs orders and reports the end of an exec.
struct ExecControl {
    runner: Arc<ExecRunner>,
    id: String,
    mark: String,
}

impl ExecControl {
    /// Runs until nothing of the command is left. The command is killed if all senders of orders are
    /// dropped.
    async fn run(
        &self,
        mut orders: mpsc::UnboundedReceiver<Order>,
        reports: mpsc::UnboundedSender<Report>,
    ) {
        loop {
            let polled = async {
                sleep(POLL_INTERVAL).await;
                self.poll().await
            };
            select! {
                biased;
                () = self.runner.gone.cancelled() => {
                    // A container that the sandbox does not own outlives it.
                    self.signal("KILL").await;
                    return;
                }
                order = orders.recv() => match order {
                    Some(Order::Terminate) => {
                        self.signal("TERM").await;
                    }
                    Some(Order::Kill) | None => {
                        self.signal("KILL").await;
                        return;
                    }
                },
                report = polled => if let Some(report) = report {
                    // The driver may be gone.
                    let _ = reports.send(report);
                    return;
                }
            }
        }
    }

    /// Checks whether the exec has ended; if so, kills what it left.
    async fn poll(&self) -> Option<Report> {
        let api = self.runner.container.engine.api();
        let code = match api.inspect_exec(&self.id).await {
            Ok(state) if state.running == Some(true) => return None,
            Ok(state) => state.exit_code.and_then(|code| i32::try_from(code).ok()),
            Err(error) if status(&error) == Some(404) => {
                self.signal("KILL").await;
                let message = "the engine no longer knows the command";
                let error = SandboxError::new(SandboxErrorKind::Io, message);
                return Some(Report::Lost(self.runner.reason(error).await));
            }
            // The command may still run.
            Err(error) => {
                tracing::debug!(%error, "failed to inspect a command");
                return None;
            }
        };
        let is_signalled = self.signal("KILL").await;
        // Nothing can be started in a container that has ended, which is noticed a little later.
        if code == Some(KILLED) && !is_signalled && self.runner.ends_soon().await {
            return Some(Report::Lost(self.runner.gone()));
        }
        let status = match code.unwrap_or(-1) {
            code @ 129..=192 => ExitStatus::Signal(code - 128),
            code => ExitStatus::Code(code),
        };
        let alone = true;
        Some(Report::Ended { status, alone })
    }

    async fn signal(&self, signal: &str) -> bool {
        self.runner.signal(signal, &self.mark).await
    }
}

impl ExecRunner {
    /// Sends a signal to all processes of the command with this mark; returns whether that could be tried.
    pub(super) async fn signal(&self, signal: &str, mark: &str) -> bool {
        let script = Script {
            text: SIGNAL,
            arguments: vec![signal.to_owned(), mark.to_owned()],
            variables: &self.variables,
            has_input: false,
        };
        let signalling = async {
            let exec = Exec::start(self, script).await?;
            exec.into_result("failed to signal a command")?
                .rest(1000)
                .await
        };
        let signalled = timeout(SIGNAL_DEADLINE, signalling).await;
        let is_signalled = matches!(signalled, Ok(Ok(_)));
        if !is_signalled && !self.gone.is_cancelled() {
            tracing::debug!(mark, "failed to signal a command");
        }
        is_signalled
    }
}

/// Distributes the output of an exec to its channels.
async fn pump(mut exec: Exec, channels: [mpsc::Sender<Result<Bytes, SandboxError>>; 2]) {
    let [stdout, stderr] = channels;
    while let Some(chunk) = exec.next().await {
        // Output that the driver no longer reads is dropped.
        let _ = match chunk {
            Ok(OutputChunk { channel, bytes }) => match channel {
                Channel::Stdout => stdout.send(Ok(bytes)).await,
                Channel::Stderr => stderr.send(Ok(bytes)).await,
            },
            Err(error) => stdout.send(Err(error)).await,
        };
    }
}

/// Bytes to write, and where the result goes.
type Write = (Bytes, oneshot::Sender<std::io::Result<()>>);

/// Writes a command's input, and closes it when the sender is dropped.
async fn feed(input: Option<Pin<Box<dyn AsyncWrite + Send>>>, mut writes: mpsc::Receiver<Write>) {
    let Some(mut input) = input else {
        return;
    };
    while let Some((bytes, result)) = writes.recv().await {
        let written = input.write_all(&bytes).await;
        let has_failed = written.is_err();
        // The writer may have given up.
        let _ = result.send(written);
        if has_failed {
            return;
        }
    }
    // A command that has ended has closed it already.
    let _ = input.shutdown().await;
}

/// The input of a command.
pub(super) struct PlainInput(mpsc::Sender<Write>);

impl InputChannel for PlainInput {
    async fn write(&mut self, data: Bytes) -> Result<(), SandboxError> {
        let closed = || SandboxError::new(SandboxErrorKind::Closed, "the command no longer reads");
        let (sender, result) = oneshot::channel();
        let sent = self.0.send((data, sender)).await;
        sent.map_err(|_| closed())?;
        let written = result.await.map_err(|_| closed())?;
        written.map_err(|error| closed().with_source(error))
    }
}
