//! Commands of the reference backend.

use std::ffi::OsString;
use std::fs::File;
use std::future::pending;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitStatus as StdStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use cantle_core::ids::unique_id;
use cantle_core::sandbox::{
    Background, BackgroundProcess, Channel, ChannelReport, Command, Exit, ExitStatus, OutputStream,
    Process, ProcessStdin, PtySize, SandboxError, SandboxErrorKind, SpawnRequest, Spill, SpillFile,
    Stdin,
};
use futures_util::stream;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, ChildStdin, Command as TokioCommand};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::reader::{Reader, SpillWriter};
use super::sandbox::Local;
use super::{Counter, Fault, kill_tagged, tagged};

pub(super) async fn spawn(
    sandbox: &Local,
    request: SpawnRequest,
) -> Result<Box<dyn Process>, SandboxError> {
    let fault = sandbox.state.fault;
    let has_terminals = matches!(
        fault,
        Some(Fault::UsesPipesForTerminals | Fault::DetachesTerminals)
    );
    if request.pty.is_some() && !has_terminals {
        return Err(SandboxError::unsupported("there are no terminals here"));
    }
    if sandbox.state.minimal && request.background == Background::Keep {
        return Err(SandboxError::unsupported("nothing runs on here"));
    }
    if sandbox.state.minimal && request.spill.is_some() {
        return Err(SandboxError::unsupported(
            "output is not kept in files here",
        ));
    }
    sandbox.files.must_exist()?;
    match (&request.read_only_except, fault) {
        (None, _) | (Some(_), Some(Fault::LetsReadOnlyCommandsWrite)) => {}
        (Some(directory), Some(Fault::RemovesWritableDirectories)) => {
            let directory = sandbox.root.join(directory.to_string());
            drop(std::fs::remove_dir_all(directory));
        }
        (Some(_), _) => {
            return Err(SandboxError::unsupported(
                "commands can't be read-only here",
            ));
        }
    }
    let tag = unique_id();
    let mut command = prepare(sandbox, &request, &tag)?;
    let directory = sandbox.files.open_directory(&request.directory)?;
    if fault == Some(Fault::IgnoresTheDirectory) {
        command.current_dir(&sandbox.root);
    } else {
        // Resolved above; the child inherits the descriptor.
        command.current_dir(format!("/proc/self/fd/{}", directory.as_raw_fd()));
    }
    if fault == Some(Fault::LeavesZombies) {
        drop(std::process::Command::new("true").spawn());
    }
    let started = Instant::now();
    let mut child = command
        .spawn()
        .map_err(|error| SandboxError::io("failed to start the command", error))?;
    let id = child.id().unwrap();
    let mut tasks = JoinSet::new();
    let stdin = feed(&mut child, &request, fault, &mut tasks).await?;

    let capacity = match fault {
        Some(Fault::IgnoresBackpressure) => 1 << 20,
        _ => 4,
    };
    let (sender, receiver) = mpsc::channel(capacity);
    let (ended, watch_end) = watch::channel(false);
    let mut channels = Vec::new();
    for channel in [Channel::Stdout, Channel::Stderr] {
        let total = Counter::default();
        let spill = request
            .spill
            .map(|spill| spill_writer(sandbox, spill))
            .transpose()?;
        let (fault, sender, ended) = (fault, Some(sender.clone()), watch_end.clone());
        let counter = Arc::clone(&total);
        let (done, spilled) = oneshot::channel();
        macro_rules! read {
            ($pipe:expr) => {{
                let pipe = $pipe.take().unwrap();
                let reader = Reader {
                    fault,
                    stream: Arc::clone(&sandbox.state.stream),
                    pipe,
                    channel,
                    total: counter,
                    spill,
                    sender,
                    ended,
                };
                tasks.spawn(async move {
                    let _ = done.send(reader.run().await);
                });
            }};
        }
        match channel {
            Channel::Stdout => read!(child.stdout),
            Channel::Stderr => read!(child.stderr),
        }
        channels.push((total, spilled));
    }
    drop(sender);
    let (exit_sender, exit) = watch::channel(None);
    let driver = Driver {
        fault,
        child,
        id,
        tag: tag.clone(),
        sandbox_tag: sandbox.state.tags.sandbox.clone(),
        limit: [request.timeout, sandbox.wall_time]
            .into_iter()
            .flatten()
            .min()
            .filter(|_| request.pty.is_none() || fault != Some(Fault::DetachesTerminals)),
        request,
        started,
        ended,
        channels,
    };
    tasks.spawn(async move {
        let exit = driver.run().await;
        let _ = exit_sender.send(Some(exit));
    });
    Ok(Box::new(Running {
        fault,
        minimal: sandbox.state.minimal,
        stream: Arc::clone(&sandbox.state.stream),
        gone: sandbox.state.gone.clone(),
        id,
        tag,
        output: Some(receiver),
        stdin,
        exit,
        tasks,
    }))
}

