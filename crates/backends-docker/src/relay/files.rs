//! Files, through the relay: each task is a command of its own that executes no program.

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
use cantle_supervisor::frames::Channels;
use cantle_supervisor::tasks::{Entry, Kind, Reason, Refusal, Task};
use cantle_supervisor::wire::{Reader, Report, Spawn};
use futures_util::{StreamExt as _, stream};
use tokio::select;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::Inner;
use super::inbox::{InputWriter, Spawned};
use super::link::Stream;
use super::options::{c_path, c_string};

/// Pieces that are shorter wait for more.
const PIECE_BYTES: usize = 64 * 1024;

/// How long a task that has said all may take to end.
const END_DEADLINE: Duration = Duration::from_secs(10);

/// A refusal is short.
const MOST_REFUSAL: usize = 4096;

/// How many tasks there are at once: the relay has room for so many commands and no more. Writes may
/// wait for reads, but not the other way round, and so have a gate of their own.
#[derive(Debug)]
pub(super) struct Gates {
    pub(super) reads: Arc<Semaphore>,
    pub(super) writes: Arc<Semaphore>,
    others: Arc<Semaphore>,
}

impl Gates {
    pub(super) fn new() -> Self {
        let gate = || Arc::new(Semaphore::new(64));
        Self {
            reads: gate(),
            writes: gate(),
            others: gate(),
        }
    }
}

impl Inner {
    /// The first candidate that can be executed.
    pub(super) async fn find_shell(&self) -> Result<Option<OsString>, SandboxError> {
        let shells = &self.options.shells;
        let names: Vec<CString> = shells
            .iter()
            .map(|it| c_string(it))
            .collect::<Result<_, _>>()?;
        let count = u32::try_from(names.len()).unwrap_or(u32::MAX);
        let body = body(&Task::Find { count }, &names);
        let found = self
            .ask("look for a shell in", &working_directory(), body)
            .await?;
        let number = Reader::new(&found).u32();
        Ok(number.and_then(|number| shells.get(number as usize).cloned()))
    }

    pub(super) async fn read(
        &self,
        path: &SandboxPath,
        range: ByteRange,
    ) -> Result<ByteStream, SandboxError> {
        if let Some(offered) = self.read_offered(path, range).await {
            return offered;
        }
        let task = Task::Read {
            path: &c_path(&self.options.absolute(path))?,
            offset: range.offset,
            length: range.length.unwrap_or(u64::MAX),
        };
        let gate = &self.gates.reads;
        let mut running = self
            .begin(gate, "read", path, body(&task, &[]), Channels::Output)
            .await?;
        let first = running.spawned.output.next().await;
        if first.is_none() {
            running.end().await?;
            return Ok(Box::pin(stream::empty()));
        }
        Ok(output(first, running))
    }

    pub(super) async fn write(
        &self,
        path: &SandboxPath,
        options: WriteOptions,
        data: ByteStream,
    ) -> Result<(), SandboxError> {
        let mut data = match self.write_staged(path, options, data).await {
            Ok(written) => return written,
            Err(data) => data,
        };
        let task = Task::Write {
            path: &c_path(&self.options.absolute(path))?,
            mode: options.mode & 0o777,
        };
        let gate = &self.gates.writes;
        let mut running = self
            .begin(gate, "write", path, body(&task, &[]), Channels::All)
            .await?;
        let Some(input) = running.spawned.input.take() else {
            return Err(running.stream().gone_error());
        };
        running.pour(input, path, options, &mut data).await
    }

    pub(super) async fn stat(&self, path: &SandboxPath) -> Result<FileInfo, SandboxError> {
        let task = Task::Look {
            path: &c_path(&self.options.absolute(path))?,
        };
        let found = self.ask("look at", path, body(&task, &[])).await?;
        let entry = Entry::decode(&mut Reader::new(&found)).ok_or_else(|| nonsense(path))?;
        Ok(info(path.clone(), &entry))
    }

