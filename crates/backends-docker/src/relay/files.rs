//! File operations through the relay: each is a task, a command that executes no program.

use std::ffi::{CString, OsString};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cantle_command_driver::{InputChannel as _, c_string};
use cantle_core::policy::PolicyField;
use cantle_core::sandbox::{
    ByteRange, ByteStream, FileInfo, FileKind, MAX_LIST_ENTRIES, SandboxError, SandboxErrorKind,
    SandboxPath, WriteOptions,
};
use cantle_supervisor::Writer;
use cantle_supervisor::frames::StdioMode;
use cantle_supervisor::tasks::{Entry, EntryKind, Task, TaskError, TaskErrorKind};
use cantle_supervisor::wire::{FileAccess, Reader, Report, Spawn};
use futures_util::{StreamExt as _, stream};
use tokio::select;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::options::c_path;
use super::stream::{InputWriter, Spawned};
use super::{ANSWER_TIMEOUT, Inner, LONG_TASK_TIMEOUT, Relay, answer};

/// Maximum length of a chunk of a file to write.
const MAX_CHUNK: usize = 1 << 20;

/// Shorter chunks are sent in one frame with their length.
const JOINED_BYTES: usize = 64 * 1024;

/// Maximum length of an encoded [`TaskError`].
const MAX_ERROR_BYTES: usize = 4096;
/// Maximum length of a task's answer. The longest one is a listing.
const MAX_TASK_BYTES: usize = 64 << 20;

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

/// File operations; each behaves like the method of [`Sandbox`](cantle_core::sandbox::Sandbox) with its name,
/// and returns the same errors.
impl Relay {
    /// Reads a file.
    ///
    /// # Errors
    /// As described there.
    pub async fn read(
        &self,
        path: &SandboxPath,
        range: ByteRange,
    ) -> Result<ByteStream, SandboxError> {
        let relay = &*self.inner;
        let task = Task::Read {
            path: &relay.task_path(path)?,
            offset: range.offset,
            length: range.length.unwrap_or(u64::MAX),
        };
        let (limit, stdio) = (&relay.task_limits.reads, StdioMode::Output);
        let body = encode_task(&task, &[]);
        let mut running = relay.start_task(limit, "read", path, body, stdio).await?;
        let first = running.next(ANSWER_TIMEOUT).await?;
        if first.is_none() {
            running.finish().await?;
            return Ok(Box::pin(stream::empty()));
        }
        let rest = stream::try_unfold(running, async |mut running| {
            match running.next(ANSWER_TIMEOUT).await? {
                Some(chunk) => Ok(Some((chunk, running))),
                None => running.finish().await.map(|()| None),
            }
        });
        Ok(Box::pin(stream::iter(first.map(Ok)).chain(rest)))
    }

    /// Writes a file. All writes are atomic.
    ///
    /// # Errors
    /// As described there.
    pub async fn write(
        &self,
        path: &SandboxPath,
        options: WriteOptions,
        data: ByteStream,
    ) -> Result<(), SandboxError> {
        let relay = &*self.inner;
        let task = Task::Write {
            path: &relay.task_path(path)?,
            mode: options.mode & 0o777,
        };
        let (limit, stdio) = (&relay.task_limits.writes, StdioMode::All);
        let body = encode_task(&task, &[]);
        let running = relay.start_task(limit, "write", path, body, stdio).await?;
        running.write_data(path, options, data).await
    }

    /// Returns information about a path.
    ///
    /// # Errors
    /// As described there.
    pub async fn stat(&self, path: &SandboxPath) -> Result<FileInfo, SandboxError> {
        let task = Task::Stat {
            path: &self.inner.task_path(path)?,
        };
        let found = self.inner.run_task("look at", path, &task, &[]).await?;
        let entry = Reader::new(&found).read::<Entry<'_>>();
        let entry = entry.ok_or_else(|| invalid_answer(path))?;
        Ok(file_info(path.clone(), &entry))
    }

    /// Lists a directory, sorted by name.
    ///
    /// # Errors
    /// As described there.
    pub async fn list(&self, path: &SandboxPath) -> Result<Vec<FileInfo>, SandboxError> {
        let task = Task::List {
            path: &self.inner.task_path(path)?,
        };
        let found = self.inner.run_task("list", path, &task, &[]).await?;
        let mut reader = Reader::new(&found);
        let mut entries = Vec::new();
        while !reader.is_empty() {
            if entries.len() >= MAX_LIST_ENTRIES {
                return Err(SandboxError::too_many_entries(path));
            }
            let entry = reader.read::<Entry<'_>>();
            let entry = entry.ok_or_else(|| invalid_answer(path))?;
            entries.push(file_info(SandboxPath::new(entry.name)?, &entry));
        }
        entries.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(entries)
    }