fn prepare(
    sandbox: &Local,
    request: &SpawnRequest,
    tag: &str,
) -> Result<TokioCommand, SandboxError> {
    let fault = sandbox.state.fault;
    let shell = match fault {
        Some(Fault::UsesTheWrongShell) => "sh",
        _ => "bash",
    };
    let mut command = match &request.command {
        Command::Shell(line) => {
            let mut line = line.clone();
            if fault == Some(Fault::CutsLongCommands) {
                let mut bytes = line.into_vec();
                bytes.truncate(65_536);
                line = OsString::from_vec(bytes);
            }
            let mut command = TokioCommand::new(shell);
            command.arg("-c").arg(line);
            command
        }
        Command::Argv(argv) if fault == Some(Fault::UsesAShellForArguments) => {
            let mut command = TokioCommand::new(shell);
            command.arg("-c").arg(argv.join(" ".as_ref()));
            command
        }
        Command::Argv(argv) => {
            let program = argv.first().filter(|program| !program.is_empty());
            let program = program.ok_or_else(|| {
                SandboxError::new(SandboxErrorKind::InvalidInput, "there is no program")
            })?;
            let mut command = TokioCommand::new(program);
            let most = match fault {
                Some(Fault::CutsLongCommands) => 1000,
                _ => usize::MAX,
            };
            command.args(argv[1..].iter().take(most));
            command
        }
    };
    if fault != Some(Fault::LeaksTheEnvironment) {
        command.env_clear();
    }
    command
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("HOME", &sandbox.root);
    for (name, value) in &sandbox.environment {
        command.env(name, value.expose());
    }
    if fault != Some(Fault::ForgetsTheEnvironment) {
        for (name, value) in &request.environment {
            command.env(name, value.expose());
        }
    }
    let tags = format!(
        "{} {} {tag}",
        sandbox.state.tags.backend, sandbox.state.tags.sandbox
    );
    command.env("REFERENCE_TAGS", tags);
    let input = match request.stdin {
        Stdin::Null if fault != Some(Fault::LeavesInputOpen) => Stdio::null(),
        _ => Stdio::piped(),
    };
    command
        .stdin(input)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(fault != Some(Fault::ForgetsDroppedProcesses));
    Ok(command)
}

async fn feed(
    child: &mut Child,
    request: &SpawnRequest,
    fault: Option<Fault>,
    tasks: &mut JoinSet<()>,
) -> Result<Option<ChildStdin>, SandboxError> {
    let Some(mut stdin) = child.stdin.take() else {
        return Ok(None);
    };
    let Stdin::Bytes(bytes) = &request.stdin else {
        return Ok(Some(stdin));
    };
    let bytes = bytes.clone();
    let write = async move { stdin.write_all(&bytes).await };
    if fault == Some(Fault::WritesAllInputFirst) {
        let failed = |error| SandboxError::io("failed to write to the command", error);
        write.await.map_err(failed)?;
    } else {
        // The command may close its stdin early.
        tasks.spawn(async move { drop(write.await) });
    }
    Ok(None)
}

fn spill_writer(sandbox: &Local, spill: Spill) -> Result<SpillWriter, SandboxError> {
    let name = format!(".output-{}", unique_id());
    let file = File::create(sandbox.root.join(&name));
    let mut options = spill;
    if sandbox.state.fault == Some(Fault::SpillsWithoutACap) {
        options.cap_bytes = u64::MAX;
    }
    Ok(SpillWriter {
        options,
        file: file.map_err(|error| SandboxError::io("failed to spill", error))?,
        path: sandbox
            .info
            .working_directory
            .join(match sandbox.state.fault {
                Some(Fault::SpillsElsewhere) => "elsewhere",
                _ => &name,
            })?,
        size: 0,
        everything: sandbox.state.fault == Some(Fault::SpillsEverything),
    })
}