    pub(super) async fn list(&self, path: &SandboxPath) -> Result<Vec<FileInfo>, SandboxError> {
        let task = Task::List {
            path: &c_path(&self.options.absolute(path))?,
        };
        let found = self.ask("list", path, body(&task, &[])).await?;
        let mut reader = Reader::new(&found);
        let mut entries = Vec::new();
        while !reader.is_empty() {
            let entry = Entry::decode(&mut reader).ok_or_else(|| nonsense(path))?;
            entries.push(info(SandboxPath::new(entry.name)?, &entry));
        }
        entries.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(entries)
    }

    pub(super) async fn mkdir(&self, path: &SandboxPath) -> Result<(), SandboxError> {
        let task = Task::MakeDirectory {
            path: &c_path(&self.options.absolute(path))?,
        };
        self.ask("make", path, body(&task, &[])).await.map(drop)
    }

    pub(super) async fn remove(&self, path: &SandboxPath) -> Result<(), SandboxError> {
        self.refuse_fixed("remove", path)?;
        let task = Task::Remove {
            path: &c_path(&self.options.absolute(path))?,
        };
        self.ask("remove", path, body(&task, &[])).await.map(drop)
    }

    pub(super) async fn rename(
        &self,
        from: &SandboxPath,
        to: &SandboxPath,
    ) -> Result<(), SandboxError> {
        self.refuse_fixed("move", from)?;
        self.refuse_fixed("move to", to)?;
        let task = Task::Move {
            from: &c_path(&self.options.absolute(from))?,
            to: &c_path(&self.options.absolute(to))?,
        };
        self.ask("move", from, body(&task, &[])).await.map(drop)
    }

    /// Refuses to touch the directories that every sandbox has.
    fn refuse_fixed(&self, doing: &str, path: &SandboxPath) -> Result<(), SandboxError> {
        let absolute = self.options.absolute(path);
        let options = &self.options;
        let fixed = [
            &options.working_directory,
            &options.temporary_directory,
            &options.root,
        ];
        if fixed.contains(&&absolute) || absolute.is_start() {
            let message = format!("failed to {doing} `{path}`: it is part of the sandbox itself");
            return Err(SandboxError::new(SandboxErrorKind::InvalidInput, message));
        }
        Ok(())
    }

    /// Does a task and returns all that it says.
    async fn ask(
        &self,
        doing: &'static str,
        path: &SandboxPath,
        body: Vec<u8>,
    ) -> Result<Bytes, SandboxError> {
        let gate = &self.gates.others;
        let mut running = self
            .begin(gate, doing, path, body, Channels::Output)
            .await?;
        let mut said = BytesMut::new();
        while let Some(piece) = running.spawned.output.next().await {
            said.extend_from_slice(&piece);
        }
        running.end().await?;
        Ok(said.freeze())
    }

    pub(super) async fn begin(
        &self,
        gate: &Arc<Semaphore>,
        doing: &'static str,
        path: &SandboxPath,
        body: Vec<u8>,
        channels: Channels,
    ) -> Result<Running, SandboxError> {
        let stream = &self.link.stream;
        let permit = Arc::clone(gate).acquire_owned().await;
        let permit = permit.map_err(|_| stream.gone_error())?;
        Ok(Running {
            spawned: stream.spawn(channels, body)?,
            doing,
            path: path.clone(),
            is_working_directory: self.options.absolute(path) == self.options.working_directory,
            kills: true,
            end: None,
            _permit: permit,
        })
    }
}

/// What a task writes, with why it failed at the end; `first` is what it has written already.
pub(super) fn output(first: Option<Bytes>, running: Running) -> ByteStream {
    Box::pin(stream::unfold(Some((first, running)), async |state| {
        let (ready, mut running) = state?;
        let piece = match ready {
            Some(piece) => Some(piece),
            None => running.spawned.output.next().await,
        };
        match piece {
            Some(piece) => Some((Ok(piece), Some((None, running)))),
            None => match running.end().await {
                Ok(()) => None,
                Err(error) => Some((Err(error), None)),
            },
        }
    }))
}

fn working_directory() -> SandboxPath {
    SandboxPath::working_directory()
}

/// A task that is being done. Dropped, it is given up.
pub(super) struct Running {
    pub(super) spawned: Spawned,
    doing: &'static str,
    path: SandboxPath,
    is_working_directory: bool,
    /// Whether it is killed when it is given up.
    kills: bool,
    end: Option<Result<Report, Over>>,
    _permit: OwnedSemaphorePermit,
}

