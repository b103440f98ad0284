//! What our process and a relay say to each other over one stream in each direction.
//!
//! Where there are no sockets to pass descriptors over (a container, of which we have the input and
//! the output), a relay stands between: it makes the pipes, and what is in them goes over the stream
//! in frames. A frame is a header of 16 bytes and, for some, a payload whose length the header
//! says. Both sides are compiled from this file, so there is no version and nothing to negotiate.
//!
//! Every channel of a command has credit of its own: nobody sends more of it than the other side has
//! room for, so that frames which say something are never behind bytes that nobody reads. A
//! channel begins with its window; what was taken from it is given back by [`Request::Grant`]
//! and [`Answer::Taken`].

use crate::wire::{Reader, put};

/// Bytes of a frame without its payload.
pub const HEADER_BYTES: usize = 16;
/// The most bytes of a channel in one frame.
pub const MOST_PAYLOAD: usize = 128 * 1024;
/// The most bytes of the body of a command or of the setup.
pub const MOST_BODY: usize = 64 * 1024 * 1024;
/// What a command may have written that its owner has not taken, for each channel. It is granted by the
/// half: a grant passes as many processes as output does.
pub const OUTPUT_WINDOW: usize = 2 * 1024 * 1024;
/// What may be on its way to a command that the command has not read.
pub const INPUT_WINDOW: usize = 1024 * 1024;

/// What a frame with so many bytes of output takes of its channel's credit: short ones take room,
/// too.
#[must_use]
pub const fn cost(length: usize) -> usize {
    length + 64
}

/// An output channel of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Standard output, or what a terminal shows.
    Output,
    /// Standard error.
    Errors,
    /// The answer to [`Request::List`].
    Processes,
}

impl Lane {
    /// All of them, each at the place of its number.
    pub const ALL: [Self; 3] = [Self::Output, Self::Errors, Self::Processes];

    fn decode(number: u32) -> Option<Self> {
        Self::ALL.get(number as usize).copied()
    }
}

/// How a command is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channels {
    /// Its output and errors are pipes; its input is at its end from the start.
    Output,
    /// Its input is a pipe as well.
    All,
    /// It has a terminal, as its body says.
    Terminal,
}

impl Channels {
    fn decode(number: u32) -> Option<Self> {
        let all = [Self::Output, Self::All, Self::Terminal];
        all.get(number as usize).copied()
    }
}

/// What the relay is asked to do. Commands are named by numbers that are never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// The first one. The payload is a body of [`Step`](crate::wire::Step)s. Answered by
    /// [`Answer::Ready`].
    Setup {
        /// Bytes of the payload.
        length: u64,
    },
    /// Starts a command. The payload is a body as for [`Order::Spawn`](crate::wire::Order::Spawn).
    Spawn {
        /// Names the command from now on.
        id: u32,
        /// How it is connected.
        channels: Channels,
        /// Bytes of the payload.
        length: u64,
    },
    /// The payload is input of the command.
    Input {
        /// The command.
        id: u32,
        /// Bytes of the payload.
        length: u64,
    },
    /// No more input comes.
    CloseInput {
        /// The command.
        id: u32,
    },
    /// So much more of a channel may be sent.
    Grant {
        /// The command.
        id: u32,
        /// The channel.
        lane: Lane,
        /// What was taken, as [`cost`] counts it.
        credit: u64,
    },
    /// What still comes of a channel is to be thrown away.
    Discard {
        /// The command.
        id: u32,
        /// The channel.
        lane: Lane,
    },
    /// Sends a signal to the process group of a command's first process.
    Signal {
        /// The command.
        id: u32,
        /// Which.
        signal: i32,
    },
    /// Sends TERM to everything a command started.
    Terminate {
        /// The command.
        id: u32,
    },
    /// Kills everything a command started.
    Kill {
        /// The command.
        id: u32,
    },
    /// Asks what is left of a command: [`Lane::Processes`] brings for each process its id, a space,
    /// its command line and a NUL, and ends. One list of a command at a time.
    List {
        /// The command.
        id: u32,
    },
    /// Takes a file out of [`OFFERED`](crate::wire::OFFERED). Answered by [`Answer::Staged`].
    Stage {
        /// The command that has offered it.
        id: u32,
        /// Which.
        number: u32,
    },
    /// Gives a part of a file that was brought to a user. Answered by [`Answer::Staged`].
    Adopt {
        /// The command that will write the rest.
        id: u32,
        /// Which; below 2^24.
        number: u32,
        /// The user and the group.
        identity: (u32, u32),
    },
    /// Removes what was brought or offered under a number.
    Unstage {
        /// Which.
        number: u32,
    },
    /// Tells a command's terminal a new size.
    Resize {
        /// The command.
        id: u32,
        /// Lines.
        rows: u16,
        /// Characters a line.
        columns: u16,
    },
}

impl Request {
    /// Bytes that follow the header.
    #[must_use]
    pub fn payload(self) -> u64 {
        match self {
            Self::Setup { length } | Self::Spawn { length, .. } | Self::Input { length, .. } => {
                length
            }
            _ => 0,
        }
    }

    /// The header.
    #[must_use]
    pub fn encode(self) -> [u8; HEADER_BYTES] {
        let (kind, detail, id, value) = match self {
            Self::Setup { length } => (1, 0, 0, length),
            Self::Spawn {
                id,
                channels,
                length,
            } => (2, channels as u32, id, length),
            Self::Input { id, length } => (3, 0, id, length),
            Self::CloseInput { id } => (4, 0, id, 0),
            Self::Grant { id, lane, credit } => (5, lane as u32, id, credit),
            Self::Discard { id, lane } => (6, lane as u32, id, 0),
            Self::Signal { id, signal } => (7, signal as u32, id, 0),
            Self::Terminate { id } => (8, 0, id, 0),
            Self::Kill { id } => (9, 0, id, 0),
            Self::List { id } => (10, 0, id, 0),
            Self::Resize { id, rows, columns } => {
                let size = u64::from(rows) << 16 | u64::from(columns);
                (11, 0, id, size)
            }
            Self::Unstage { number } => (12, 0, number, 0),
            Self::Adopt {
                id,
                number,
                identity: (uid, gid),
            } => (14, number, id, u64::from(uid) << 32 | u64::from(gid)),
            Self::Stage { id, number } => (13, 0, id, number.into()),
        };
        header(kind, detail, id, value)
    }

