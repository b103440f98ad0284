//! Commands: processes with a marker in their environment, by which descendants are found that have left
//! the process group.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use bytes::Bytes;
use cantle_command_driver::{
    CommandDriver, InputChannel, Launch, Report, StartedCommand, Transport, exit_status,
};
use cantle_core::ids::unique_id;
use cantle_core::sandbox::{
    Background, BackgroundProcess, ByteStream, Channel, Process, PtySize, SandboxError,
    SandboxErrorKind, SandboxPath, Signal, SpawnRequest, Stdin,
};
use rustix::process::{Pid, kill_process, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::mpsc;

use crate::Shared;

/// The variable that holds the markers of the sandbox and of the command.
const MARKER: &str = "PLAIN_MARKER";
const CHUNK_BYTES: usize = 65_536;

type OutputReceiver = mpsc::Receiver<Result<Bytes, SandboxError>>;

/// Starts a command and passes it to the driver.
pub(crate) async fn spawn(
    sandbox: &Arc<Shared>,
    request: SpawnRequest,
) -> Result<Box<dyn Process>, SandboxError> {
    if request.read_only_except.is_some() {
        return Err(SandboxError::unsupported("read-only commands are not supported"));
    }
    if request.pty.is_some() || request.spill.is_some() || request.background == Background::Keep {
        let message = "terminals, spilled output and background processes are not supported";
        return Err(SandboxError::unsupported(message));
    }
    let marker = unique_id();
    let child = start(sandbox, &request, &marker)?;
    let piped = request.stdin != Stdin::Null;
    let driver = CommandDriver::new(request, &sandbox.policy.limits);
    Ok(Box::new(driver.drive(connect(sandbox, child, marker, piped)?)))
}

fn start(sandbox: &Shared, request: &SpawnRequest, marker: &str) -> Result<Child, SandboxError> {
    let working_directory = &sandbox.info.working_directory;
    let directory = match request.directory.is_absolute() {
        true => request.directory.clone(),
        false => working_directory.join(request.directory.relative_bytes())?,
    };
    let opened = sandbox.files.directory(&directory)?;
    let mut environment = BTreeMap::new();
    environment.insert("PATH".into(), "/usr/local/bin:/usr/bin:/bin".into());
    environment.insert("HOME".into(), sandbox.directory.path().into());
    for (name, value) in &sandbox.policy.environment {
        environment.insert(name.into(), value.expose().into());
    }
    let launch = Launch::new(request, directory, environment, Some("/bin/bash".as_ref()))?;
    // Checks for NUL bytes.
    drop((launch.words()?, launch.variables()?));

    let mut failure = io::Error::from(io::ErrorKind::NotFound);
    for candidate in &launch.program.candidates {
        let mut command = Command::new(candidate);
        command
            .arg0(&launch.program.name)
            .args(&launch.program.arguments)
            .env_clear()
            .envs(&launch.environment)
            .env(MARKER, format!("{} {marker}", sandbox.marker))
            // The child has this descriptor until it executes the program.
            .current_dir(format!("/proc/self/fd/{}", opened.as_raw_fd()))
            .stdin(if request.stdin == Stdin::Null { Stdio::null() } else { Stdio::piped() })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        match command.spawn() {
            Ok(child) => return Ok(child),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => failure = error,
        }
    }
    Err(launch.program.exec_error(failure))
}

/// Connects the pipes and the end of a process to the driver.
fn connect(
    sandbox: &Arc<Shared>,
    mut child: Child,
    marker: String,
    piped: bool,
) -> Result<StartedCommand<PlainCommand>, SandboxError> {
    let lost = || SandboxError::new(SandboxErrorKind::Io, "the process has no pipes");
    let (stdout, stderr) = child.stdout.take().zip(child.stderr.take()).ok_or_else(lost)?;
    let input = child.stdin.take().filter(|_| piped).map(PipeInput);
    let pid = child.id();
    let transport = Arc::new(PlainCommand { sandbox: Arc::clone(sandbox), marker, pid });
    let (report, reports) = mpsc::unbounded_channel();
    let command = Arc::clone(&transport);
    tokio::spawn(async move {
        let end = match child.wait().await {
            Ok(status) => {
                let alone = !is_running(&command.marker).await;
                Report::Ended { status: exit_status(status.into_raw()), alone }
            }
            Err(error) => Report::Lost(SandboxError::io("failed to wait for the process", error)),
        };
        // A dropped receiver has no use for reports.
        let _ = report.send(end);
        while !report.is_closed() && is_running(&command.marker).await {
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    });
    Ok(StartedCommand { transport, pid, reports, stdout: output(stdout), stderr: output(stderr), input })
}

/// Reads a pipe at the pace of the receiver.
fn output(mut pipe: impl AsyncRead + Unpin + Send + 'static) -> OutputReceiver {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        loop {
            let mut chunk = Vec::with_capacity(CHUNK_BYTES);
            let read = tokio::select! {
                read = pipe.read_buf(&mut chunk) => read,
                () = sender.closed() => return,
            };
            let item = match read {
                Ok(0) => return,
                Ok(_) => Ok(Bytes::from(chunk)),
                Err(error) => Err(SandboxError::io("failed to read the output", error)),
            };
            if sender.send(item).await.is_err() {
                return;
            }
        }
    });
    receiver
}