/// Supervises a command until its end.
struct Driver {
    fault: Option<Fault>,
    child: Child,
    id: u32,
    tag: String,
    sandbox_tag: String,
    limit: Option<Duration>,
    request: SpawnRequest,
    started: Instant,
    ended: watch::Sender<bool>,
    channels: Vec<(Counter, oneshot::Receiver<Option<SpillFile>>)>,
}

impl Driver {
    async fn run(mut self) -> Exit {
        let limit = self
            .limit
            .filter(|_| self.fault != Some(Fault::IgnoresTimeouts));
        let grace = self.request.grace;
        let never = self.started + Duration::from_secs(1_000_000);
        let term_at = limit.map_or(never, |limit| match self.fault {
            Some(Fault::SubtractsTheGraceFromTheTimeout) => {
                self.started + limit.saturating_sub(grace)
            }
            _ => self.started + limit,
        });
        let cancellation = self.request.cancellation.clone();
        let cancelled = async {
            cancellation.cancelled().await;
            if self.fault == Some(Fault::IgnoresCancellation) {
                pending::<()>().await;
            }
        };
        let stopped = tokio::select! {
            status = self.child.wait() => Err(status.unwrap()),
            () = sleep_until(term_at) => Ok(ExitStatus::TimedOut { limit: limit.unwrap_or_default() }),
            () = cancelled => Ok(ExitStatus::Cancelled),
        };
        let own_end = stopped.is_err();
        let status = match stopped {
            Err(status) => self.own(status),
            Ok(status) => {
                self.stop(grace).await;
                status
            }
        };
        let duration = match self.fault {
            Some(Fault::ReportsNoDuration) => Duration::ZERO,
            _ => self.started.elapsed(),
        };
        let mut background = Vec::new();
        if own_end && self.request.background == Background::Keep {
            background = self.left();
        } else if self.fault != Some(Fault::WaitsForPipeEof) && !self.keeps_all() {
            self.kill();
        }
        let _ = self.ended.send(true);
        let mut exit = Exit::new(status, duration);
        // Unread output must not delay the exit of a stopped command.
        let patience = if own_end {
            Duration::from_secs(1000)
        } else {
            Duration::from_millis(300)
        };
        let until = Instant::now() + patience;
        let lost = !own_end && self.fault == Some(Fault::BuffersEverything);
        let mut reports = Vec::new();
        for (total, spilled) in &mut self.channels {
            let spilled = if lost {
                None
            } else {
                timeout_at(until, spilled).await.ok()
            };
            let spilled = spilled.and_then(Result::ok).flatten();
            reports.push(ChannelReport::new(total.load(Ordering::SeqCst), spilled));
        }
        exit.stderr = reports.pop().unwrap();
        exit.stdout = reports.pop().unwrap();
        exit.background = background;
        if self.fault == Some(Fault::WaitsForPipeEof) {
            self.kill();
        }
        exit
    }

    fn own(&self, status: StdStatus) -> ExitStatus {
        match (status.code(), status.signal()) {
            (Some(_), _) if self.fault == Some(Fault::LosesTheExitCode) => ExitStatus::Code(0),
            (None, Some(signal)) if self.fault != Some(Fault::ReportsSignalsAsCodes) => {
                ExitStatus::Signal(signal)
            }
            (code, signal) => ExitStatus::Code(code.unwrap_or(128 + signal.unwrap_or_default())),
        }
    }

    /// Reports whether a stopped command keeps its background processes.
    fn keeps_all(&self) -> bool {
        let keeps = self.request.background == Background::Keep;
        keeps && self.fault == Some(Fault::KeepsTimedOutBackground)
    }

    /// Sends SIGTERM, waits for the grace, then sends SIGKILL.
    async fn stop(&mut self, mut grace: Duration) {
        if self.fault == Some(Fault::KillsAtTheTimeout) {
            grace = Duration::ZERO;
        }
        let victims = match self.fault {
            _ if self.keeps_all() => Vec::new(),
            Some(Fault::KillsOnlyTheLeader) => vec![Pid::from_raw(self.id.cast_signed()).unwrap()],
            Some(Fault::KillsEverythingOnTimeout) => tagged(&self.sandbox_tag),
            _ => tagged(&self.tag),
        };
        for pid in victims {
            let _ = kill_process(pid, Signal::TERM);
            let _ = kill_process(pid, Signal::CONT);
        }
        let _ = timeout(grace, self.child.wait()).await;
        if !self.keeps_all() {
            self.kill();
        }
        let _ = self.child.start_kill();
        let _ = self.child.wait().await;
    }

