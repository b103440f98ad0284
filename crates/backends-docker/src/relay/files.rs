//! File operations through the relay: each is a task, a command that executes no program.

use std::ffi::{CString, OsString};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use cantle_core::policy::PolicyField;
use cantle_core::sandbox::{
    ByteRange, ByteStream, FileInfo, FileKind, SandboxError, SandboxErrorKind, SandboxPath,
    WriteOptions,
};
use cantle_supervisor::Writer;
use cantle_supervisor::frames::StdioMode;
use cantle_supervisor::tasks::{Entry, EntryKind, Task, TaskError, TaskErrorKind};
use cantle_supervisor::wire::{Reader, Report, Spawn};
use futures_util::{StreamExt as _, stream};
use tokio::select;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::Inner;
use super::inbox::{InputWriter, Spawned};
use super::link::Stream;
use super::options::{c_path, c_string};

/// Shorter chunks are buffered before they are sent.
const CHUNK_BYTES: usize = 64 * 1024;

/// Time limit for a task to end after its output has ended.
const TASK_END_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum length of an encoded [`TaskError`].
const MAX_ERROR_BYTES: usize = 4096;

/// Maximum concurrent tasks of each kind.
const MAX_TASKS: usize = 64;

/// Limits of concurrent tasks, because the relay's number of commands is limited.
///
/// Writes have their own limit: a write may wait for the data of a read.
#[derive(Debug)]
pub(super) struct TaskLimits {
    pub(super) reads: Arc<Semaphore>,
    pub(super) writes: Arc<Semaphore>,
    others: Arc<Semaphore>,
}

impl TaskLimits {
    pub(super) fn new() -> Self {
        let limit = || Arc::new(Semaphore::new(MAX_TASKS));
        Self {
            reads: limit(),
            writes: limit(),
            others: limit(),
        }
    }
}

impl Inner {
    /// Returns the first candidate that can be executed.
    pub(super) async fn find_shell(&self) -> Result<Option<OsString>, SandboxError> {
        let shells = &self.options.shells;
        let names: Vec<CString> = shells
            .iter()
            .map(|it| c_string(it))
            .collect::<Result<_, _>>()?;
        let count = u32::try_from(names.len()).unwrap_or(u32::MAX);
        let body = encode_task(&Task::FindProgram { count }, &names);
        let found = self
            .run_task("look for a shell in", &working_directory(), body)
            .await?;
        let number = Reader::new(&found).read::<u32>();
        Ok(number.and_then(|number| shells.get(number as usize).cloned()))
    }

    pub(super) async fn read(
        &self,
        path: &SandboxPath,
        range: ByteRange,
    ) -> Result<ByteStream, SandboxError> {
        let task = Task::Read {
            path: &c_path(&self.options.absolute(path))?,
            offset: range.offset,
            length: range.length.unwrap_or(u64::MAX),
        };
        let limit = &self.task_limits.reads;
        let mut running = self
            .start_task(
                limit,
                "read",
                path,
                encode_task(&task, &[]),
                StdioMode::Output,
            )
            .await?;
        let first = running.spawned.output.next().await;
        if first.is_none() {
            running.finish().await?;
            return Ok(Box::pin(stream::empty()));
        }
        Ok(output_stream(first, running))
    }

    pub(super) async fn write(
        &self,
        path: &SandboxPath,
        options: WriteOptions,
        mut data: ByteStream,
    ) -> Result<(), SandboxError> {
        let task = Task::Write {
            path: &c_path(&self.options.absolute(path))?,
            mode: options.mode & 0o777,
        };
        let limit = &self.task_limits.writes;
        let mut running = self
            .start_task(
                limit,
                "write",
                path,
                encode_task(&task, &[]),
                StdioMode::All,
            )
            .await?;
        let Some(input) = running.spawned.input.take() else {
            return Err(running.stream().gone_error());
        };
        running.write_data(input, path, options, &mut data).await
    }

    pub(super) async fn stat(&self, path: &SandboxPath) -> Result<FileInfo, SandboxError> {
        let task = Task::Stat {
            path: &c_path(&self.options.absolute(path))?,
        };
        let found = self
            .run_task("look at", path, encode_task(&task, &[]))
            .await?;
        let entry = Reader::new(&found)
            .read::<Entry<'_>>()
            .ok_or_else(|| invalid_answer(path))?;
        Ok(file_info(path.clone(), &entry))
    }