    /// Creates a directory.
    ///
    /// # Errors
    /// As described there.
    pub async fn mkdir(&self, path: &SandboxPath) -> Result<(), SandboxError> {
        let task = Task::MakeDirectory {
            path: &self.inner.task_path(path)?,
        };
        self.inner.run_task("make", path, &task, &[]).await?;
        Ok(())
    }

    /// Removes a file or directory.
    ///
    /// # Errors
    /// As described there.
    pub async fn remove(&self, path: &SandboxPath) -> Result<(), SandboxError> {
        self.inner.refuse_fixed("remove", path)?;
        let task = Task::Remove {
            path: &self.inner.task_path(path)?,
        };
        self.inner.run_task("remove", path, &task, &[]).await?;
        Ok(())
    }

    /// Renames a file or directory.
    ///
    /// # Errors
    /// As described there.
    pub async fn rename(&self, from: &SandboxPath, to: &SandboxPath) -> Result<(), SandboxError> {
        self.inner.refuse_fixed("move", from)?;
        self.inner.refuse_fixed("move to", to)?;
        let task = Task::Rename {
            from: &self.inner.task_path(from)?,
            to: &self.inner.task_path(to)?,
        };
        self.inner.run_task("move", from, &task, &[]).await?;
        Ok(())
    }
}

impl Inner {
    /// Returns the first candidate that can be executed.
    pub(super) async fn find_shell(&self) -> Result<Option<OsString>, SandboxError> {
        let shells = &self.options.shells;
        let names = shells.iter().map(|it| c_string(it));
        let names = names.collect::<Result<Vec<_>, _>>()?;
        let count = u32::try_from(names.len()).unwrap_or(u32::MAX);
        let task = Task::FindProgram { count };
        let path = SandboxPath::working_directory();
        let found = self.run_task("look for a shell in", &path, &task, &names);
        let number = Reader::new(&found.await?).read::<u32>();
        Ok(number.and_then(|number| shells.get(number as usize).cloned()))
    }

    fn task_path(&self, path: &SandboxPath) -> Result<CString, SandboxError> {
        c_path(&self.options.absolute(path))
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
            return Err(SandboxError::invalid_input(message));
        }
        Ok(())
    }

    /// Runs a task and returns its output.
    async fn run_task(
        &self,
        doing: &'static str,
        path: &SandboxPath,
        task: &Task<'_>,
        names: &[CString],
    ) -> Result<Vec<u8>, SandboxError> {
        let (limit, stdio) = (&self.task_limits.others, StdioMode::Output);
        let body = encode_task(task, names);
        let mut running = self.start_task(limit, doing, path, body, stdio).await?;
        let mut output = Vec::new();
        let limit = match task {
            Task::Remove { .. } => LONG_TASK_TIMEOUT,
            _ => ANSWER_TIMEOUT,
        };
        while let Some(chunk) = running.next(limit).await? {
            if output.len() + chunk.len() > MAX_TASK_BYTES {
                return Err(SandboxError::too_many_entries(path));
            }
            output.extend_from_slice(&chunk);
        }
        running.finish().await?;
        Ok(output)
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
            doing: format!("failed to {doing} `{path}`"),
            is_working_directory: self.options.absolute(path) == self.options.working_directory,
            kill_on_drop: true,
            end: None,
            _permit: permit,
        })
    }
}

/// A running task, killed on drop unless it cleans up by itself.
struct RunningTask {
    spawned: Spawned,
    /// The beginning of an error's message.
    doing: String,
    is_working_directory: bool,
    /// Whether it is killed on drop.
    kill_on_drop: bool,
    /// The last report, or that there was none; `None` until its end.
    end: Option<Option<Report>>,
    _permit: OwnedSemaphorePermit,
}

impl RunningTask {
    /// Returns the next chunk of output; `None` at the end.
    async fn next(&mut self, limit: Duration) -> Result<Option<Bytes>, SandboxError> {
        answer(limit, &self.doing, self.spawned.stdout.next()).await
    }

    /// Waits until the task has ended. Cancel-safe.
    async fn wait(&mut self) {
        while self.end.is_none() {
            self.end = match self.spawned.reports.recv().await {
                Some(Report::Started { .. }) => None,
                end => Some(end),
            };
        }
    }

