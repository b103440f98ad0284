//! The interface between the driver and a backend.

use std::future::{Future, pending, ready};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use bytes::Bytes;
use cantle_core::policy::PolicyField;
use cantle_core::sandbox::{
    BackgroundProcess, ByteStream, Channel, Exit, ExitStatus, FileInfo, FileKind, PtySize,
    SandboxError, SandboxErrorKind, SandboxPath, Signal,
};
use tokio::sync::mpsc;

/// Control over one started command.
///
/// Orders are sent without waiting for their effect, which shows in the [`Reports`]. An order to a
/// command that has ended, or whose sandbox is gone, does nothing.
pub trait Transport: Send + Sync + 'static {
    /// Reports about the command's processes.
    type Reports: Reports;
    /// An output channel.
    type Output: OutputChannel;
    /// The input.
    type Input: InputChannel;

    /// Whether each output channel ends soon after the command, even if a background process holds it
    /// open. Without this guarantee the driver stops reading when no output has come for a while.
    const CHANNELS_END: bool = false;

    /// How long killed processes may take to be gone. The command has ended after this time in any case.
    const KILL_DEADLINE: Duration = Duration::from_millis(400);

    /// Sends TERM to all processes of the command.
    fn terminate(&self);

    /// Sends KILL to all processes of the command. Also called where no runtime is available.
    fn kill(&self);

    /// Sends a signal to the process group of the first process.
    ///
    /// # Errors
    /// If the backend can't send signals, or failed to.
    fn signal(&self, signal: Signal) -> impl Future<Output = Result<(), SandboxError>> + Send;

    /// Sets the size of the command's terminal. Not called for a command without one.
    ///
    /// # Errors
    /// If the terminal can't be resized.
    fn resize(&self, size: PtySize) -> impl Future<Output = Result<(), SandboxError>> + Send;

    /// Lists the running processes of the command; empty if the list can't be obtained.
    fn list(&self) -> impl Future<Output = Vec<BackgroundProcess>> + Send;

    /// Checks that the sandbox is still there.
    ///
    /// # Errors
    /// `Closed` if the sandbox was closed, `Gone` if it ended by itself.
    fn check(&self) -> Result<(), SandboxError>;

    /// Number of bytes that were written to a channel, of which the driver has read `read_bytes`.
    fn written_bytes(&self, channel: Channel, read_bytes: u64) -> u64 {
        let _ = channel;
        read_bytes
    }

    /// Waits until the command exceeds a limit that the backend polls; returns the field and the limit.
    fn limit_reached(&self) -> impl Future<Output = (PolicyField, u64)> + Send {
        pending()
    }

    /// Path of the spill file for a channel; `None` if the sandbox has no place for one.
    fn spill_path(&self, channel: Channel) -> Option<SandboxPath>;

    /// Writes `data` to the spill file of a channel, and adds the number of bytes that the file
    /// holds to `written_bytes`. If writing fails, the rest of the data is dropped.
    fn write_spill(
        &self,
        channel: Channel,
        data: ByteStream,
        written_bytes: &AtomicU64,
    ) -> impl Future<Output = ()> + Send;

    /// Takes the notes for the model on the command so far; [`complete`](Self::complete) adds later ones.
    fn take_notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Adds what the backend knows about a command that has ended: a limit that explains its status,
    /// notes for the model.
    fn complete(&self, exit: &mut Exit) -> impl Future<Output = ()> + Send {
        let _ = exit;
        ready(())
    }

    /// Takes over from the driver when a command has ended and left background processes: `outputs`
    /// are the channels that these hold open. Dropping them must not block or signal a writer.
    fn detach(self: Arc<Self>, reports: Self::Reports, outputs: Vec<Self::Output>) {
        drop((reports, outputs));
    }
}

/// A command that a backend has started.
#[derive(Debug)]
#[expect(
    clippy::exhaustive_structs,
    reason = "constructed by backends; everything that makes up a connection"
)]
pub struct StartedCommand<T: Transport> {
    /// Control over the command.
    pub transport: Arc<T>,
    /// Its first process, as seen inside the sandbox.
    pub pid: Option<u32>,
    /// Reports about its processes.
    pub reports: T::Reports,
    /// Standard output, or everything that its terminal shows.
    pub stdout: T::Output,
    /// Standard error; at its end if the command has a terminal.
    pub stderr: T::Output,
    /// Its input, unless that is at its end from the start.
    pub input: Option<T::Input>,
}

/// A change in the processes of a command.
#[derive(Debug)]
#[expect(
    clippy::exhaustive_enums,
    reason = "constructed by backends; the driver handles each"
)]
pub enum Report {
    /// The first process has ended.
    Ended {
        /// Its exit code, or the signal that ended it.
        status: ExitStatus,
        /// Whether no other process of the command is left.
        alone: bool,
    },
    /// The command's end can't be determined; [`wait`](cantle_core::sandbox::Process::wait) returns
    /// this error.
    Lost(SandboxError),
}

