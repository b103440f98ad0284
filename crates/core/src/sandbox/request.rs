//! Requests to start a command.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::Duration;

use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use super::SandboxPath;
use crate::secret::SecretText;

/// A request to start a command.
///
/// ```
/// use std::time::Duration;
/// use cantle_core::sandbox::SpawnRequest;
///
/// let request = SpawnRequest::shell("wc -l *.csv").with_timeout(Duration::from_secs(60));
/// assert_eq!(request.timeout, Some(Duration::from_secs(60)));
/// ```
#[must_use]
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SpawnRequest {
    /// The command.
    pub command: Command,
    /// The directory to start in; the working directory by default.
    pub directory: SandboxPath,
    /// Variables in addition to the sandbox's environment. None are inherited from this process.
    pub environment: BTreeMap<String, SecretText>,
    /// The standard input.
    pub stdin: Stdin,
    /// Size of a terminal to use for input and output instead of pipes.
    pub pty: Option<PtySize>,
    /// The time limit, after which the command and its descendants get SIGTERM.
    pub timeout: Option<Duration>,
    /// Time from SIGTERM to SIGKILL.
    pub grace: Duration,
    /// Cancels the command.
    pub cancellation: CancellationToken,
    /// How to treat processes that the command leaves running.
    pub background: Background,
    /// Whether to write large output to a file.
    pub spill: Option<Spill>,
    /// The only directory below which the command and its children may change files, enforced by the kernel in addition to
    /// the policy: elsewhere they can neither write, create, rename or remove files nor change their metadata. `None`
    /// if the policy alone decides. It must exist, and not be a link. A backend that can't enforce it refuses the command.
    pub read_only_except: Option<SandboxPath>,
}

impl SpawnRequest {
    /// Creates a request with default options.
    pub fn new(command: Command) -> Self {
        Self {
            command,
            directory: SandboxPath::working_directory(),
            environment: BTreeMap::new(),
            stdin: Stdin::Null,
            pty: None,
            timeout: None,
            grace: Duration::from_secs(2),
            cancellation: CancellationToken::new(),
            background: Background::Kill,
            spill: None,
            read_only_except: None,
        }
    }

    /// Creates a request for a command line of the sandbox's shell (bash).
    pub fn shell(command: impl Into<OsString>) -> Self {
        Self::new(Command::Shell(command.into()))
    }

    /// Creates a request for a program and its arguments, without a shell.
    pub fn argv<A: Into<OsString>>(argv: impl IntoIterator<Item = A>) -> Self {
        Self::new(Command::Argv(argv.into_iter().map(Into::into).collect()))
    }

    /// Sets the directory to start in.
    pub fn in_directory(mut self, directory: SandboxPath) -> Self {
        self.directory = directory;
        self
    }

    /// Adds an environment variable.
    pub fn with_env(mut self, name: impl Into<String>, value: impl Into<SecretText>) -> Self {
        self.environment.insert(name.into(), value.into());
        self
    }

    /// Sets the standard input.
    pub fn with_stdin(mut self, stdin: Stdin) -> Self {
        self.stdin = stdin;
        self
    }

    /// Requests a terminal.
    pub fn with_pty(mut self, size: PtySize) -> Self {
        self.pty = Some(size);
        self
    }

    /// Sets the time limit.
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets the time between SIGTERM and SIGKILL.
    pub fn with_grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Sets the cancellation token.
    pub fn with_cancellation(mut self, token: CancellationToken) -> Self {
        self.cancellation = token;
        self
    }

    /// Sets how to treat processes that the command leaves running.
    pub fn with_background(mut self, background: Background) -> Self {
        self.background = background;
        self
    }

    /// Lets the command change files only below this directory.
    pub fn read_only_except(mut self, directory: SandboxPath) -> Self {
        self.read_only_except = Some(directory);
        self
    }

    /// Writes large output to a file.
    pub fn with_spill(mut self, spill: Spill) -> Self {
        self.spill = Some(spill);
        self
    }
}

/// A shell command line or a program.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "with a shell or without")]
pub enum Command {
    /// A command line of the sandbox's shell (bash).
    Shell(OsString),
    /// A program, looked up in the sandbox's `PATH`, and its arguments.
    Argv(Vec<OsString>),
}

/// The standard input of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stdin {
    /// Empty, so that no program waits for input.
    Null,
    /// These bytes, then end of file.
    Bytes(Bytes),
    /// Bytes written through [`Process::take_stdin`](super::Process::take_stdin).
    Piped,
}

/// The size of a terminal, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "a terminal has these two dimensions"
)]
pub struct PtySize {
    /// Number of lines.
    pub rows: u16,
    /// Characters per line.
    pub columns: u16,
}

/// How to treat processes that a command leaves running when it exits. A timeout or a cancellation
/// always kills them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "processes are kept or killed")]
pub enum Background {
    /// Kill them.
    Kill,
    /// Keep them until the sandbox is closed, and list them in [`Exit::background`].
    ///
    /// [`Exit::background`]: super::Exit::background
    Keep,
}

/// Options for writing large output to a file in the sandbox, one per channel.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Spill {
    /// A channel with at most this many bytes gets no file.
    pub after_bytes: u64,
    /// Maximum size of the file; further output is counted and discarded.
    pub cap_bytes: u64,
}

impl Spill {
    /// Default of [`cap_bytes`](Self::cap_bytes).
    pub const DEFAULT_CAP_BYTES: u64 = 256 * 1024 * 1024;

    /// Writes a file for a channel with more than `after_bytes`, up to the default cap.
    pub fn after(after_bytes: u64) -> Self {
        Self {
            after_bytes,
            cap_bytes: Self::DEFAULT_CAP_BYTES,
        }
    }

    /// Sets the maximum size of the file.
    pub fn with_cap(mut self, cap_bytes: u64) -> Self {
        self.cap_bytes = cap_bytes;
        self
    }
}
