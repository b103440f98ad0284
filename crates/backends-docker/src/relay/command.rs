//! Commands: the command driver's transport over the relay's stream.

use std::ffi::OsString;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use cantle_command_driver::{
    CommandDriver, CommandLimits, DrivenProcess, InputChannel, Launch, OutputChannel, Report,
    Reports, StartGuard, StartedCommand, Transport, exit_status, parse_process_list,
};
use cantle_core::ids::unique_id;
use cantle_core::sandbox::{
    BackgroundProcess, ByteStream, Channel, Command, PtySize, SandboxError, SandboxErrorKind,
    SandboxPath, Signal, SpawnRequest, Stdin, WriteOptions,
};
use cantle_supervisor::Writer;
use cantle_supervisor::frames::StdioMode;
use cantle_supervisor::wire::{self, Spawn, StartStage};
use futures_util::StreamExt as _;
use tokio::sync::mpsc;

use super::Inner;
use super::inbox::{ChannelReader, ChannelTotal, CommandHandle, InputWriter, Spawned};

/// Starts a command and drives it.
pub(super) async fn start(
    sandbox: &Arc<Inner>,
    request: SpawnRequest,
) -> Result<DrivenProcess<RelayTransport>, SandboxError> {
    let options = &sandbox.options;
    if sandbox.shell.is_none() && matches!(request.command, Command::Shell(_)) {
        return Err(no_shell(&options.shells));
    }
    let launch = Launch::new(
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
    let limits = CommandLimits {
        wall_time: options.limits.wall_time,
        output_bytes: options.limits.output_bytes,
    };
    let body = body(&launch, &request)?;
    let driver = CommandDriver::new(request, limits);
    let stream = &sandbox.link.stream;
    let Spawned {
        mut reports,
        output,
        errors,
        input,
        command,
    } = stream.spawn(channels, body)?;
    let guard = StartGuard::new(|| command.kill());
    let pid = match reports.recv().await {
        Some(wire::Report::Started { pid }) => {
            guard.disarm();
            pid
        }
        Some(wire::Report::Failed { stage, errno }) => {
            guard.disarm();
            let error = io::Error::from_raw_os_error(errno);
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
            stdout: output.total(),
            stderr: errors.total(),
            spill_id: unique_id(),
        }),
        pid: Some(pid.unsigned_abs()),
        reports: RelayReports(reports),
        stdout: output,
        stderr: errors,
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
    let (words, variables) = (launch.words()?, launch.variables()?);
    let count = |length| u32::try_from(length).unwrap_or(u32::MAX);
    let programs = launch.program.candidates.len();
    let mut writer = Writer::new();
    writer.write(&Spawn {
        directory: &launch.directory_c_string()?,
        takes_terminal: false,
        terminal: request.pty.map(|size| (size.rows, size.columns)),
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
    stdout: ChannelTotal,
    stderr: ChannelTotal,
    /// Part of the names of its spill files.
    spill_id: String,
}

impl Transport for RelayTransport {
    type Reports = RelayReports;
    type Output = ChannelReader;
    type Input = InputWriter;

    fn terminate(&self) {
        self.command.terminate();
    }

    fn kill(&self) {
        self.command.kill();
    }

    async fn signal(&self, signal: Signal) -> Result<(), SandboxError> {
        self.command.signal(signal.as_raw());
        Ok(())
    }

    async fn resize(&self, size: PtySize) -> Result<(), SandboxError> {
        self.command.resize(size.rows, size.columns);
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
        total.bytes().max(read_bytes)
    }

    fn spill_path(&self, channel: Channel) -> Option<SandboxPath> {
        let name = match channel {
            Channel::Stdout => "stdout",
            Channel::Stderr => "stderr",
        };
        let sandbox = self.sandbox.upgrade()?;
        let directory = &sandbox.options.temporary_directory;
        directory
            .join(format!("output-{}.{name}", self.spill_id))
            .ok()
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
        let written = sandbox
            .write(&path, WriteOptions::default(), Box::pin(data))
            .await;
        if written.is_ok() {
            written_bytes.store(size_bytes.load(Ordering::Relaxed), Ordering::Release);
        }
    }
}

/// The relay's reports about one command; closed when nothing of the command is left.
pub(super) struct RelayReports(mpsc::UnboundedReceiver<wire::Report>);

impl Reports for RelayReports {
    async fn next(&mut self) -> Option<Report> {
        loop {
            if let wire::Report::Ended { status, alone, .. } = self.0.recv().await? {
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

impl InputChannel for InputWriter {
    async fn write(&mut self, data: Bytes) -> Result<(), SandboxError> {
        self.write(data).await
    }
}