/// Control over one command.
struct PlainCommand {
    sandbox: Arc<Shared>,
    marker: String,
    pid: Option<u32>,
}

impl Transport for PlainCommand {
    type Reports = mpsc::UnboundedReceiver<Report>;
    type Output = OutputReceiver;
    type Input = PipeInput;

    fn terminate(&self) {
        for pid in marked(&self.marker) {
            let _ = kill_process(pid, rustix::process::Signal::TERM);
            // A stopped process receives TERM when it is continued.
            let _ = kill_process(pid, rustix::process::Signal::CONT);
        }
    }

    fn kill(&self) {
        kill_all(&self.marker);
    }

    async fn signal(&self, signal: Signal) -> Result<(), SandboxError> {
        let group = self.pid.and_then(|pid| Pid::from_raw(pid.cast_signed()));
        let signal = rustix::process::Signal::from_named_raw(signal.as_raw());
        // A group without a marked process may belong to another command by now.
        if let (Some(group), Some(signal)) = (group, signal)
            && !marked(&self.marker).is_empty()
        {
            let _ = kill_process_group(group, signal);
        }
        Ok(())
    }

    async fn resize(&self, _: PtySize) -> Result<(), SandboxError> {
        Err(SandboxError::unsupported("there are no terminals"))
    }

    async fn list(&self) -> Vec<BackgroundProcess> {
        let processes = marked(&self.marker).into_iter();
        processes.map(|pid| BackgroundProcess::new(pid.as_raw_nonzero().get().unsigned_abs(), "")).collect()
    }

    fn check(&self) -> Result<(), SandboxError> {
        self.sandbox.check()
    }

    fn spill_path(&self, _: Channel) -> Option<SandboxPath> {
        None
    }

    async fn write_spill(&self, _: Channel, _: ByteStream, _: &AtomicU64) {}
}

/// The standard input of a process.
struct PipeInput(ChildStdin);

impl InputChannel for PipeInput {
    async fn write(&mut self, data: Bytes) -> Result<(), SandboxError> {
        self.0.write_all(&data).await.map_err(|_| {
            SandboxError::new(SandboxErrorKind::Closed, "the command no longer reads its input")
        })
    }
}

/// Returns whether there are processes with a marker. Looks for them beside the runtime's threads, which read the output
/// meanwhile.
async fn is_running(marker: &str) -> bool {
    let marker = marker.to_owned();
    let looking = tokio::task::spawn_blocking(move || !marked(&marker).is_empty());
    looking.await.unwrap_or(true)
}

/// Finds the processes with a marker in their environment. A process that has ended has none.
fn marked(marker: &str) -> Vec<Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| is_marked(*pid, marker)).filter_map(Pid::from_raw).collect()
}

fn is_marked(pid: i32, marker: &str) -> bool {
    let read = |name| fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
    // While a process replaces its program, its environment and its command line are empty.
    // The bound is for processes that have cleared both.
    let mut with_command_line = 0;
    for _ in 0..1_000 {
        let environment = read("environ");
        if !environment.is_empty() {
            return environment.windows(marker.len()).any(|window| window == marker.as_bytes());
        }
        with_command_line += u32::from(!read("cmdline").is_empty());
        let runs = fs::read_link(format!("/proc/{pid}/exe")).is_ok();
        if !runs || with_command_line == 2 {
            return false;
        }
        std::thread::yield_now();
    }
    false
}

/// Kills the processes with a marker and those that they start concurrently.
pub(crate) fn kill_all(marker: &str) {
    loop {
        let found = marked(marker);
        if found.is_empty() {
            return;
        }
        for pid in found {
            let _ = kill_process(pid, rustix::process::Signal::KILL);
        }
        std::thread::yield_now();
    }
}
