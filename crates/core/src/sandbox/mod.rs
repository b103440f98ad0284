//! Sandboxes: execution environments for an agent's commands and files.
//!
//! A [`Backend`] is configuration and opens a [`Sandbox`]: one live execution environment. A
//! sandbox spawns a [`Process`] for each command and reads and writes files. All three are small and
//! object-safe; convenience methods are in [`SandboxExt`]. Operations that a backend lacks fail with
//! [`SandboxErrorKind::Unsupported`].
//!
//! A command that fails is a result, described by [`Exit`]; `Err` means that the sandbox failed. A
//! sandbox that no longer exists fails with [`SandboxErrorKind::Gone`], which ends the run.
//!
//! There is no async drop: `close().await` cleans up and reports errors; dropping kills the commands
//! and removes what it can.

mod artifacts;
mod boundary;
mod change;
mod connection;
mod decoder;
mod error;
mod exit;
mod ext;
mod files;
mod host;
mod info;
mod matching;
mod output;
mod path;
mod program;
mod render;
mod request;
mod reserved;
mod secret_files;
mod signal;
mod staging;
mod transfer;
mod walk;

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use async_trait::async_trait;
use auto_impl::auto_impl;
use bytes::Bytes;
use futures_core::Stream;

pub use self::artifacts::{
    Artifact, ArtifactLimits, ArtifactSink, Artifacts, DirectorySink, MemorySink, media_type,
    media_type_of_name,
};
pub use self::change::ChangeNotice;
pub use self::connection::{Connection, Connections, MAX_CONNECTIONS};
pub use self::decoder::Utf8Decoder;
pub use self::error::{SandboxError, SandboxErrorKind};
pub use self::exit::{BackgroundProcess, ChannelReport, Exit, ExitStatus, SpillFile};
pub use self::ext::SandboxExt;
pub use self::files::{
    ByteRange, FileInfo, FileKind, MAX_ATTRIBUTES_BYTES, MAX_LIST_ENTRIES, WriteOptions,
};
pub use self::host::HostTree;
pub use self::info::{EnforcedBy, Enforcement, Isolation, SandboxInfo, Survival};
pub use self::matching::MatchedFiles;
pub use self::output::{Captured, CommandOutput, HeadTail};
pub use self::path::{InvalidPath, SandboxPath};
pub use self::program::Program;
pub use self::render::{RenderLimits, render_channel, render_command, render_refusal};
pub use self::request::{Background, Command, PtySize, SpawnRequest, Spill, Stdin};
pub use self::reserved::reserved_name;
pub use self::secret_files::looks_secret;
pub use self::signal::Signal;
pub use self::transfer::{
    OutputOptions, RefusedFile, SavedFile, SavedOutputs, UploadedFile, UploadedFiles,
};
pub use self::walk::{FileStamp, Walk, WalkBuilder, WalkEntry, walk_by_command};
use crate::ids::RunId;
use crate::policy::Policy;
use crate::principal::Principal;
use crate::progress::{NoProgress, Progress};

/// The content of a file, streamed at the reader's pace.
pub type ByteStream = Pin<Box<dyn Stream<Item = Result<Bytes, SandboxError>> + Send + 'static>>;

/// The output of a command, streamed at the reader's pace.
pub type OutputStream =
    Pin<Box<dyn Stream<Item = Result<OutputChunk, SandboxError>> + Send + 'static>>;

/// Immutable configuration that opens sandboxes, shared by any number of sessions.
#[async_trait]
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a sandbox backend",
    note = "implement `Backend` from `cantle_core::sandbox`"
)]
#[auto_impl(Arc, Box)]
pub trait Backend: fmt::Debug + Send + Sync {
    /// The backend's name in reports, e.g. `local`.
    fn name(&self) -> &str;

    /// Opens a sandbox.
    ///
    /// # Errors
    /// [`SandboxErrorKind::Unenforceable`] if the policy is strict and one of its fields can't be
    /// enforced; [`SandboxErrorKind::Unavailable`] if a requirement is missing (a shell, an engine),
    /// with advice on what to install or set.
    async fn open(&self, cx: SandboxContext) -> Result<Arc<dyn Sandbox>, SandboxError>;

    /// Reopens a persisted sandbox (see [`Sandbox::persist`]) for the run and under the policy of
    /// `cx`. Secrets are not persisted: the policy has to supply them again.
    ///
    /// # Errors
    /// [`SandboxErrorKind::Gone`] if the sandbox no longer exists;
    /// [`SandboxErrorKind::Unsupported`] if the backend can't keep sandboxes.
    async fn reattach(
        &self,
        handle: &SandboxHandle,
        cx: SandboxContext,
    ) -> Result<Arc<dyn Sandbox>, SandboxError>;
}