    fn kill(&self) {
        if self.fault != Some(Fault::KillsOnlyTheLeader) {
            kill_tagged(&self.tag);
        }
    }

    fn left(&self) -> Vec<BackgroundProcess> {
        if self.fault == Some(Fault::ListsNoBackground) {
            return Vec::new();
        }
        let listed = tagged(&self.tag).into_iter().map(|pid| {
            let pid = pid.as_raw_nonzero().get();
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            BackgroundProcess::new(pid.cast_unsigned(), line)
        });
        listed.collect()
    }
}

/// Handle of a command, which owns its tasks.
struct Running {
    fault: Option<Fault>,
    minimal: bool,
    stream: Arc<Semaphore>,
    gone: watch::Receiver<bool>,
    id: u32,
    tag: String,
    output: Option<mpsc::Receiver<Result<cantle_core::sandbox::OutputChunk, SandboxError>>>,
    stdin: Option<ChildStdin>,
    exit: watch::Receiver<Option<Exit>>,
    tasks: JoinSet<()>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.tasks.abort_all();
        if self.exit.borrow().is_some() || self.fault == Some(Fault::ForgetsDroppedProcesses) {
            return;
        }
        if self.fault != Some(Fault::KillsOnlyTheLeader) {
            kill_tagged(&self.tag);
        }
    }
}

#[async_trait]
impl Process for Running {
    fn id(&self) -> Option<u32> {
        Some(self.id).filter(|_| !self.minimal)
    }

    fn take_output(&mut self) -> Option<OutputStream> {
        let output = self.output.take()?;
        Some(Box::pin(stream::unfold(output, |mut output| async move {
            output.recv().await.map(|chunk| (chunk, output))
        })))
    }

    fn take_stdin(&mut self) -> Option<Box<dyn ProcessStdin>> {
        let stdin = self.stdin.take()?;
        Some(Box::new(Input {
            stdin: Some(stdin),
            fault: self.fault,
            stream: Arc::clone(&self.stream),
        }))
    }

    async fn signal(&mut self, signal: cantle_core::sandbox::Signal) -> Result<(), SandboxError> {
        if self.minimal {
            return Err(SandboxError::unsupported("there are no signals here"));
        }
        if self.fault == Some(Fault::SharesOneStream) {
            let _ = self.stream.acquire().await;
        }
        if self.exit.borrow().is_none()
            && let Some(signal) = Signal::from_named_raw(signal.as_raw())
            && let Some(pid) = Pid::from_raw(self.id.cast_signed())
        {
            let _ = kill_process_group(pid, signal);
        }
        Ok(())
    }

    async fn resize(&mut self, _: PtySize) -> Result<(), SandboxError> {
        Err(SandboxError::unsupported("the command has no terminal"))
    }

    fn take_notes(&mut self) -> Vec<String> {
        Vec::new()
    }

    async fn wait(&mut self) -> Result<Exit, SandboxError> {
        // The command no longer reads it.
        self.output = None;
        let ended = self.exit.wait_for(Option::is_some).await;
        let exit = ended.ok().and_then(|ended| ended.clone());
        if *self.gone.borrow() {
            if self.fault == Some(Fault::HangsWhenKilled) {
                pending::<()>().await;
            }
            return Err(SandboxError::gone("the sandbox was killed"));
        }
        exit.ok_or_else(|| SandboxError::gone("the command's task ended"))
    }
}

struct Input {
    stdin: Option<ChildStdin>,
    fault: Option<Fault>,
    stream: Arc<Semaphore>,
}

impl Drop for Input {
    fn drop(&mut self) {
        if self.fault == Some(Fault::LeavesInputOpen) {
            std::mem::forget(self.stdin.take());
        }
    }
}

#[async_trait]
impl ProcessStdin for Input {
    async fn write(&mut self, data: Bytes) -> Result<(), SandboxError> {
        let _turn = match self.fault {
            Some(Fault::SharesOneStream) => self.stream.acquire().await.ok(),
            _ => None,
        };
        let written = self.stdin.as_mut().unwrap().write_all(&data).await;
        if written.is_err() && self.fault == Some(Fault::WaitsForBlockedInput) {
            pending::<()>().await;
        }
        written.map_err(|error| SandboxError::io("failed to write to the command", error))
    }
}
