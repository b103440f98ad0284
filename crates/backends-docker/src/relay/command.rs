//! Commands: the command driver's transport over the relay's stream.

use std::ffi::OsString;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use cantle_command_driver::{
    CommandDriver, DrivenProcess, Launch, OnDrop, OutputChannel, Report, Reports, StartedCommand,
    Transport, exit_status, explain_oom_kill, parse_process_list,
};
use cantle_core::ids::unique_id;
use cantle_core::sandbox::{
    BackgroundProcess, ByteRange, ByteStream, Channel, Command, Exit, PtySize, SandboxError,
    SandboxErrorKind, SandboxPath, Signal, SpawnRequest, Stdin, WriteOptions,
};
use cantle_supervisor::Writer;
use cantle_supervisor::filter;
use cantle_supervisor::frames::{Request, StdioMode};
use cantle_supervisor::wire::{self, FileAccess, Spawn, StartStage};
use futures_util::{StreamExt as _, TryStreamExt as _};
use tokio::sync::mpsc;

use super::stream::{ChannelReader, ChannelState, CommandHandle, InputWriter, Spawned};
use super::{ANSWER_TIMEOUT, Inner, Relay, answer};

/// Files with the number of processes killed at the memory limit, in version 2 and version 1 of control groups.
const OOM_COUNTERS: [&str; 2] = [
    "/sys/fs/cgroup/memory.events",
    "/sys/fs/cgroup/memory/memory.oom_control",
];

/// Starts a command and drives it.
pub(super) async fn start(
    sandbox: &Arc<Inner>,
    request: SpawnRequest,
) -> Result<DrivenProcess<RelayTransport>, SandboxError> {
    let options = &sandbox.options;
    if sandbox.shell.is_none() && matches!(request.command, Command::Shell(_)) {
        return Err(no_shell(&options.shells));
    }
    let mut launch = Launch::new(
        &request,
        options.absolute(&request.directory),
        sandbox.environment.clone(),
        sandbox.shell.as_deref(),
    )?;
    let channels = match (&request.pty, &request.stdin) {
        (Some(_), _) => StdioMode::Terminal,
        (None, Stdin::Null) => StdioMode::Output,
        (None, _) => StdioMode::All,
    };
    let read_only_except = request.read_only_except.as_ref();
    launch.read_only_except = read_only_except.map(|directory| options.absolute(directory));
    let body = body(&launch, &request)?;
    let driver = CommandDriver::new(request, &options.limits);
    let denials = sandbox.proxy.as_ref().map_or(0, |it| it.denials().mark());
    let stream = &sandbox.link.stream;
    let Spawned {
        mut reports,
        stdout,
        stderr,
        input,
        command,
    } = stream.spawn(channels, body)?;
    let guard = OnDrop::new(|| command.kill());
    let name = launch.program.name.to_string_lossy();
    let doing = format!("failed to start `{name}`");
    let pid = match answer(ANSWER_TIMEOUT, &doing, reports.recv()).await? {
        Some(wire::Report::Started { pid }) => {
            guard.disarm();
            pid
        }
        Some(wire::Report::Failed { stage, errno }) => {
            guard.disarm();
            let error = io::Error::from_raw_os_error(errno);
            if launch.read_only_except.is_some() && stage == StartStage::Prepare {
                let message =
                    format!("a command can't be made read-only in this container: {error}");
                let advice = "It needs Landlock 3 (Linux 6.2) and an engine that allows it, and a directory that exists.";
                return Err(SandboxError::unsupported(message).with_advice(advice));
            }
            return Err(launch_error(sandbox, &launch, stage, error));
        }
        Some(wire::Report::Ended { .. }) | None => {
            guard.disarm();
            stream.check()?;
            // The kernel killed the command's keeper, most likely for memory.
            let error = io::ErrorKind::OutOfMemory.into();
            return Err(launch_error(sandbox, &launch, StartStage::Fork, error));
        }
    };
    Ok(driver.drive(StartedCommand {
        transport: Arc::new(RelayTransport {
            sandbox: Arc::downgrade(sandbox),
            command,
            stdout: Arc::clone(&stdout.state),
            stderr: Arc::clone(&stderr.state),
            spill_id: unique_id(),
            oom_kills: sandbox.oom_kills.load(Ordering::Relaxed),
            denials: AtomicU64::new(denials),
        }),
        pid: Some(pid.unsigned_abs()),
        reports: RelayReports(reports),
        stdout,
        stderr,
        input,
    }))
}