/// Arguments of [`Backend::open`] and [`Backend::reattach`].
#[must_use]
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SandboxContext {
    /// The run that the sandbox belongs to; used in labels and directory names.
    pub run: RunId,
    /// The policy for code in the sandbox.
    pub policy: Policy,
    /// The principal on whose behalf the sandbox is opened, if the program has set one.
    pub principal: Option<Principal>,
    /// Whether [`Sandbox::persist`] will be called, so that files must not be kept in memory.
    pub durable: bool,
    /// Receives a line for each slow step, such as pulling an image.
    pub progress: Arc<dyn Progress>,
}

impl SandboxContext {
    /// Creates the context of a sandbox for `run` under `policy` that ends with this process.
    pub fn new(run: RunId, policy: Policy) -> Self {
        Self {
            run,
            policy,
            principal: None,
            durable: false,
            progress: Arc::new(NoProgress),
        }
    }

    /// Sets [`durable`](Self::durable).
    pub fn durable(mut self) -> Self {
        self.durable = true;
        self
    }

    /// Sets the receiver of progress messages.
    pub fn with_progress(mut self, progress: Arc<dyn Progress>) -> Self {
        self.progress = progress;
        self
    }
}

/// A reference to a persisted sandbox. Only the backend that created it can interpret it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct SandboxHandle {
    /// The backend's name.
    pub backend: String,
    /// Backend-specific text that identifies the sandbox. Contains no secret.
    pub token: String,
}

impl SandboxHandle {
    /// Creates a handle.
    pub fn new(backend: impl Into<String>, token: impl Into<String>) -> Self {
        Self {
            backend: backend.into(),
            token: token.into(),
        }
    }
}

/// One live execution environment. Commands and file operations may run concurrently.
///
/// Dropping it without [`close`](Self::close) kills its commands and removes what it can, perhaps after the drop
/// has returned.
#[async_trait]
#[auto_impl(Arc, Box)]
pub trait Sandbox: fmt::Debug + Send + Sync {
    /// Describes the sandbox and how each policy field is enforced.
    fn info(&self) -> &SandboxInfo;

    /// Starts a command.
    ///
    /// # Errors
    /// If the command can't be started: no such program or directory, arguments too long or with NUL.
    /// A command that starts and fails is not an error.
    async fn spawn(&self, request: SpawnRequest) -> Result<Box<dyn Process>, SandboxError>;

    /// Reads a regular file, or a range of it.
    ///
    /// # Errors
    /// [`SandboxErrorKind::NotAFile`] for anything but a regular file;
    /// [`SandboxErrorKind::OutsideSandbox`] if a link leads out.
    async fn read(&self, path: &SandboxPath, range: ByteRange) -> Result<ByteStream, SandboxError>;

    /// Writes a regular file and creates its parent directories. A failed write leaves no partial file
    /// if [`WriteOptions::atomic`] is set (the default).
    ///
    /// # Errors
    /// As [`read`](Self::read); the stream's own error; [`SandboxErrorKind::StorageFull`]; and
    /// [`SandboxErrorKind::InvalidInput`] if the stream is not [`WriteOptions::size_bytes`] long.
    async fn write(
        &self,
        path: &SandboxPath,
        options: WriteOptions,
        data: ByteStream,
    ) -> Result<(), SandboxError>;

    /// Returns the metadata of a path, without following a link.
    ///
    /// # Errors
    /// [`SandboxErrorKind::NotFound`] if it doesn't exist.
    async fn stat(&self, path: &SandboxPath) -> Result<FileInfo, SandboxError>;

    /// Lists a directory, not recursively, sorted by name, without following links. Paths are
    /// relative to the directory.
    ///
    /// # Errors
    /// [`SandboxErrorKind::NotADirectory`] for anything but a directory, [`SandboxErrorKind::Unsupported`] if it has
    /// more than [`MAX_LIST_ENTRIES`] entries.
    async fn list(&self, path: &SandboxPath) -> Result<Vec<FileInfo>, SandboxError>;

    /// Lists up to `max_entries` files, directories and links below a directory, recursively, without following links.
    /// Directories that can't be read, and those with paths longer than `PATH_MAX`, are [named](Walk::refused).
    /// [`walk_by_command`] is an implementation for every sandbox with a shell.
    ///
    /// # Errors
    /// As [`list`](Self::list), for the directory itself.
    async fn walk(&self, directory: &SandboxPath, max_entries: usize)
    -> Result<Walk, SandboxError>;

    /// Creates a directory and its parents; an existing directory is not an error.
    ///
    /// # Errors
    /// [`SandboxErrorKind::AlreadyExists`] if the path is not a directory.
    async fn mkdir(&self, path: &SandboxPath) -> Result<(), SandboxError>;

    /// Removes a file, a link (not its target) or a directory with its contents.
    ///
    /// # Errors
    /// [`SandboxErrorKind::NotFound`] if it doesn't exist.
    async fn remove(&self, path: &SandboxPath) -> Result<(), SandboxError>;

    /// Moves a file or directory, replacing an existing file.
    ///
    /// # Errors
    /// [`SandboxErrorKind::NotFound`] if it doesn't exist.
    async fn rename(&self, from: &SandboxPath, to: &SandboxPath) -> Result<(), SandboxError>;

