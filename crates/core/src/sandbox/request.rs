//! What is asked of a sandbox: a command and its circumstances.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::Duration;

use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use super::SandboxPath;
use crate::secret::SecretText;

/// A command to start.
///
/// ```
/// use std::time::Duration;
/// use cantle_core::sandbox::SpawnRequest;
///
/// let request = SpawnRequest::shell("wc -l *.csv").with_timeout(Duration::from_secs(60));
/// assert_eq!(request.timeout, Some(Duration::from_secs(60)));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SpawnRequest {
    /// What to run.
    pub command: Command,
    /// Where; the working directory by default.
    pub directory: SandboxPath,
    /// Variables on top of the sandbox's own environment. Nothing is inherited from our process.
    pub environment: BTreeMap<String, SecretText>,
    /// Its input.
    pub stdin: Stdin,
    /// A terminal of this size as its input and output, instead of pipes.
    pub pty: Option<PtySize>,
    /// How long it may take: at its end nothing of the command is left.
    pub timeout: Option<Duration>,
    /// How long before the end of `timeout` it and everything it started get TERM; at the end they
    /// get KILL. Where it is longer than half of `timeout`, it is half of it.
    pub grace: Duration,
    /// Cancelled when the command should end early.
    pub cancellation: CancellationToken,
    /// What becomes of processes that it leaves running.
    pub background: Background,
    /// Whether large output is kept in a file.
    pub spill: Option<Spill>,
}

impl SpawnRequest {
    /// A command with everything else at its default.
    #[must_use]
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
        }
    }

    /// A command line for the sandbox's shell (bash).
    pub fn shell(command: impl Into<OsString>) -> Self {
        Self::new(Command::Shell(command.into()))
    }

    /// A program and its arguments, without a shell.
    pub fn argv<A: Into<OsString>>(argv: impl IntoIterator<Item = A>) -> Self {
        Self::new(Command::Argv(argv.into_iter().map(Into::into).collect()))
    }

    /// The same in this directory.
    #[must_use]
    pub fn in_directory(mut self, directory: SandboxPath) -> Self {
        self.directory = directory;
        self
    }

    /// The same with a variable.
    #[must_use]
    pub fn with_env(mut self, name: impl Into<String>, value: impl Into<SecretText>) -> Self {
        self.environment.insert(name.into(), value.into());
        self
    }

    /// The same with this input.
    #[must_use]
    pub fn with_stdin(mut self, stdin: Stdin) -> Self {
        self.stdin = stdin;
        self
    }

    /// The same with a terminal.
    #[must_use]
    pub fn with_pty(mut self, size: PtySize) -> Self {
        self.pty = Some(size);
        self
    }

    /// The same with a time limit.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// The same with this time between TERM and KILL.
    #[must_use]
    pub fn with_grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// The same, ending early when `token` is cancelled.
    #[must_use]
    pub fn with_cancellation(mut self, token: CancellationToken) -> Self {
        self.cancellation = token;
        self
    }

    /// The same with another fate for processes left running.
    #[must_use]
    pub fn with_background(mut self, background: Background) -> Self {
        self.background = background;
        self
    }

    /// The same with large output kept in a file.
    #[must_use]
    pub fn with_spill(mut self, spill: Spill) -> Self {
        self.spill = Some(spill);
        self
    }
}

/// What to run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "with a shell or without")]
pub enum Command {
    /// A command line for the sandbox's shell (bash).
    Shell(OsString),
    /// A program, looked up in the sandbox's `PATH`, and its arguments.
    Argv(Vec<OsString>),
}

/// A command's input.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stdin {
    /// At its end from the start, so that nothing waits for a terminal.
    Null,
    /// These bytes, then the end.
    Bytes(Bytes),
    /// What is written to [`Process::take_stdin`](super::Process::take_stdin).
    Piped,
}

/// The size of a terminal, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "a terminal has these two dimensions"
)]
pub struct PtySize {
    /// Lines.
    pub rows: u16,
    /// Characters a line.
    pub columns: u16,
}

/// What becomes of processes that a command leaves running when it ends by itself. A timeout or a
/// cancellation kills them in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "they stay or they go")]
pub enum Background {
    /// They are killed.
    Kill,
    /// They run on until the sandbox is closed, and are listed in [`Exit::background`].
    ///
    /// [`Exit::background`]: super::Exit::background
    Keep,
}

/// Output kept in a file inside the sandbox, one a channel, once there is enough of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Spill {
    /// A channel with at most this many bytes makes no file.
    pub after_bytes: u64,
    /// What comes after this many bytes is counted and discarded; the command lives on.
    pub cap_bytes: u64,
}

impl Spill {
    /// The cap unless another one is asked for.
    pub const DEFAULT_CAP_BYTES: u64 = 256 * 1024 * 1024;

    /// A file as soon as a channel has more than `after_bytes`, up to the default cap.
    #[must_use]
    pub fn after(after_bytes: u64) -> Self {
        Self {
            after_bytes,
            cap_bytes: Self::DEFAULT_CAP_BYTES,
        }
    }

    /// The same with another cap.
    #[must_use]
    pub fn with_cap(mut self, cap_bytes: u64) -> Self {
        self.cap_bytes = cap_bytes;
        self
    }
}
