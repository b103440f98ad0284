//! Sandboxes: where an agent's commands run and its files live.
//!
//! A [`Backend`] is configuration and opens a [`Sandbox`]: one live execution environment. A
//! sandbox spawns a [`Process`] for each command and gives out files. All three are small and
//! object-safe; what can be built from them is in [`SandboxExt`]. What a backend can't do answers
//! [`SandboxErrorKind::Unsupported`].
//!
//! `Err` means that something of ours failed. A command that fails is a result: [`Exit`] says how
//! it ended. A sandbox that is gone is [`SandboxErrorKind::Gone`] and ends the run.
//!
//! There is no async drop. `close().await` is the good way out and reports what it could not clean
//! up; dropping is the fall-back and kills what runs.

mod boundary;
mod error;
mod exit;
mod ext;
mod files;
mod host;
mod info;
mod lifecycle;
mod output;
mod path;
mod program;
mod render;
mod request;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures_core::Stream;

pub use self::error::{SandboxError, SandboxErrorKind};
pub use self::exit::{BackgroundProcess, ChannelReport, Exit, ExitStatus, SpillFile};
pub use self::ext::SandboxExt;
pub use self::files::{ByteRange, FileInfo, FileKind, WriteOptions};
pub use self::host::{Refusal, SavedFile, SavedOutputs, UploadedFile, UploadedFiles};
pub use self::info::{EnforcedBy, Enforcement, Isolation, SandboxInfo, Survival};
pub use self::lifecycle::{CommandAction, CommandEvent, CommandLifecycle};
pub use self::output::{Captured, CommandOutput, HeadTail};
pub use self::path::{InvalidPath, SandboxPath};
pub use self::program::Program;
pub use self::render::{RenderLimits, render_command, render_refusal};
pub use self::request::{Background, Command, PtySize, SpawnRequest, Spill, Stdin};
use crate::ids::RunId;
use crate::policy::Policy;
use crate::tool::{NoProgress, Progress};

/// Bytes of a file, in pieces; the reader sets the pace.
pub type ByteStream = Pin<Box<dyn Stream<Item = Result<Bytes, SandboxError>> + Send + 'static>>;

/// Output of a command, in pieces; the reader sets the pace.
pub type OutputStream =
    Pin<Box<dyn Stream<Item = Result<OutputChunk, SandboxError>> + Send + 'static>>;

/// Reusable configuration that makes sandboxes. Immutable, shared by any number of sessions.
#[async_trait]
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a sandbox backend",
    note = "implement `Backend` from `cantle_core::sandbox`, or wrap it in an `Arc`"
)]
pub trait Backend: fmt::Debug + Send + Sync {
    /// Names the backend in reports, e.g. `local`.
    fn name(&self) -> &str;

    /// Opens a sandbox.
    ///
    /// # Errors
    /// [`SandboxErrorKind::Unenforceable`] where the policy is strict and a field of it can't be
    /// enforced; [`SandboxErrorKind::Unavailable`] where something is missing (a shell, an engine),
    /// with advice on what to install or set.
    async fn open(&self, cx: SandboxContext) -> Result<Arc<dyn Sandbox>, SandboxError>;

    /// Opens a sandbox that [`Sandbox::persist`] left behind, for the run and under the policy of
    /// `cx`; secrets of the environment are in the policy and nowhere else.
    ///
    /// # Errors
    /// [`SandboxErrorKind::Gone`] where it no longer exists; [`SandboxErrorKind::Unsupported`]
    /// where the backend keeps nothing.
    async fn reattach(
        &self,
        handle: &SandboxHandle,
        cx: SandboxContext,
    ) -> Result<Arc<dyn Sandbox>, SandboxError> {
        let _ = (handle, cx);
        Err(SandboxError::unsupported(format!(
            "the {} backend keeps no sandboxes",
            self.name()
        )))
    }
}

/// What a backend knows when it opens a sandbox, or opens it again.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SandboxContext {
    /// Names what is opened (labels, directories), so that it can be told from others'.
    pub run: RunId,
    /// What code in it may do.
    pub policy: Policy,
    /// Whether its files may have to outlive our process: [`Sandbox::persist`] will be asked for.
    /// A backend that could keep them elsewhere (in memory) then doesn't.
    pub durable: bool,
    /// Where to tell people what takes long: an image that is pulled, a line each.
    pub progress: Arc<dyn Progress>,
}

impl SandboxContext {
    /// A sandbox for `run` under `policy` that ends with us.
    #[must_use]
    pub fn new(run: RunId, policy: Policy) -> Self {
        Self {
            run,
            policy,
            durable: false,
            progress: Arc::new(NoProgress),
        }
    }

    /// The same for files that may have to outlive our process.
    #[must_use]
    pub fn durable(mut self) -> Self {
        self.durable = true;
        self
    }

    /// The same with somebody who watches while it is opened.
    #[must_use]
    pub fn with_progress(mut self, progress: Arc<dyn Progress>) -> Self {
        self.progress = progress;
        self
    }
}

/// Names a sandbox that outlives its owner; only the backend that made it can read it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct SandboxHandle {
    /// The backend's name.
    pub backend: String,
    /// What the backend needs to find it again. Holds no secret.
    pub token: String,
}

impl SandboxHandle {
    /// A handle of `backend`.
    pub fn new(backend: impl Into<String>, token: impl Into<String>) -> Self {
        Self {
            backend: backend.into(),
            token: token.into(),
        }
    }
}

/// One live execution environment. Shared: commands and file operations may overlap.
///
/// Dropped without [`close`](Self::close), it kills its commands and removes what it can.
#[async_trait]
pub trait Sandbox: fmt::Debug + Send + Sync {
    /// What it is, and which policy field is enforced by what.
    fn info(&self) -> &SandboxInfo;