    /// Connects to a TCP port of the sandbox's loopback interface; at most [`MAX_CONNECTIONS`] are open at a time. It
    /// gives the sandbox no network.
    ///
    /// # Errors
    /// [`SandboxErrorKind::NotFound`] if no server listens there, [`SandboxErrorKind::Unavailable`] if too many
    /// connections are open, [`SandboxErrorKind::Unsupported`] if the backend can't connect or the sandbox has no
    /// loopback interface of its own.
    async fn connect(&self, port: u16) -> Result<Connection, SandboxError>;

    /// Watches directories, not recursively, until an entry of one of them is created, removed, renamed, written or
    /// changed otherwise. Directories that do not exist are skipped: list them after this call to find out. A change
    /// elsewhere may give the notice, too.
    ///
    /// # Errors
    /// [`SandboxErrorKind::Unsupported`] if the backend can't, [`SandboxErrorKind::Unavailable`] if too many
    /// directories are watched, [`SandboxErrorKind::OutsideSandbox`] for a directory that only commands see.
    async fn watch(&self, directories: &[SandboxPath]) -> Result<ChangeNotice, SandboxError>;

    /// Reads extended attributes of files and directories (`getxattr(2)`), for each path by name: those whose names begin
    /// with `prefix`, such as `user.`, without it. Links are not followed. Attributes that are not UTF-8 are left out,
    /// those beyond [`MAX_ATTRIBUTES_BYTES`], and those of paths that can't be read.
    ///
    /// # Errors
    /// [`SandboxErrorKind::Unsupported`] if the backend can't read attributes.
    async fn attributes(
        &self,
        paths: &[SandboxPath],
        prefix: &str,
    ) -> Result<Vec<BTreeMap<String, String>>, SandboxError>;

    /// Keeps the sandbox for [`Backend::reattach`] after it is dropped, to the extent that
    /// [`SandboxInfo::survival`] states. [`close`](Self::close) still removes it.
    ///
    /// # Errors
    /// [`SandboxErrorKind::Unsupported`] if the backend can't keep sandboxes.
    async fn persist(&self) -> Result<SandboxHandle, SandboxError>;

    /// Kills all commands and removes the sandbox. A second call does nothing.
    ///
    /// # Errors
    /// If something may be left behind; the message names it.
    async fn close(&self) -> Result<(), SandboxError>;
}

/// One running command. Dropping it kills it and its descendants.
#[async_trait]
#[auto_impl(Box)]
pub trait Process: Send {
    /// The process id as seen inside the sandbox, if there is one.
    fn id(&self) -> Option<u32>;

    /// Takes the output stream; `None` on a second call. The stream ends soon after the command exits,
    /// even if a background child holds the pipe. Output without a reader is discarded, but counted.
    fn take_output(&mut self) -> Option<OutputStream>;

    /// Takes the input; `None` on a second call, and without [`Stdin::Piped`] or a terminal.
    fn take_stdin(&mut self) -> Option<Box<dyn ProcessStdin>>;

    /// Sends a signal to the command's process group.
    ///
    /// # Errors
    /// [`SandboxErrorKind::Unsupported`] if the backend can't. After the command's exit, nothing happens.
    async fn signal(&mut self, signal: Signal) -> Result<(), SandboxError>;

    /// Changes the size of the command's terminal.
    ///
    /// # Errors
    /// [`SandboxErrorKind::Unsupported`] if the command has no terminal.
    async fn resize(&mut self, size: PtySize) -> Result<(), SandboxError>;

    /// Takes the notes on what the running command could not do, such as hosts that were refused: those since the last
    /// call, which are not among the notes of its exit then. Empty for backends that refuse nothing.
    fn take_notes(&mut self) -> Vec<String>;

    /// Waits for the command's exit; further calls return the same result. Cancel-safe.
    ///
    /// # Errors
    /// [`SandboxErrorKind::Gone`] if the sandbox ended first.
    async fn wait(&mut self) -> Result<Exit, SandboxError>;
}

/// The input of a running command. Dropping it closes the input.
#[async_trait]
#[auto_impl(Box)]
pub trait ProcessStdin: Send {
    /// Writes all of `data`, waiting until the command has room for it.
    ///
    /// # Errors
    /// [`SandboxErrorKind::Closed`] if the command no longer reads.
    async fn write(&mut self, data: Bytes) -> Result<(), SandboxError>;
}

/// A piece of a command's output.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "a channel and its bytes, nothing more"
)]
pub struct OutputChunk {
    /// The channel it was written to.
    pub channel: Channel,
    /// The bytes, cut anywhere, in any encoding.
    pub bytes: Bytes,
}

/// An output channel of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(
    clippy::exhaustive_enums,
    reason = "a process has these two; a terminal is one stream"
)]
pub enum Channel {
    /// Standard output, or the single stream of a terminal.
    Stdout,
    /// Standard error.
    Stderr,
}

impl Channel {
    /// Returns `stdout` or `stderr`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}