impl Running {
    /// Waits until it has ended. Cancel-safe.
    pub(super) async fn over(&mut self) {
        while self.end.is_none() {
            self.end = match self.spawned.reports.recv().await {
                Some(Report::Started { .. }) => None,
                Some(report) => Some(Ok(report)),
                None => Some(Err(Over)),
            };
        }
    }

    /// Sends a writing task what it is to write, and waits for its end.
    pub(super) async fn pour(
        &mut self,
        input: InputWriter,
        path: &SandboxPath,
        options: WriteOptions,
        data: &mut ByteStream,
    ) -> Result<(), SandboxError> {
        // Given up half way, it is told by the end of its input, and cleans up.
        self.kills = false;
        let mut pieces = Pieces::new(input);
        let mut total_bytes = 0;
        let sent = loop {
            let next = select! {
                biased;
                () = self.over() => break Ok(()),
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
                        pieces.finish().await.and(Err(Over))
                    } else {
                        pieces.push(bytes).await
                    }
                }
            };
            if sent.is_err() {
                // It says itself whether it has written the file.
                break Ok(());
            }
        };
        // Without the last piece nothing is written.
        drop(pieces);
        let ended = self.end().await;
        sent.and(ended)
    }

    /// Waits for its end, and for why it failed.
    pub(super) async fn end(&mut self) -> Result<(), SandboxError> {
        let ending = async {
            let mut said = Vec::new();
            while let Some(piece) = self.spawned.errors.next().await {
                if said.len() < MOST_REFUSAL {
                    said.extend_from_slice(&piece);
                }
            }
            self.over().await;
            said
        };
        let said = timeout(END_DEADLINE, ending).await.map_err(|_| {
            let error = io::ErrorKind::TimedOut.into();
            SandboxError::io(format!("failed to {} `{}`", self.doing, self.path), error)
        })?;
        self.kills = false;
        match self.end {
            Some(Ok(Report::Ended { status: 0, .. })) => Ok(()),
            Some(Ok(Report::Failed { errno, .. })) => Err(self.failed(&Refusal {
                reason: Reason::Errno,
                errno,
                name: b"",
            })),
            Some(Ok(_)) => Err(match Refusal::decode(&mut Reader::new(&said)) {
                Some(refusal) => self.failed(&refusal),
                None => self.failed(&Refusal {
                    reason: Reason::Errno,
                    errno: errno::INTR,
                    name: b"",
                }),
            }),
            Some(Err(Over)) | None => Err(self.stream().gone_error()),
        }
    }

    pub(super) fn stream(&self) -> &Stream {
        &self.spawned.command.stream
    }

    /// What a refusal says.
    fn failed(&self, refusal: &Refusal<'_>) -> SandboxError {
        let (doing, path) = (self.doing, &self.path);
        let source = || io::Error::from_raw_os_error(refusal.errno);
        let say = |kind, what: &str| {
            SandboxError::new(kind, format!("failed to {doing} `{path}`: {what}"))
                .with_source(source())
        };
        match (refusal.reason, refusal.errno) {
            (Reason::NotAFile, _) | (Reason::Errno, errno::NXIO | errno::NODEV) => {
                say(SandboxErrorKind::NotAFile, "it is not a regular file")
            }
            (Reason::AlreadyThere, _) => {
                say(SandboxErrorKind::AlreadyExists, "something else is there")
            }
            (Reason::Errno, errno::FBIG) => {
                let field = PolicyField::FileSize;
                let what = format!("it is larger than the policy's {field} allows");
                say(SandboxErrorKind::StorageFull, &what)
            }
            (Reason::Outside, _) => {
                let outside = "it leads out of the sandbox";
                say(SandboxErrorKind::OutsideSandbox, outside)
                    .with_advice("Use a path relative to the working directory.")
            }
            (Reason::Errno, errno::LOOP) => {
                say(SandboxErrorKind::NotFound, "its links lead in a circle")
            }
            (Reason::Errno, errno::NOENT) if self.is_working_directory => SandboxError::gone(
                format!("failed to {doing} `{path}`: the working directory is gone"),
            ),
            (Reason::Left, _) => {
                let name = String::from_utf8_lossy(refusal.name);
                let message = format!("failed to {doing} `{path}`: it still has `{name}`");
                SandboxError::io(message, source())
            }
            (Reason::Errno | Reason::Incomplete, _) => {
                SandboxError::io(format!("failed to {doing} `{path}`"), source())
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.kills {
            self.spawned.command.kill();
        }
    }
}

/// Nobody reads any more.
#[derive(Clone, Copy, Debug)]
struct Over;

/// A file's bytes on their way: pieces with their lengths, and a last one of none.
struct Pieces {
    input: InputWriter,
    held: BytesMut,
}

impl Pieces {
    fn new(input: InputWriter) -> Self {
        let held = BytesMut::new();
        Self { input, held }
    }

    async fn push(&mut self, bytes: Bytes) -> Result<(), Over> {
        if bytes.len() >= PIECE_BYTES {
            self.flush().await?;
            return self.send(bytes).await;
        }
        self.held.extend_from_slice(&bytes);
        if self.held.len() >= PIECE_BYTES {
            self.flush().await?;
        }
        Ok(())
    }

    async fn finish(&mut self) -> Result<(), Over> {
        self.flush().await?;
        self.say(0).await
    }

    async fn flush(&mut self) -> Result<(), Over> {
        let held = self.held.split().freeze();
        if held.is_empty() {
            return Ok(());
        }
        self.send(held).await
    }

    async fn send(&mut self, mut bytes: Bytes) -> Result<(), Over> {
        while !bytes.is_empty() {
            let piece = bytes.split_to(bytes.len().min(u32::MAX as usize));
            self.say(u32::try_from(piece.len()).unwrap_or(u32::MAX))
                .await?;
            self.input.write(piece).await.map_err(|_| Over)?;
        }
        Ok(())
    }

    async fn say(&mut self, length: u32) -> Result<(), Over> {
        let length = Bytes::copy_from_slice(&length.to_le_bytes());
        self.input.write(length).await.map_err(|_| Over)
    }
}

pub(super) fn check_size(
    path: &SandboxPath,
    options: WriteOptions,
    total_bytes: u64,
    is_complete: bool,
) -> Result<(), SandboxError> {
    match options.size_bytes {
        Some(size) if total_bytes > size || (is_complete && total_bytes < size) => {
            let relation = if total_bytes > size { "more" } else { "fewer" };
            let message = format!("failed to write `{path}`: {relation} than {size} bytes came");
            Err(SandboxError::new(SandboxErrorKind::InvalidInput, message))
        }
        _ => Ok(()),
    }
}

/// The body of a command that does a task; `names` belong to it.
pub(super) fn body(task: &Task<'_>, names: &[CString]) -> Vec<u8> {
    let mut writer = Writer::new();
    writer
        .spawn(&Spawn {
            directory: c"/",
            takes_terminal: false,
            terminal: None,
            programs: 0,
            arguments: 0,
            variables: 0,
        })
        .task(task);
    for name in names {
        writer.string(name);
    }
    writer.into_bytes()
}

fn info(path: SandboxPath, entry: &Entry<'_>) -> FileInfo {
    let kind = match entry.kind {
        Kind::File => FileKind::File,
        Kind::Directory => FileKind::Directory,
        Kind::Link => FileKind::Symlink,
        Kind::Other => FileKind::Other,
    };
    FileInfo::new(path, kind, entry.size_bytes, Some(entry.mode & 0o777))
}

fn nonsense(path: &SandboxPath) -> SandboxError {
    let message = format!("what the sandbox says of `{path}` makes no sense");
    SandboxError::new(SandboxErrorKind::Io, message)
}

/// Error numbers of Linux, whatever system we are on.
mod errno {
    pub(super) const NOENT: i32 = 2;
    pub(super) const INTR: i32 = 4;
    pub(super) const NXIO: i32 = 6;
    pub(super) const NODEV: i32 = 19;
    pub(super) const FBIG: i32 = 27;
    pub(super) const LOOP: i32 = 40;
}