/// A source of [`Report`]s.
pub trait Reports: Send + 'static {
    /// Waits for the next report; `None` when nothing of the command is left. Cancel-safe.
    fn next(&mut self) -> impl Future<Output = Option<Report>> + Send;
}

impl Reports for mpsc::UnboundedReceiver<Report> {
    async fn next(&mut self) -> Option<Report> {
        self.recv().await
    }
}

/// One output channel of a command.
pub trait OutputChannel: Send + 'static {
    /// Waits for the next bytes; `None` at the end. An error ends the channel, too. Cancel-safe.
    fn next(&mut self) -> impl Future<Output = Option<Result<Bytes, SandboxError>>> + Send;
}

impl OutputChannel for mpsc::Receiver<Result<Bytes, SandboxError>> {
    async fn next(&mut self) -> Option<Result<Bytes, SandboxError>> {
        self.recv().await
    }
}

/// The input of a command. Dropped, it is closed.
pub trait InputChannel: Send + 'static {
    /// Writes all of `data`, at the pace the command reads it.
    ///
    /// # Errors
    /// `Closed` if the command no longer reads.
    fn write(&mut self, data: Bytes) -> impl Future<Output = Result<(), SandboxError>> + Send;
}

/// Converts a status of `wait(2)`.
#[cfg(unix)]
pub fn exit_status(wait_status: i32) -> ExitStatus {
    use std::os::unix::process::ExitStatusExt as _;

    let status = std::process::ExitStatus::from_raw(wait_status);
    match (status.code(), status.signal()) {
        (Some(code), _) => ExitStatus::Code(code),
        (None, Some(signal)) => ExitStatus::Signal(signal),
        // A stopped process, which has not ended.
        (None, None) => ExitStatus::Code(-1),
    }
}

/// Explains the exit of a command after processes were killed at the memory limit of its sandbox: the limit
/// becomes the status of a command that was killed; another one gets a note.
pub fn explain_oom_kill(exit: &mut Exit, limit: u64) {
    const SIGKILL: i32 = 9;
    /// The exit code of a shell whose last program was killed.
    const KILLED_IN_SHELL: i32 = 128 + SIGKILL;

    match exit.status {
        ExitStatus::Signal(SIGKILL) | ExitStatus::Code(KILLED_IN_SHELL) => {
            let field = PolicyField::Memory;
            exit.status = ExitStatus::LimitReached { field, limit };
        }
        // The command survived: one of its processes was killed.
        _ => exit.notes.push(format!(
            "A process was killed at the limit of memory of the sandbox ({limit} bytes): process the data in \
             pieces, or run fewer processes at once."
        )),
    }
}

/// Parses a line of `stat -c "%f %s"` about `path`: the mode in hexadecimal digits and the size.
#[must_use]
pub fn parse_stat(path: SandboxPath, line: &str) -> Option<FileInfo> {
    let (mode, size_bytes) = line.trim().split_once(' ')?;
    let mode = u32::from_str_radix(mode, 16).ok()?;
    let kind = FileKind::from_mode(mode);
    Some(FileInfo::new(
        path,
        kind,
        size_bytes.parse().ok()?,
        Some(mode & 0o777),
    ))
}

/// Returns the kind of the error that a program reports with this message, in English. The last words count, because
/// programs name the file before the error.
#[must_use]
pub fn kind_of_message(message: &str) -> Option<SandboxErrorKind> {
    let kinds = [
        ("No space left", SandboxErrorKind::StorageFull),
        ("Permission denied", SandboxErrorKind::PermissionDenied),
        ("Read-only file system", SandboxErrorKind::PermissionDenied),
        ("not permitted", SandboxErrorKind::PermissionDenied),
        ("too long", SandboxErrorKind::InvalidInput),
        ("No such file", SandboxErrorKind::NotFound),
        ("File exists", SandboxErrorKind::AlreadyExists),
        ("Not a directory", SandboxErrorKind::NotADirectory),
    ];
    let found = kinds
        .into_iter()
        .filter_map(|(words, kind)| Some((message.rfind(words)?, kind)));
    let last = found.max_by_key(|(position, _)| *position);
    last.map(|(_, kind)| kind)
}

/// Parses a list of processes: for each its id, a space, its command line and a NUL.
pub fn parse_process_list(list: &[u8]) -> Vec<BackgroundProcess> {
    list.split(|byte| *byte == 0)
        .filter_map(|line| BackgroundProcess::parse(&String::from_utf8_lossy(line)))
        .collect()
}
