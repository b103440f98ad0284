//! A command's input and output, before and after its start: the ends that it gets, and ours.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

#[cfg(confined)]
use cantle_core::sandbox::SpawnRequest;
use cantle_core::sandbox::{PtySize, Stdin};
#[cfg(confined)]
use rustix::fs::{Mode, fchmod};
#[cfg(confined)]
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
#[cfg(confined)]
use rustix::termios::tcsetwinsize;
use tokio::net::unix::pipe;

#[cfg(confined)]
use super::source::window;
use super::source::{Source, Terminal};
use super::stdin::Sink;

/// What is handed to the supervisor, and what is kept.
#[derive(Debug)]
pub(super) struct Channels {
    /// The command's input, output and errors; nothing where the sandbox makes a terminal.
    pub(super) theirs: Vec<OwnedFd>,
    ours: Ours,
}

#[derive(Debug)]
#[cfg_attr(
    not(confined),
    expect(dead_code, reason = "there are no terminals without a supervisor")
)]
pub(super) enum Ours {
    Pipes {
        stdin: Option<OwnedFd>,
        stdout: OwnedFd,
        stderr: OwnedFd,
    },
    /// The terminal's master is ours from the start.
    Terminal(OwnedFd),
    /// It will come from the sandbox.
    Awaited(PtySize),
}

/// Our ends of a running command's channels.
#[derive(Debug)]
pub(super) struct Ends {
    pub(super) stdin: Option<Sink>,
    pub(super) stdout: Source,
    pub(super) stderr: Source,
    pub(super) terminal: Option<Arc<Terminal>>,
}

impl Channels {
    /// Pipes. Without anything to write, the input is at its end from the start.
    pub(super) fn pipes(stdin: &Stdin) -> io::Result<Self> {
        let (their_stdin, stdin_end) = new_pipe()?;
        let (stdout, stdout_end) = new_pipe()?;
        let (stderr, stderr_end) = new_pipe()?;
        let stdin = match stdin {
            Stdin::Null => None,
            Stdin::Bytes(data) if data.is_empty() => None,
            _ => Some(stdin_end),
        };
        Ok(Self {
            theirs: vec![their_stdin, stdout_end, stderr_end],
            ours: Ours::Pipes {
                stdin,
                stdout,
                stderr,
            },
        })
    }

    /// What a request asks for; `has_terminals` says whether the sandbox makes terminals.
    #[cfg(confined)]
    pub(super) fn new(request: &SpawnRequest, has_terminals: bool) -> io::Result<Self> {
        match request.pty {
            None => {
                let channels = Self::pipes(&request.stdin)?;
                // A name such as `/dev/stderr` opens a pipe anew, and commands may be another user than
                // we are.
                for end in &channels.theirs {
                    fchmod(end, Mode::from_raw_mode(0o666))?;
                }
                Ok(channels)
            }
            Some(size) if has_terminals => Ok(Self::own_terminal(size)),
            Some(size) => Self::our_terminal(size),
        }
    }

    /// A terminal that the sandbox makes, so that it has a name in there.
    #[cfg(confined)]
    fn own_terminal(size: PtySize) -> Self {
        Self {
            theirs: Vec::new(),
            ours: Ours::Awaited(size),
        }
    }

    /// A terminal of the host's.
    #[cfg(confined)]
    fn our_terminal(size: PtySize) -> io::Result<Self> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags)?;
        unlockpt(&master)?;
        tcsetwinsize(&master, window(size))?;
        let slave = ioctl_tiocgptpeer(&master, flags)?;
        Ok(Self {
            theirs: vec![slave.try_clone()?, slave.try_clone()?, slave],
            ours: Ours::Terminal(master),
        })
    }

    /// Whether the command's input is a terminal that comes from here.
    #[cfg(confined)]
    pub(super) fn is_terminal(&self) -> bool {
        matches!(self.ours, Ours::Terminal(_))
    }

    /// The rows and columns of the terminal that the sandbox should make.
    #[cfg(confined)]
    pub(super) fn wanted(&self) -> Option<(u16, u16)> {
        match self.ours {
            Ours::Awaited(size) => Some((size.rows, size.columns)),
            _ => None,
        }
    }

    /// Our ends, and the command's.
    pub(super) fn split(self) -> (Ours, Vec<OwnedFd>) {
        (self.ours, self.theirs)
    }
}

impl Ours {
    /// What is read and written once the command runs; `master` is what came from the sandbox.
    pub(super) fn open(self, master: Option<OwnedFd>) -> io::Result<Ends> {
        let terminal = match (self, master) {
            (
                Self::Pipes {
                    stdin,
                    stdout,
                    stderr,
                },
                _,
            ) => {
                return Ok(Ends {
                    stdin: stdin
                        .map(pipe::Sender::from_owned_fd)
                        .transpose()?
                        .map(Sink::Pipe),
                    stdout: receiver(stdout)?,
                    stderr: receiver(stderr)?,
                    terminal: None,
                });
            }
            (Self::Terminal(master), _) | (Self::Awaited(_), Some(master)) => master,
            (Self::Awaited(_), None) => {
                let message = "the sandbox did not hand out the terminal";
                return Err(io::Error::other(message));
            }
        };
        let terminal = Arc::new(Terminal::new(terminal)?);
        // A terminal has one channel; the other one is at its end.
        let (nothing, _) = new_pipe()?;
        Ok(Ends {
            stdin: Some(Sink::Terminal(Arc::clone(&terminal))),
            stdout: Source::Terminal(Arc::clone(&terminal)),
            stderr: receiver(nothing)?,
            terminal: Some(terminal),
        })
    }
}

fn receiver(pipe: OwnedFd) -> io::Result<Source> {
    pipe::Receiver::from_owned_fd(pipe).map(Source::Pipe)
}

/// A pipe: where it is read, and where it is written.
fn new_pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = io::pipe()?;
    Ok((reader.into(), writer.into()))
}