    /// Starts a command.
    ///
    /// # Errors
    /// Where it can't be started: no such program or directory, arguments too long or with NUL. A
    /// command that starts and fails is no error.
    async fn spawn(&self, request: SpawnRequest) -> Result<Box<dyn Process>, SandboxError>;

    /// Reads a regular file, or a range of it.
    ///
    /// # Errors
    /// [`SandboxErrorKind::NotAFile`] for anything else than a regular file, at once;
    /// [`SandboxErrorKind::OutsideSandbox`] where a link leads out.
    async fn read(&self, path: &SandboxPath, range: ByteRange) -> Result<ByteStream, SandboxError>;

    /// Writes a regular file, and the directories above it. A failed write leaves no partial file
    /// where [`WriteOptions::atomic`] is set (the default).
    ///
    /// # Errors
    /// As [`read`](Self::read), where the stream fails or the disk is full, and
    /// [`SandboxErrorKind::InvalidInput`] where more or fewer bytes come than
    /// [`WriteOptions::size_bytes`] says.
    async fn write(
        &self,
        path: &SandboxPath,
        options: WriteOptions,
        data: ByteStream,
    ) -> Result<(), SandboxError>;

    /// What is at a path. A link is reported as a link, not followed.
    ///
    /// # Errors
    /// [`SandboxErrorKind::NotFound`] where nothing is there.
    async fn stat(&self, path: &SandboxPath) -> Result<FileInfo, SandboxError>;

    /// What is in a directory: not recursive, sorted by name, links not followed. Paths are
    /// relative to the directory.
    ///
    /// # Errors
    /// [`SandboxErrorKind::NotADirectory`] where it is none.
    async fn list(&self, path: &SandboxPath) -> Result<Vec<FileInfo>, SandboxError>;

    /// Makes a directory and those above it; one that exists is fine.
    ///
    /// # Errors
    /// [`SandboxErrorKind::AlreadyExists`] where something else is there.
    async fn mkdir(&self, path: &SandboxPath) -> Result<(), SandboxError>;

    /// Removes a file, a link (not what it points to) or a directory with all that is in it.
    ///
    /// # Errors
    /// [`SandboxErrorKind::NotFound`] where nothing is there.
    async fn remove(&self, path: &SandboxPath) -> Result<(), SandboxError>;

    /// Moves a file or directory, replacing a file that is in its way.
    ///
    /// # Errors
    /// [`SandboxErrorKind::NotFound`] where nothing is there.
    async fn rename(&self, from: &SandboxPath, to: &SandboxPath) -> Result<(), SandboxError>;

    /// Arranges for the sandbox to outlive this process, as far as [`SandboxInfo::survival`] says:
    /// dropping it then leaves it for [`Backend::reattach`]. [`close`](Self::close) removes it all
    /// the same.
    ///
    /// # Errors
    /// [`SandboxErrorKind::Unsupported`] where it can't.
    async fn persist(&self) -> Result<SandboxHandle, SandboxError> {
        Err(SandboxError::unsupported("this sandbox can't be kept"))
    }

    /// Kills what runs and removes what was made. A second call does nothing.
    ///
    /// # Errors
    /// Where something may be left behind; it says what.
    async fn close(&self) -> Result<(), SandboxError>;
}

/// One running command. Dropped, it is killed with everything it started.
#[async_trait]
pub trait Process: Send {
    /// Its process id as seen inside the sandbox, where there is one.
    fn id(&self) -> Option<u32>;

    /// Its output, once. The stream ends soon after the command itself ends, even where a
    /// background child holds the pipe. Output that nobody takes or that is dropped is discarded,
    /// and counted.
    fn take_output(&mut self) -> Option<OutputStream>;

    /// Its input, once, where the request asked for [`Stdin::Piped`] or a terminal.
    fn take_stdin(&mut self) -> Option<Box<dyn ProcessStdin>>;

    /// Sends a signal to the command's process group.
    ///
    /// # Errors
    /// [`SandboxErrorKind::Unsupported`] where the backend can't; a command that has ended is fine.
    async fn signal(&mut self, signal: i32) -> Result<(), SandboxError>;

    /// Tells its terminal a new size.
    ///
    /// # Errors
    /// [`SandboxErrorKind::Unsupported`] where it has no terminal.
    async fn resize(&mut self, size: PtySize) -> Result<(), SandboxError> {
        let _ = size;
        Err(SandboxError::unsupported("the command has no terminal"))
    }

    /// Waits for the end of the command. May be called again, with the same answer. Cancel-safe.
    ///
    /// # Errors
    /// [`SandboxErrorKind::Gone`] where the sandbox ended first.
    async fn wait(&mut self) -> Result<Exit, SandboxError>;
}

/// The input of a running command. Dropped, it is closed.
#[async_trait]
pub trait ProcessStdin: Send {
    /// Writes all of `data`, at the pace the command reads it.
    ///
    /// # Errors
    /// [`SandboxErrorKind::Closed`] where the command no longer reads.
    async fn write(&mut self, data: Bytes) -> Result<(), SandboxError>;
}

/// A piece of a command's output.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "a channel and its bytes, nothing more"
)]
pub struct OutputChunk {
    /// Where it was written to.
    pub channel: Channel,
    /// The bytes, as they came: cut anywhere, in any encoding.
    pub bytes: Bytes,
}

/// An output channel of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(
    clippy::exhaustive_enums,
    reason = "a process has these two; a terminal is one stream"
)]
pub enum Channel {
    /// Standard output, and everything a terminal shows.
    Stdout,
    /// Standard error.
    Stderr,
}
