//! Pipes and terminals of a command: the ends that it gets, and ours.

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
use super::output::window_size;
use super::output::{OutputSource, Terminal};
use super::stdin::LocalInput;

/// Both ends of a command's channels.
#[derive(Debug)]
pub(super) struct Channels {
    /// The command's input, output and errors; empty if the sandbox makes a terminal.
    pub(super) command_ends: Vec<OwnedFd>,
    pub(super) own_ends: OwnEnds,
}

/// Our ends of the channels, before the command runs.
#[derive(Debug)]
#[cfg_attr(
    not(confined),
    expect(dead_code, reason = "there are no terminals without a supervisor")
)]
pub(super) enum OwnEnds {
    Pipes {
        stdin: Option<OwnedFd>,
        stdout: OwnedFd,
        stderr: OwnedFd,
    },
    /// The master of a terminal of the host.
    HostTerminal(OwnedFd),
    /// The sandbox makes a terminal of this size and sends its master.
    SandboxTerminal(PtySize),
}

/// Our ends of a running command's channels, registered with the runtime.
#[derive(Debug)]
pub(super) struct OpenEnds {
    pub(super) stdin: Option<LocalInput>,
    pub(super) stdout: OutputSource,
    pub(super) stderr: OutputSource,
    pub(super) terminal: Option<Arc<Terminal>>,
}

impl Channels {
    /// Makes pipes. Input that is empty is at its end from the start.
    pub(super) fn pipes(stdin: &Stdin) -> io::Result<Self> {
        let (stdin_reader, stdin_writer) = new_pipe()?;
        let (stdout, stdout_writer) = new_pipe()?;
        let (stderr, stderr_writer) = new_pipe()?;
        let stdin = match stdin {
            Stdin::Null => None,
            Stdin::Bytes(data) if data.is_empty() => None,
            _ => Some(stdin_writer),
        };
        Ok(Self {
            command_ends: vec![stdin_reader, stdout_writer, stderr_writer],
            own_ends: OwnEnds::Pipes {
                stdin,
                stdout,
                stderr,
            },
        })
    }

    /// Makes the channels that a request asks for.
    #[cfg(confined)]
    pub(super) fn new(request: &SpawnRequest, sandbox_has_terminals: bool) -> io::Result<Self> {
        match request.pty {
            None => {
                let channels = Self::pipes(&request.stdin)?;
                // A name such as `/dev/stderr` reopens a pipe, and commands may run as another user.
                for end in &channels.command_ends {
                    fchmod(end, Mode::from_raw_mode(0o666))?;
                }
                Ok(channels)
            }
            // A terminal that the sandbox makes has a name inside it.
            Some(size) if sandbox_has_terminals => Ok(Self {
                command_ends: Vec::new(),
                own_ends: OwnEnds::SandboxTerminal(size),
            }),
            Some(size) => Self::host_terminal(size),
        }
    }

    #[cfg(confined)]
    fn host_terminal(size: PtySize) -> io::Result<Self> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags)?;
        unlockpt(&master)?;
        tcsetwinsize(&master, window_size(size))?;
        let slave = ioctl_tiocgptpeer(&master, flags)?;
        Ok(Self {
            command_ends: vec![slave.try_clone()?, slave.try_clone()?, slave],
            own_ends: OwnEnds::HostTerminal(master),
        })
    }

    /// Whether the command's input is a terminal of the host.
    #[cfg(confined)]
    pub(super) fn is_host_terminal(&self) -> bool {
        matches!(self.own_ends, OwnEnds::HostTerminal(_))
    }

    /// Rows and columns of the terminal that the sandbox makes.
    #[cfg(confined)]
    pub(super) fn sandbox_terminal(&self) -> Option<(u16, u16)> {
        match self.own_ends {
            OwnEnds::SandboxTerminal(size) => Some((size.rows, size.columns)),
            _ => None,
        }
    }
}

impl OwnEnds {
    /// Registers the ends with the runtime; `master` is the terminal that the sandbox sent.
    pub(super) fn open(self, master: Option<OwnedFd>) -> io::Result<OpenEnds> {
        let terminal = match (self, master) {
            (
                Self::Pipes {
                    stdin,
                    stdout,
                    stderr,
                },
                _,
            ) => {
                let stdin = stdin.map(pipe::Sender::from_owned_fd).transpose()?;
                return Ok(OpenEnds {
                    stdin: stdin.map(LocalInput::Pipe),
                    stdout: receiver(stdout)?,
                    stderr: receiver(stderr)?,
                    terminal: None,
                });
            }
            (Self::HostTerminal(master), _) | (Self::SandboxTerminal(_), Some(master)) => master,
            (Self::SandboxTerminal(_), None) => {
                let message = "the supervisor did not send the terminal";
                return Err(io::Error::other(message));
            }
        };
        let terminal = Arc::new(Terminal::new(terminal)?);
        // A terminal is a single stream; the other channel is at its end.
        let (empty, _) = new_pipe()?;
        Ok(OpenEnds {
            stdin: Some(LocalInput::Terminal(Arc::clone(&terminal))),
            stdout: OutputSource::Terminal(Arc::clone(&terminal)),
            stderr: receiver(empty)?,
            terminal: Some(terminal),
        })
    }
}

fn receiver(pipe: OwnedFd) -> io::Result<OutputSource> {
    pipe::Receiver::from_owned_fd(pipe).map(OutputSource::Pipe)
}

/// Makes a pipe: its reader and its writer.
fn new_pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = io::pipe()?;
    Ok((reader.into(), writer.into()))
}