fn no_shell(candidates: &[OsString]) -> SandboxError {
    let candidates = candidates.iter().map(|path| path.to_string_lossy());
    let candidates = candidates.collect::<Vec<_>>().join(", ");
    let message = format!("the sandbox has no shell: there is none of {candidates}");
    SandboxError::new(SandboxErrorKind::NotFound, message)
        .with_advice("Give a program and its arguments instead of a command line.")
}

/// Encodes a command for the relay.
fn body(launch: &Launch, request: &SpawnRequest) -> Result<Vec<u8>, SandboxError> {
    let writable = launch.read_only_except_c_string()?;
    let filter = filter::without_metadata_changes();
    let files =
        writable
            .as_ref()
            .map_or(FileAccess::Full, |directory| FileAccess::ReadOnlyExcept {
                directory,
                filter: &filter,
            });
    let (words, variables) = (launch.words()?, launch.variables()?);
    let count = |length| u32::try_from(length).unwrap_or(u32::MAX);
    let programs = launch.program.candidates.len();
    let mut writer = Writer::new();
    writer.write(&Spawn {
        directory: &launch.directory_c_string()?,
        takes_terminal: false,
        terminal: request.pty.map(|size| (size.rows, size.columns)),
        files,
        programs: count(programs),
        arguments: count(words.len() - programs),
        variables: count(variables.len()),
    });
    for text in words.iter().chain(&variables) {
        writer.string(text);
    }
    Ok(writer.into_bytes())
}

/// The error for a start that failed.
fn launch_error(
    sandbox: &Inner,
    launch: &Launch,
    stage: StartStage,
    error: io::Error,
) -> SandboxError {
    let name = launch.program.name.to_string_lossy();
    let directory = &launch.directory;
    match (stage, error.kind()) {
        (StartStage::Execute, _) => launch.program.exec_error(error),
        (StartStage::Directory, io::ErrorKind::NotFound)
            if *directory == sandbox.options.working_directory =>
        {
            SandboxError::gone(format!("the working directory `{directory}` is gone"))
        }
        (StartStage::Directory, io::ErrorKind::CrossesDevices) => {
            let message = format!("failed to start in `{directory}`: it is outside the sandbox");
            SandboxError::new(SandboxErrorKind::OutsideSandbox, message)
        }
        (StartStage::Directory, _) => {
            SandboxError::io(format!("failed to start in `{directory}`"), error)
        }
        (StartStage::Terminal, _) => {
            SandboxError::io(format!("failed to create a terminal for `{name}`"), error)
        }
        (StartStage::Fork | StartStage::Prepare, _) => {
            SandboxError::io(format!("failed to create a process for `{name}`"), error)
        }
    }
}

/// A running command of a relay.
pub(super) struct RelayTransport {
    /// Weak, so that a command does not keep its sandbox open.
    sandbox: Weak<Inner>,
    command: CommandHandle,
    stdout: Arc<ChannelState>,
    stderr: Arc<ChannelState>,
    /// Part of the names of its spill files.
    spill_id: String,
    /// The latest known number of processes killed at the memory limit when it was started.
    oom_kills: u64,
    /// The position in the proxy's log up to which its refusals were taken.
    denials: AtomicU64,
}

impl Transport for RelayTransport {
    type Reports = RelayReports;
    type Output = ChannelReader;
    type Input = InputWriter;

    fn terminate(&self) {
        self.command.send(|id| Request::Terminate { id });
    }

    fn kill(&self) {
        self.command.kill();
    }

    async fn signal(&self, signal: Signal) -> Result<(), SandboxError> {
        let signal = signal.as_raw();
        self.command.send(|id| Request::Signal { id, signal });
        Ok(())
    }