    pub(super) async fn list(&self, path: &SandboxPath) -> Result<Vec<FileInfo>, SandboxError> {
        let task = Task::List {
            path: &c_path(&self.options.absolute(path))?,
        };
        let found = self.run_task("list", path, encode_task(&task, &[])).await?;
        let mut reader = Reader::new(&found);
        let mut entries = Vec::new();
        while !reader.is_empty() {
            let entry = reader
                .read::<Entry<'_>>()
                .ok_or_else(|| invalid_answer(path))?;
            entries.push(file_info(SandboxPath::new(entry.name)?, &entry));
        }
        entries.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(entries)
    }

    pub(super) async fn mkdir(&self, path: &SandboxPath) -> Result<(), SandboxError> {
        let task = Task::MakeDirectory {
            path: &c_path(&self.options.absolute(path))?,
        };
        self.run_task("make", path, encode_task(&task, &[]))
            .await
            .map(drop)
    }

    pub(super) async fn remove(&self, path: &SandboxPath) -> Result<(), SandboxError> {
        self.refuse_fixed("remove", path)?;
        let task = Task::Remove {
            path: &c_path(&self.options.absolute(path))?,
        };
        self.run_task("remove", path, encode_task(&task, &[]))
            .await
            .map(drop)
    }

    pub(super) async fn rename(
        &self,
        from: &SandboxPath,
        to: &SandboxPath,
    ) -> Result<(), SandboxError> {
        self.refuse_fixed("move", from)?;
        self.refuse_fixed("move to", to)?;
        let task = Task::Rename {
            from: &c_path(&self.options.absolute(from))?,
            to: &c_path(&self.options.absolute(to))?,
        };
        self.run_task("move", from, encode_task(&task, &[]))
            .await
            .map(drop)
    }

    /// Refuses to remove or rename the fixed directories of a sandbox.
    fn refuse_fixed(&self, doing: &str, path: &SandboxPath) -> Result<(), SandboxError> {
        let absolute = self.options.absolute(path);
        let options = &self.options;
        let fixed = [
            &options.working_directory,
            &options.temporary_directory,
            &options.root,
        ];
        if fixed.contains(&&absolute) || absolute.is_base() {
            let message =
                format!("failed to {doing} `{path}`: it is a fixed directory of the sandbox");
            return Err(SandboxError::new(SandboxErrorKind::InvalidInput, message));
        }
        Ok(())
    }

    /// Runs a task and returns its output.
    async fn run_task(
        &self,
        doing: &'static str,
        path: &SandboxPath,
        body: Vec<u8>,
    ) -> Result<Bytes, SandboxError> {
        let limit = &self.task_limits.others;
        let mut running = self
            .start_task(limit, doing, path, body, StdioMode::Output)
            .await?;
        let mut output = BytesMut::new();
        while let Some(chunk) = running.spawned.output.next().await {
            output.extend_from_slice(&chunk);
        }
        running.finish().await?;
        Ok(output.freeze())
    }

    async fn start_task(
        &self,
        limit: &Arc<Semaphore>,
        doing: &'static str,
        path: &SandboxPath,
        body: Vec<u8>,
        stdio: StdioMode,
    ) -> Result<RunningTask, SandboxError> {
        let stream = &self.link.stream;
        let permit = Arc::clone(limit).acquire_owned().await;
        let permit = permit.map_err(|_| stream.gone_error())?;
        Ok(RunningTask {
            spawned: stream.spawn(stdio, body)?,
            doing,
            path: path.clone(),
            is_working_directory: self.options.absolute(path) == self.options.working_directory,
            kill_on_drop: true,
            end: None,
            _permit: permit,
        })
    }
}

/// Returns a task's output, after `first`, and its error at the end.
fn output_stream(first: Option<Bytes>, running: RunningTask) -> ByteStream {
    Box::pin(stream::unfold(Some((first, running)), async |state| {
        let (ready, mut running) = state?;
        let chunk = match ready {
            Some(chunk) => Some(chunk),
            None => running.spawned.output.next().await,
        };
        match chunk {
            Some(chunk) => Some((Ok(chunk), Some((None, running)))),
            None => match running.finish().await {
                Ok(()) => None,
                Err(error) => Some((Err(error), None)),
            },
        }
    }))
}

fn working_directory() -> SandboxPath {
    SandboxPath::working_directory()
}

/// A running task, killed on drop unless it cleans up by itself.
struct RunningTask {
    spawned: Spawned,
    doing: &'static str,
    path: SandboxPath,
    is_working_directory: bool,
    /// Whether it is killed on drop.
    kill_on_drop: bool,
    /// The last report, or that there was none.
    end: Option<Result<Report, TaskEnded>>,
    _permit: OwnedSemaphorePermit,
}

