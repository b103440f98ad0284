//! Commands and files of a sandbox behind one stream.
//!
//! The supervisor's relay (`supervisor relay`) runs in the sandbox, as the first process of a container or as
//! an exec. [`Relay`] is its client: commands behave as in a local sandbox, and files are accessed in the
//! sandbox's view without any program of the image. The caller provides the stream; when it ends, the relay
//! kills all processes, and all calls fail with [`Gone`](cantle_core::sandbox::SandboxErrorKind::Gone).

mod command;
mod connect;
mod connection;
mod files;
mod link;
mod options;
mod stream;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use std::{fmt, io};

use bytes::Bytes;
use cantle_core::sandbox::{Connections, Process, SandboxError, SandboxErrorKind, SpawnRequest};
use cantle_proxy::Proxy;
use cantle_supervisor::frames::MAX_CONNECTIONS;
use futures_util::{Stream, StreamExt as _};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::io::ReaderStream;

use self::connection::ChannelConnection;
use self::files::TaskLimits;
use self::link::Link;
pub use self::options::RelayOptions;

/// Size of a read.
const READ_BYTES: usize = 64 * 1024;

/// Time limit for finding a shell.
const SHELL_TIMEOUT: Duration = Duration::from_secs(20);

/// Time limit for each answer, and for each piece of a longer one.
///
/// The limit also ends calls after commands with the relay's own user have stopped it.
const ANSWER_TIMEOUT: Duration = Duration::from_mins(1);

/// Time limit for a file operation that answers only when it is complete, and may have much to do.
const LONG_TASK_TIMEOUT: Duration = Duration::from_mins(10);

/// Waits for an answer of the relay; `doing` reads like "failed to read `x`".
async fn answer<T>(
    limit: Duration,
    doing: &str,
    waiting: impl Future<Output = T>,
) -> Result<T, SandboxError> {
    timeout(limit, waiting).await.map_err(|_| {
        let seconds = limit.as_secs();
        let message = format!(
            "{doing}: the supervisor in the sandbox did not answer for {seconds} seconds"
        );
        SandboxError::new(SandboxErrorKind::Io, message).with_advice(
            "Repeat it if the machine is busy. If it fails again, a command has stopped the supervisor: open a new \
             sandbox.",
        )
    })
}

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
    proxy: Option<Proxy>,
    shell: Option<OsString>,
    /// The variables of every command.
    environment: BTreeMap<OsString, OsString>,
    task_limits: TaskLimits,
    connections: Connections,
    /// The latest known number of processes killed at the memory limit.
    oom_kills: AtomicU64,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The environment may hold secrets.
        f.debug_struct("Relay")
            .field("options", &self.options)
            .field("shell", &self.shell)
            .field("is_gone", &self.link.stream.gone.is_cancelled())
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
        let chunks = ReaderStream::with_capacity(reader, READ_BYTES);
        Self::connect_chunks(chunks, writer, options).await
    }

    /// Like [`connect`](Self::connect), to a relay whose output comes in chunks.
    pub(crate) async fn connect_chunks(
        chunks: impl Stream<Item = io::Result<Bytes>> + Send + Unpin + 'static,
        writer: impl AsyncWrite + Send + Unpin + 'static,
        options: RelayOptions,
    ) -> Result<Self, SandboxError> {
        let (clients, mut connections) = mpsc::channel(MAX_CONNECTIONS);
        let clients = options.proxy.is_some().then_some(clients);
        let link = Link::open(chunks, writer, options.setup()?, clients).await?;
        let proxy = options.proxy.clone().map(|settings| {
            Proxy::serve(
                futures_util::stream::poll_fn(move |cx| connections.poll_recv(cx))
                    .map(|it| ChannelConnection::new(it.reader, Bytes::new(), it.writer, it.slot)),
                settings,
            )
        });
        let mut inner = Inner {
            link,
            options,
            proxy,
            shell: None,
            environment: BTreeMap::new(),
            task_limits: TaskLimits::new(),
            connections: Connections::default(),
            oom_kills: AtomicU64::new(0),
        };
        let found = timeout(SHELL_TIMEOUT, inner.find_shell()).await;
        inner.shell = found.map_err(|_| {
            SandboxError::unavailable("the supervisor in the sandbox does not respond")
        })??;
        inner.environment = inner.options.variables(inner.shell.as_deref());
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// Returns the shell for command lines; `None` if the sandbox has none of the candidates.
    pub fn shell(&self) -> Option<&OsStr> {
        self.inner.shell.as_deref()
    }

    /// Returns whether commands have the [system call filter](RelayOptions::filters_calls).
    pub fn has_filter(&self) -> bool {
        let Inner { link, options, .. } = &*self.inner;
        options.filters_calls && link.missing & (1 << options::FILTER) == 0
    }

    /// Completes when the stream has ended.
    pub fn gone(&self) -> impl Future<Output = ()> + Send + 'static {
        self.inner.link.stream.gone.clone().cancelled_owned()
    }

    /// Returns whether the stream has ended.
    pub fn is_gone(&self) -> bool {
        self.inner.link.stream.gone.is_cancelled()
    }

    /// Starts a command; see [`Sandbox::spawn`](cantle_core::sandbox::Sandbox::spawn).
    ///
    /// # Errors
    /// As there.
    pub async fn spawn(&self, request: SpawnRequest) -> Result<Box<dyn Process>, SandboxError> {
        let process = command::start(&self.inner, request).await?;
        Ok(Box::new(process))
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