    /// What a header says; `None` where no request is like that.
    #[must_use]
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let (kind, detail, id, value) = fields(bytes)?;
        let request = match kind {
            1 => Self::Setup { length: value },
            2 => Self::Spawn {
                id,
                channels: Channels::decode(detail)?,
                length: value,
            },
            3 => Self::Input { id, length: value },
            4 => Self::CloseInput { id },
            5 => Self::Grant {
                id,
                lane: Lane::decode(detail)?,
                credit: value,
            },
            6 => Self::Discard {
                id,
                lane: Lane::decode(detail)?,
            },
            7 => Self::Signal {
                id,
                signal: detail as i32,
            },
            8 => Self::Terminate { id },
            9 => Self::Kill { id },
            10 => Self::List { id },
            11 => Self::Resize {
                id,
                rows: (value >> 16) as u16,
                columns: value as u16,
            },
            12 => Self::Unstage { number: id },
            14 => Self::Adopt {
                id,
                number: detail,
                identity: ((value >> 32) as u32, value as u32),
            },
            13 => Self::Stage {
                id,
                number: value as u32,
            },
            _ => return None,
        };
        Some(request)
    }
}

/// What the relay says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The payload is a [`Ready`](crate::wire::Ready).
    Ready {
        /// Bytes of the payload.
        length: u64,
    },
    /// The payload is a [`Report`](crate::wire::Report) of a command.
    Report {
        /// The command.
        id: u32,
        /// Bytes of the payload.
        length: u64,
    },
    /// Nothing of a command is left.
    Gone {
        /// The command.
        id: u32,
    },
    /// The payload is output of a command.
    Output {
        /// The command.
        id: u32,
        /// The channel.
        lane: Lane,
        /// Bytes of the payload.
        length: u64,
    },
    /// So much was written to a channel so far, sent or not. Comes before a command is reported to
    /// have ended.
    Count {
        /// The command.
        id: u32,
        /// The channel.
        lane: Lane,
        /// Bytes.
        total: u64,
    },
    /// A channel is at its end.
    End {
        /// The command.
        id: u32,
        /// The channel.
        lane: Lane,
        /// All that was written to it.
        total: u64,
    },
    /// So many bytes of input were passed on.
    Taken {
        /// The command.
        id: u32,
        /// Bytes.
        bytes: u64,
    },
    /// What a command has offered can be taken, and it can't change any more what that is; or what was
    /// brought for it is its user's.
    Staged {
        /// The command.
        id: u32,
        /// The inode of what was offered, or the size of what was brought. None where it is no file.
        number: u64,
    },
    /// The command reads no more input.
    InputClosed {
        /// The command.
        id: u32,
    },
}

impl Answer {
    /// Bytes that follow the header.
    #[must_use]
    pub fn payload(self) -> u64 {
        match self {
            Self::Ready { length } | Self::Report { length, .. } | Self::Output { length, .. } => {
                length
            }
            _ => 0,
        }
    }

    /// The header.
    #[must_use]
    pub fn encode(self) -> [u8; HEADER_BYTES] {
        let (kind, detail, id, value) = match self {
            Self::Ready { length } => (1, 0, 0, length),
            Self::Report { id, length } => (2, 0, id, length),
            Self::Gone { id } => (3, 0, id, 0),
            Self::Output { id, lane, length } => (4, lane as u32, id, length),
            Self::Count { id, lane, total } => (5, lane as u32, id, total),
            Self::End { id, lane, total } => (6, lane as u32, id, total),
            Self::Taken { id, bytes } => (7, 0, id, bytes),
            Self::InputClosed { id } => (8, 0, id, 0),
            Self::Staged { id, number } => (9, 0, id, number),
        };
        header(kind, detail, id, value)
    }

    /// What a header says; `None` where no answer is like that.
    #[must_use]
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let (kind, detail, id, value) = fields(bytes)?;
        let lane = Lane::decode(detail);
        let answer = match kind {
            1 => Self::Ready { length: value },
            2 => Self::Report { id, length: value },
            3 => Self::Gone { id },
            4 => Self::Output {
                id,
                lane: lane?,
                length: value,
            },
            5 => Self::Count {
                id,
                lane: lane?,
                total: value,
            },
            6 => Self::End {
                id,
                lane: lane?,
                total: value,
            },
            7 => Self::Taken { id, bytes: value },
            8 => Self::InputClosed { id },
            9 => Self::Staged { id, number: value },
            _ => return None,
        };
        Some(answer)
    }
}

/// A header: what it is, a detail of that, a command, a number.
fn header(kind: u32, detail: u32, id: u32, value: u64) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    put(&mut bytes, 0, kind | detail << 8);
    put(&mut bytes, 4, id);
    put(&mut bytes, 8, value as u32);
    put(&mut bytes, 12, (value >> 32) as u32);
    bytes
}

fn fields(bytes: &[u8; HEADER_BYTES]) -> Option<(u32, u32, u32, u64)> {
    let mut reader = Reader::new(bytes);
    let what = reader.u32()?;
    Some((what & 0xff, what >> 8, reader.u32()?, reader.u64()?))
}
