//! The stream protocol between a sandbox's owner and a relay.
//!
//! In a container, where no socket can pass descriptors, a relay creates the commands' pipes and
//! multiplexes their content over its stdin and stdout, in frames: a fixed header and, for some frames, a
//! payload whose length the header states. Both sides are compiled from this file, so the protocol has no
//! version.
//!
//! Each channel of a command has its own credit: a sender never sends more than the receiver has room
//! for, so a control frame is never stuck behind unread bytes. A channel starts with a full window;
//! consumed bytes are returned by [`Request::Grant`] and [`Answer::Taken`].
//!
//! A connection to the sandbox's proxy is a command without processes: what the client sends is its output on
//! [`Channel::Stdout`], and what the client receives its input. The owner grants their number, too.

use crate::wire::wire_enum;

/// Length of a frame without its payload.
pub const HEADER_BYTES: usize = 20;
/// Maximum bytes of a channel in one frame.
pub const MAX_PAYLOAD: usize = 128 * 1024;
/// Maximum length of the body of a command or of the setup.
pub const MAX_BODY: usize = 64 * 1024 * 1024;
/// Output of one channel that the owner may not have consumed yet. Half of it is granted at once, because
/// a grant passes as many processes as output does.
pub const OUTPUT_WINDOW: usize = 2 * 1024 * 1024;
/// Input that a command may not have read yet.
pub const INPUT_WINDOW: usize = 1024 * 1024;

/// Bytes of one direction of a connection that the receiving side may not have passed on yet.
pub const CONNECTION_WINDOW: usize = 256 * 1024;
/// Connections that may be open at once without a [`Request::Accept`].
pub const MAX_CONNECTIONS: usize = 128;
/// The bit that ids of connections have, and those of commands don't.
pub const CONNECTION_ID: u32 = 1 << 31;

/// Returns the credit that an output frame of so many bytes uses; short frames occupy memory, too.
pub const fn cost(length: usize) -> usize {
    length + 64
}

wire_enum! {
    /// An output channel of a command.
    pub enum Channel {
        /// Standard output, or the output of a terminal.
        Stdout = 0,
        /// Standard error.
        Stderr = 1,
        /// The answer to [`Request::List`].
        Processes = 2,
    }
}

impl Channel {
    /// All channels, each at the index of its number.
    pub const ALL: [Self; 3] = [Self::Stdout, Self::Stderr, Self::Processes];
}

wire_enum! {
    /// How a command's standard streams are connected.
    pub enum StdioMode {
        /// stdout and stderr are pipes; stdin is at its end.
        Output = 0,
        /// stdin is a pipe as well.
        All = 1,
        /// The streams are a terminal, as the body states.
        Terminal = 2,
    }
}

wire_enum! {
    /// A frame to the relay. Command ids are never reused.
    pub enum Request message HEADER_BYTES {
        /// Builds the sandbox; always the first request. The payload is a body of
        /// [`PlannedStep`](crate::wire::PlannedStep)s. Answered by [`Answer::Ready`].
        Setup { length: u64 } = 1,
        /// Starts a command. The payload is the body of [`Order::Spawn`](crate::wire::Order::Spawn).
        Spawn {
            /// Identifies the command in later requests.
            id: u32,
            stdio: StdioMode,
            length: u64,
        } = 2,
        /// The payload is input of the command.
        Input { id: u32, length: u64 } = 3,
        /// Closes a command's stdin.
        CloseInput { id: u32 } = 4,
        /// Adds credit to a channel.
        Grant {
            id: u32,
            channel: Channel,
            /// The consumed bytes, as [`cost`] counts them.
            credit: u64,
        } = 5,
        /// Discards all further output of a channel.
        Discard { id: u32, channel: Channel } = 6,
        /// Sends a signal to the process group of a command's first process.
        Signal { id: u32, signal: i32 } = 7,
        /// Sends SIGTERM to all processes of a command.
        Terminate { id: u32 } = 8,
        /// Kills all processes of a command.
        Kill { id: u32 } = 9,
        /// Lists a command's processes on [`Channel::Processes`]: for each its id, a space, its command
        /// line and a NUL. At most one list of a command at a time.
        List { id: u32 } = 10,
        /// Changes the size of a command's terminal.
        Resize { id: u32, rows: u16, columns: u16 } = 11,
        /// Allows a further connection, for one that has ended.
        Accept = 12,
    }
}

impl Request {
    /// Returns the number of bytes that follow the header.
    pub fn payload(self) -> u64 {
        match self {
            Self::Setup { length } | Self::Spawn { length, .. } | Self::Input { length, .. } => {
                length
            }
            _ => 0,
        }
    }
}

wire_enum! {
    /// A frame from the relay.
    pub enum Answer message HEADER_BYTES {
        /// The payload is a [`SetupReply`](crate::wire::SetupReply).
        Ready { length: u64 } = 1,
        /// The payload is a [`Report`](crate::wire::Report) of a command.
        Report { id: u32, length: u64 } = 2,
        /// No process of a command is left.
        Gone { id: u32 } = 3,
        /// The payload is output of a command.
        Output { id: u32, channel: Channel, length: u64 } = 4,
        /// Bytes written to a channel so far, whether sent or not. Precedes the report that a command has
        /// ended.
        Count { id: u32, channel: Channel, total: u64 } = 5,
        /// A channel is at its end.
        End {
            id: u32,
            channel: Channel,
            /// All bytes written to it.
            total: u64,
        } = 6,
        /// Input that was passed on.
        Taken { id: u32, bytes: u64 } = 7,
        /// The command reads no more input.
        InputClosed { id: u32 } = 8,
        /// A client has connected to the socket that a [`Step::Listen`](crate::wire::Step::Listen) has opened.
        Connected {
            /// Identifies the connection; never reused.
            id: u32,
        } = 9,
    }
}

impl Answer {
    /// Returns the number of bytes that follow the header.
    pub fn payload(self) -> u64 {
        match self {
            Self::Ready { length } | Self::Report { length, .. } | Self::Output { length, .. } => {
                length
            }
            _ => 0,
        }
    }
}