impl RunningTask {
    /// Waits until the task has ended. Cancel-safe.
    async fn wait(&mut self) {
        while self.end.is_none() {
            self.end = match self.spawned.reports.recv().await {
                Some(Report::Started { .. }) => None,
                Some(report) => Some(Ok(report)),
                None => Some(Err(TaskEnded)),
            };
        }
    }

    /// Sends the data to a write task and waits for its end.
    async fn write_data(
        &mut self,
        input: InputWriter,
        path: &SandboxPath,
        options: WriteOptions,
        data: &mut ByteStream,
    ) -> Result<(), SandboxError> {
        // An aborted write ends the input early, upon which the task cleans up.
        self.kill_on_drop = false;
        let mut chunks = ChunkWriter::new(input);
        let mut total_bytes = 0;
        let sent = loop {
            let next = select! {
                biased;
                () = self.wait() => break Ok(()),
                next = data.next() => next.transpose(),
            };
            let sent = match next {
                Err(error) => break Err(error),
                Ok(next) => {
                    let is_last = next.is_none();
                    let bytes = next.unwrap_or_default();
                    total_bytes += bytes.len() as u64;
                    if let Err(error) = check_size(path, options, total_bytes, is_last) {
                        break Err(error);
                    }
                    if is_last {
                        chunks.finish().await.and(Err(TaskEnded))
                    } else {
                        chunks.push(bytes).await
                    }
                }
            };
            if sent.is_err() {
                // The task's end tells whether the file was written.
                break Ok(());
            }
        };
        // Without the last chunk nothing is written.
        drop(chunks);
        let ended = self.finish().await;
        sent.and(ended)
    }

    /// Waits for the task's end and returns its error.
    async fn finish(&mut self) -> Result<(), SandboxError> {
        let ending = async {
            let mut encoded = Vec::new();
            while let Some(chunk) = self.spawned.errors.next().await {
                if encoded.len() < MAX_ERROR_BYTES {
                    encoded.extend_from_slice(&chunk);
                }
            }
            self.wait().await;
            encoded
        };
        let encoded = timeout(TASK_END_TIMEOUT, ending).await.map_err(|_| {
            let error = io::ErrorKind::TimedOut.into();
            SandboxError::io(format!("failed to {} `{}`", self.doing, self.path), error)
        })?;
        self.kill_on_drop = false;
        match self.end {
            Some(Ok(Report::Ended { status: 0, .. })) => Ok(()),
            Some(Ok(Report::Failed { errno, .. })) => Err(self.error(&TaskError {
                kind: TaskErrorKind::Errno,
                errno,
                name: b"",
            })),
            Some(Ok(_)) => Err(match Reader::new(&encoded).read::<TaskError<'_>>() {
                Some(error) => self.error(&error),
                None => self.error(&TaskError {
                    kind: TaskErrorKind::Errno,
                    errno: errno::INTR,
                    name: b"",
                }),
            }),
            Some(Err(TaskEnded)) | None => Err(self.stream().gone_error()),
        }
    }

    fn stream(&self) -> &Stream {
        &self.spawned.command.stream
    }

    /// Converts the task's error.
    fn error(&self, error: &TaskError<'_>) -> SandboxError {
        let (doing, path) = (self.doing, &self.path);
        let source = || io::Error::from_raw_os_error(error.errno);
        let with_reason = |kind, reason: &str| {
            SandboxError::new(kind, format!("failed to {doing} `{path}`: {reason}"))
                .with_source(source())
        };
        match (error.kind, error.errno) {
            (TaskErrorKind::NotAFile, _) | (TaskErrorKind::Errno, errno::NXIO | errno::NODEV) => {
                with_reason(SandboxErrorKind::NotAFile, "it is not a regular file")
            }
            (TaskErrorKind::AlreadyExists, _) => with_reason(
                SandboxErrorKind::AlreadyExists,
                "the destination already exists",
            ),
            (TaskErrorKind::Errno, errno::FBIG) => {
                let field = PolicyField::FileSize;
                let reason = format!("it is larger than the policy's {field} allows");
                with_reason(SandboxErrorKind::StorageFull, &reason)
            }
            (TaskErrorKind::Outside, _) => {
                let outside = "the path leads out of the sandbox";
                with_reason(SandboxErrorKind::OutsideSandbox, outside)
                    .with_advice("Use a path relative to the working directory.")
            }
            (TaskErrorKind::Errno, errno::LOOP) => {
                with_reason(SandboxErrorKind::NotFound, "it contains a cycle of links")
            }
            (TaskErrorKind::Errno, errno::NOENT) if self.is_working_directory => {
                SandboxError::gone(format!(
                    "failed to {doing} `{path}`: the working directory is gone"
                ))
            }
            (TaskErrorKind::NotEmpty, _) => {
                let name = String::from_utf8_lossy(error.name);
                let message = format!("failed to {doing} `{path}`: it still contains `{name}`");
                SandboxError::io(message, source())
            }
            (TaskErrorKind::Errno | TaskErrorKind::Incomplete, _) => {
                SandboxError::io(format!("failed to {doing} `{path}`"), source())
            }
        }
    }
}

