//! Commands and files of a sandbox behind one stream.
//!
//! The supervisor's relay (`supervisor relay`) runs in the sandbox, as the first process of a container or as
//! an exec. [`Relay`] is its client: commands behave as in a local sandbox, and files are accessed in the
//! sandbox's view without any program of the image. The caller provides the stream; when it ends, the relay
//! kills all processes, and all calls fail with [`Gone`](cantle_core::sandbox::SandboxErrorKind::Gone).

mod command;
mod files;
mod inbox;
mod link;
mod options;

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

use self::files::TaskLimits;
use self::link::Link;
pub use self::options::RelayOptions;

/// Time limit for finding a shell.
const SHELL_TIMEOUT: Duration = Duration::from_secs(20);

/// Client of a relay. When the last clone is dropped, the stream and all of the relay's processes end.
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
    task_limits: TaskLimits,
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

impl Relay {
    /// Connects to a relay that was just started: `reader` is its output, `writer` its input.
    ///
    /// # Errors
    /// [`Unavailable`](cantle_core::sandbox::SandboxErrorKind::Unavailable) if it does
    /// not respond in time or the response is invalid, e.g. because the program can't be started.
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
            task_limits: TaskLimits::new(),
        };
        let found = timeout(SHELL_TIMEOUT, inner.find_shell()).await;
        inner.shell = found.map_err(|_| {
            let message = "the supervisor in the sandbox does not respond";
            SandboxError::new(SandboxErrorKind::Unavailable, message)
        })??;
        inner.environment = inner.options.variables(inner.shell.as_deref());
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// Returns the shell for command lines; `None` if the sandbox has none of the candidates.
    #[must_use]
    pub fn shell(&self) -> Option<&OsStr> {
        self.inner.shell.as_deref()
    }

    /// Completes when the stream has ended.
    pub fn gone(&self) -> impl Future<Output = ()> + Send + 'static {
        self.inner.link.stream.gone().clone().cancelled_owned()
    }

    /// Returns whether the stream has ended.
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
    /// atomic.
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

    /// Returns information about a path; see [`Sandbox::stat`](cantle_core::sandbox::Sandbox::stat).
    ///
    /// # Errors
    /// As there.
    pub async fn stat(&self, path: &SandboxPath) -> Result<FileInfo, SandboxError> {
        self.inner.stat(path).await
    }

    /// Lists a directory; see [`Sandbox::list`](cantle_core::sandbox::Sandbox::list).
    ///
    /// # Errors
    /// As there.
    pub async fn list(&self, path: &SandboxPath) -> Result<Vec<FileInfo>, SandboxError> {
        self.inner.list(path).await
    }

    /// Creates a directory; see [`Sandbox::mkdir`](cantle_core::sandbox::Sandbox::mkdir).
    ///
    /// # Errors
    /// As there.
    pub async fn mkdir(&self, path: &SandboxPath) -> Result<(), SandboxError> {
        self.inner.mkdir(path).await
    }

    /// Removes a file or directory; see [`Sandbox::remove`](cantle_core::sandbox::Sandbox::remove).
    ///
    /// # Errors
    /// As there.
    pub async fn remove(&self, path: &SandboxPath) -> Result<(), SandboxError> {
        self.inner.remove(path).await
    }

    /// Renames a file or directory; see [`Sandbox::rename`](cantle_core::sandbox::Sandbox::rename).
    ///
    /// # Errors
    /// As there.
    pub async fn rename(&self, from: &SandboxPath, to: &SandboxPath) -> Result<(), SandboxError> {
        self.inner.rename(from, to).await
    }

    /// Ends the stream and waits for the end of the relay and all its processes.
    ///
    /// Further calls fail with [`Closed`](cantle_core::sandbox::SandboxErrorKind::Closed).
    ///
    /// # Errors
    /// The relay does not end in time.
    pub async fn close(&self) -> Result<(), SandboxError> {
        self.inner.link.close().await
    }
}
