//! Commands and files of a sandbox that is at the other end of one stream.
//!
//! In the sandbox runs the supervisor's relay (`supervisor relay`), as the first process of a container
//! or as one that was started in it. [`Relay`] speaks with it: commands mean what they mean
//! in a local sandbox, and files are read and written in the sandbox's own view, without any program
//! of the sandbox's. Where the stream comes from is its owner's business; when it ends, the relay
//! kills what it has started, and everything that is asked here answers
//! [`Gone`](cantle_core::sandbox::SandboxErrorKind::Gone).

mod command;
mod feed;
mod files;
mod inbox;
mod link;
mod options;
mod staging;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use cantle_core::sandbox::{
    ByteRange, ByteStream, FileInfo, Process, SandboxError, SandboxErrorKind, SandboxPath,
    SpawnRequest, WriteOptions,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

use self::files::Gates;
use self::link::Link;
pub use self::options::RelayOptions;
use self::staging::Staged;
pub(crate) use self::staging::{Brought, StagedFile, Staging, StagingError};

/// How long a relay that is ready may take to look for a shell.
const SHELL_DEADLINE: Duration = Duration::from_secs(20);

/// A relay that answers. Cloned, it is the same one; when the last clone is dropped, the stream
/// ends, and everything that the relay has started with it.
#[derive(Clone)]
pub struct Relay {
    inner: Arc<Inner>,
}

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

struct Inner {
    link: Link,
    options: RelayOptions,
    shell: Option<OsString>,
    /// The variables of every command.
    environment: BTreeMap<OsString, OsString>,
    gates: Gates,
    staged: Staged,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The environment may hold secrets.
        f.debug_struct("Relay")
            .field("options", &self.options)
            .field("shell", &self.shell)
            .field("is_gone", &self.link.stream.gone().is_cancelled())
            .finish()
    }
}

impl Inner {
    /// Where programs are looked for.
    fn search_path(&self) -> &OsStr {
        let path = self.environment.get(OsStr::new("PATH"));
        path.map(OsString::as_os_str).unwrap_or_default()
    }
}

impl Relay {
    /// Speaks to a relay that was just started: `reader` is its output, `writer` its input.
    ///
    /// # Errors
    /// [`Unavailable`](cantle_core::sandbox::SandboxErrorKind::Unavailable) where it doesn't
    /// answer in time or says nonsense, as when the program can't be started.
    pub async fn connect(
        reader: impl AsyncRead + Send + Unpin + 'static,
        writer: impl AsyncWrite + Send + Unpin + 'static,
        options: RelayOptions,
    ) -> Result<Self, SandboxError> {
        let link = Link::open(reader, writer, options.setup()?).await?;
        let mut inner = Inner {
            link,
            options,
            shell: None,
            environment: BTreeMap::new(),
            gates: Gates::new(),
            staged: Staged::default(),
        };
        let found = timeout(SHELL_DEADLINE, inner.find_shell()).await;
        inner.shell = found.map_err(|_| {
            let message = "the supervisor in the sandbox doesn't answer";
            SandboxError::new(SandboxErrorKind::Unavailable, message)
        })??;
        inner.environment = inner.options.variables(inner.shell.as_deref());
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// The shell that runs command lines; none where the sandbox has none of the candidates.
    #[must_use]
    pub fn shell(&self) -> Option<&OsStr> {
        self.inner.shell.as_deref()
    }

    /// Completes when the stream has ended.
    pub fn gone(&self) -> impl Future<Output = ()> + Send + 'static {
        self.inner.link.stream.gone().clone().cancelled_owned()
    }

    /// Whether the stream has ended.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.inner.link.stream.gone().is_cancelled()
    }

    /// Starts a command; see [`Sandbox::spawn`](cantle_core::sandbox::Sandbox::spawn).
    ///
    /// # Errors
    /// As there.
    pub async fn spawn(&self, request: SpawnRequest) -> Result<Box<dyn Process>, SandboxError> {
        let process = command::start(&self.inner, request).await?;
        Ok(Box::new(process))
    }

    /// Reads a file; see [`Sandbox::read`](cantle_core::sandbox::Sandbox::read).
    ///
    /// # Errors
    /// As there.
    pub async fn read(
        &self,
        path: &SandboxPath,
        range: ByteRange,
    ) -> Result<ByteStream, SandboxError> {
        self.inner.read(path, range).await
    }

    /// Writes a file; see [`Sandbox::write`](cantle_core::sandbox::Sandbox::write). All writes are
    /// atomic, asked for or not.
    ///
    /// # Errors
    /// As there.
    pub async fn write(
        &self,
        path: &SandboxPath,
        options: WriteOptions,
        data: ByteStream,
    ) -> Result<(), SandboxError> {
        self.inner.write(path, options, data).await
    }

    /// What is at a path; see [`Sandbox::stat`](cantle_core::sandbox::Sandbox::stat).
    ///
    /// # Errors
    /// As there.
    pub async fn stat(&self, path: &SandboxPath) -> Result<FileInfo, SandboxError> {
        self.inner.stat(path).await
    }

    /// What is in a directory; see [`Sandbox::list`](cantle_core::sandbox::Sandbox::list).
    ///
    /// # Errors
    /// As there.
    pub async fn list(&self, path: &SandboxPath) -> Result<Vec<FileInfo>, SandboxError> {
        self.inner.list(path).await
    }

    /// Makes a directory; see [`Sandbox::mkdir`](cantle_core::sandbox::Sandbox::mkdir).
    ///
    /// # Errors
    /// As there.
    pub async fn mkdir(&self, path: &SandboxPath) -> Result<(), SandboxError> {
        self.inner.mkdir(path).await
    }

    /// Removes what is at a path; see [`Sandbox::remove`](cantle_core::sandbox::Sandbox::remove).
    ///
    /// # Errors
    /// As there.
    pub async fn remove(&self, path: &SandboxPath) -> Result<(), SandboxError> {
        self.inner.remove(path).await
    }

    /// Moves something; see [`Sandbox::rename`](cantle_core::sandbox::Sandbox::rename).
    ///
    /// # Errors
    /// As there.
    pub async fn rename(&self, from: &SandboxPath, to: &SandboxPath) -> Result<(), SandboxError> {
        self.inner.rename(from, to).await
    }

    /// Ends the stream and waits for the relay's end, with which nothing is left of what it started.
    /// What is asked from now on answers
    /// [`Closed`](cantle_core::sandbox::SandboxErrorKind::Closed).
    ///
    /// # Errors
    /// Where the relay doesn't end in time.
    pub async fn close(&self) -> Result<(), SandboxError> {
        self.inner.link.close().await
    }
}