impl Drop for RunningTask {
    fn drop(&mut self) {
        if self.kill_on_drop {
            self.spawned.command.kill();
        }
    }
}

/// The task has ended and reads no more input.
#[derive(Clone, Copy, Debug)]
struct TaskEnded;

/// Sends a file as chunks, each with its length; an empty chunk is the last.
struct ChunkWriter {
    input: InputWriter,
    buffer: BytesMut,
}

impl ChunkWriter {
    fn new(input: InputWriter) -> Self {
        let buffer = BytesMut::new();
        Self { input, buffer }
    }

    async fn push(&mut self, bytes: Bytes) -> Result<(), TaskEnded> {
        if bytes.len() >= CHUNK_BYTES {
            self.flush().await?;
            return self.send(bytes).await;
        }
        self.buffer.extend_from_slice(&bytes);
        if self.buffer.len() >= CHUNK_BYTES {
            self.flush().await?;
        }
        Ok(())
    }

    async fn finish(&mut self) -> Result<(), TaskEnded> {
        self.flush().await?;
        self.send_length(0).await
    }

    async fn flush(&mut self) -> Result<(), TaskEnded> {
        let buffered = self.buffer.split().freeze();
        if buffered.is_empty() {
            return Ok(());
        }
        self.send(buffered).await
    }

    async fn send(&mut self, mut bytes: Bytes) -> Result<(), TaskEnded> {
        while !bytes.is_empty() {
            let chunk = bytes.split_to(bytes.len().min(u32::MAX as usize));
            self.send_length(u32::try_from(chunk.len()).unwrap_or(u32::MAX))
                .await?;
            self.input.write(chunk).await.map_err(|_| TaskEnded)?;
        }
        Ok(())
    }

    async fn send_length(&mut self, length: u32) -> Result<(), TaskEnded> {
        let length = Bytes::copy_from_slice(&length.to_le_bytes());
        self.input.write(length).await.map_err(|_| TaskEnded)
    }
}

fn check_size(
    path: &SandboxPath,
    options: WriteOptions,
    total_bytes: u64,
    is_complete: bool,
) -> Result<(), SandboxError> {
    match options.size_bytes {
        Some(size) if total_bytes > size || (is_complete && total_bytes < size) => {
            let relation = if total_bytes > size { "more" } else { "fewer" };
            let message =
                format!("failed to write `{path}`: received {relation} than {size} bytes");
            Err(SandboxError::new(SandboxErrorKind::InvalidInput, message))
        }
        _ => Ok(()),
    }
}

/// Encodes a command that runs a task; `names` are the task's arguments.
fn encode_task(task: &Task<'_>, names: &[CString]) -> Vec<u8> {
    let mut writer = Writer::new();
    writer
        .write(&Spawn {
            directory: c"/",
            takes_terminal: false,
            terminal: None,
            programs: 0,
            arguments: 0,
            variables: 0,
        })
        .write(task);
    for name in names {
        writer.string(name);
    }
    writer.into_bytes()
}

fn file_info(path: SandboxPath, entry: &Entry<'_>) -> FileInfo {
    let kind = match entry.kind {
        EntryKind::File => FileKind::File,
        EntryKind::Directory => FileKind::Directory,
        EntryKind::Link => FileKind::Symlink,
        EntryKind::Other => FileKind::Other,
    };
    FileInfo::new(path, kind, entry.size_bytes, Some(entry.mode & 0o777))
}

fn invalid_answer(path: &SandboxPath) -> SandboxError {
    let message = format!("the supervisor's answer about `{path}` is invalid");
    SandboxError::new(SandboxErrorKind::Io, message)
}

/// Linux error numbers, on any host system.
mod errno {
    pub(super) const NOENT: i32 = 2;
    pub(super) const INTR: i32 = 4;
    pub(super) const NXIO: i32 = 6;
    pub(super) const NODEV: i32 = 19;
    pub(super) const FBIG: i32 = 27;
    pub(super) const LOOP: i32 = 40;
}