    /// Sends the data to a write task and waits for its end.
    async fn write_data(
        mut self,
        path: &SandboxPath,
        options: WriteOptions,
        mut data: ByteStream,
    ) -> Result<(), SandboxError> {
        let (doing, input) = (self.doing.clone(), self.spawned.input.take());
        let mut input = input.ok_or_else(|| self.spawned.command.stream.gone_error())?;
        // An aborted write ends the input early, upon which the task cleans up.
        self.kill_on_drop = false;
        let command = self.spawned.command.clone();
        // Without the last chunk nothing is written.
        let sending = async move {
            // A task that takes nothing any more.
            let kill = |_: &SandboxError| command.kill();
            let mut total_bytes = 0;
            while let Some(mut bytes) = data.next().await.transpose()? {
                total_bytes += bytes.len() as u64;
                options.check_size(path, total_bytes, false)?;
                while !bytes.is_empty() {
                    let chunk = bytes.split_to(bytes.len().min(MAX_CHUNK));
                    let sent = answer(ANSWER_TIMEOUT, &doing, send_chunk(&mut input, chunk));
                    if sent.await.inspect_err(kill)?.is_err() {
                        // The task's end tells whether the file was written.
                        return Ok(());
                    }
                }
            }
            options.check_size(path, total_bytes, true)?;
            let last = input.write(Bytes::from_static(&LAST_CHUNK));
            let sent = answer(ANSWER_TIMEOUT, &doing, last).await;
            // Fails like a chunk.
            let _ = sent.inspect_err(kill)?;
            Ok(())
        };
        let sent = select! {
            biased;
            () = self.wait() => Ok(()),
            sent = sending => sent,
        };
        let ended = self.finish().await;
        sent.and(ended)
    }

    /// Waits for the task's end and returns its error.
    async fn finish(&mut self) -> Result<(), SandboxError> {
        let doing = self.doing.clone();
        let ending = async {
            let mut encoded = Vec::new();
            while let Some(chunk) = self.spawned.stderr.next().await {
                if encoded.len() < MAX_ERROR_BYTES {
                    encoded.extend_from_slice(&chunk);
                }
            }
            self.wait().await;
            encoded
        };
        let encoded = answer(ANSWER_TIMEOUT, &doing, ending).await;
        self.kill_on_drop = encoded.is_err();
        let encoded = encoded?;
        let failed = |errno| TaskError {
            kind: TaskErrorKind::Errno,
            errno,
            name: b"",
        };
        match self.end {
            Some(Some(Report::Ended { status: 0, .. })) => Ok(()),
            Some(Some(Report::Failed { errno, .. })) => Err(self.error(&failed(errno))),
            Some(Some(_)) => {
                let error = Reader::new(&encoded).read::<TaskError<'_>>();
                Err(self.error(&error.unwrap_or_else(|| failed(errno::INTR))))
            }
            Some(None) | None => Err(self.spawned.command.stream.gone_error()),
        }
    }

    /// Converts the task's error.
    fn error(&self, error: &TaskError<'_>) -> SandboxError {
        let doing = &self.doing;
        let source = || io::Error::from_raw_os_error(error.errno);
        let with_reason =
            |kind, reason: &str| SandboxError::new(kind, format!("{doing}: {reason}"));
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
                with_reason(SandboxErrorKind::Gone, "the working directory is gone")
            }
            (TaskErrorKind::NotEmpty, _) => {
                let name = String::from_utf8_lossy(error.name);
                SandboxError::io(format!("{doing}: it still contains `{name}`"), source())
            }
            (TaskErrorKind::Errno | TaskErrorKind::Incomplete, _) => {
                SandboxError::io(doing, source())
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

/// The length of the chunk after which a file is complete.
const LAST_CHUNK: [u8; 4] = 0_u32.to_le_bytes();

/// Sends a part of a file after its length.
async fn send_chunk(input: &mut InputWriter, chunk: Bytes) -> Result<(), SandboxError> {
    let length = u32::try_from(chunk.len()).unwrap_or(u32::MAX).to_le_bytes();
    if chunk.len() < JOINED_BYTES {
        return input.write([&length, &*chunk].concat().into()).await;
    }
    input.write(Bytes::copy_from_slice(&length)).await?;
    input.write(chunk).await
}

/// Encodes a command that runs a task; `names` are the task's arguments.
pub(super) fn encode_task(task: &Task<'_>, names: &[CString]) -> Vec<u8> {
    let mut writer = Writer::new();
    writer
        .write(&Spawn {
            directory: c"/",
            takes_terminal: false,
            terminal: None,
            files: FileAccess::Full,
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