    async fn resize(&self, size: PtySize) -> Result<(), SandboxError> {
        let PtySize { rows, columns } = size;
        self.command
            .send(|id| Request::Resize { id, rows, columns });
        Ok(())
    }

    async fn list(&self) -> Vec<BackgroundProcess> {
        parse_process_list(&self.command.list().await)
    }

    fn check(&self) -> Result<(), SandboxError> {
        self.command.stream.check()
    }

    fn written_bytes(&self, channel: Channel, read_bytes: u64) -> u64 {
        let total = match channel {
            Channel::Stdout => &self.stdout,
            Channel::Stderr => &self.stderr,
        };
        total.total_bytes().max(read_bytes)
    }

    fn spill_path(&self, channel: Channel) -> Option<SandboxPath> {
        let name = format!("output-{}.{}", self.spill_id, channel.as_str());
        let sandbox = self.sandbox.upgrade()?;
        sandbox.options.temporary_directory.join(name).ok()
    }

    async fn write_spill(&self, channel: Channel, data: ByteStream, written_bytes: &AtomicU64) {
        let (Some(path), Some(sandbox)) = (self.spill_path(channel), self.sandbox.upgrade()) else {
            return;
        };
        let size_bytes = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&size_bytes);
        let data = data.inspect(move |bytes| {
            let length = bytes.as_ref().map_or(0, Bytes::len) as u64;
            counter.fetch_add(length, Ordering::Relaxed);
        });
        let relay = Relay { inner: sandbox };
        let written = relay
            .write(&path, WriteOptions::default(), Box::pin(data))
            .await;
        if written.is_ok() {
            written_bytes.store(size_bytes.load(Ordering::Relaxed), Ordering::Release);
        }
    }

    fn take_notes(&self) -> Vec<String> {
        let sandbox = self.sandbox.upgrade();
        let proxy = sandbox.as_ref().and_then(|it| it.proxy.as_ref());
        proxy.map_or_else(Vec::new, |proxy| proxy.denials().take(&self.denials))
    }

    /// Adds the hosts that the proxy has refused, and checks the memory limit: the kernel kills with SIGKILL and gives
    /// no reason.
    async fn complete(&self, exit: &mut Exit) {
        let Some(sandbox) = self.sandbox.upgrade() else {
            return;
        };
        exit.notes.extend(self.take_notes());
        if !exit.status.success()
            && let Some(limit) = sandbox.options.limits.memory_bytes
            && let Some(oom_kills) = count_oom_kills(&sandbox).await
        {
            sandbox.oom_kills.fetch_max(oom_kills, Ordering::Relaxed);
            if oom_kills > self.oom_kills {
                explain_oom_kill(exit, limit);
            }
        }
    }
}

/// Reads from the sandbox's control group how many processes were killed at the memory limit.
async fn count_oom_kills(sandbox: &Arc<Inner>) -> Option<u64> {
    let inner = Arc::clone(sandbox);
    let relay = Relay { inner };
    for counter in OOM_COUNTERS {
        let path = SandboxPath::new(counter).ok()?;
        let Ok(data) = relay.read(&path, ByteRange::new(0, 1000)).await else {
            continue;
        };
        let text = data.try_collect::<Vec<Bytes>>().await.ok()?.concat();
        let text = String::from_utf8_lossy(&text);
        let mut lines = text.lines().filter_map(|line| line.split_once(' '));
        return lines.find(|(name, _)| *name == "oom_kill")?.1.parse().ok();
    }
    None
}

/// The relay's reports about one command; closed when nothing of the command is left.
pub(super) struct RelayReports(mpsc::Receiver<wire::Report>);

impl Reports for RelayReports {
    async fn next(&mut self) -> Option<Report> {
        loop {
            if let wire::Report::Ended { status, alone } = self.0.recv().await? {
                let status = exit_status(status);
                return Some(Report::Ended { status, alone });
            }
        }
    }
}

impl OutputChannel for ChannelReader {
    async fn next(&mut self) -> Option<Result<Bytes, SandboxError>> {
        self.next().await.map(Ok)
    }
}
