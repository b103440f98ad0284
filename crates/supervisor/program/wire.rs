//! What our process and the supervisor say to each other.
//!
//! Both sides are compiled from this file, so there is no version and nothing to negotiate. Orders
//! go over the control socket, one message each (`SOCK_SEQPACKET`); what is long goes in a sealed
//! file that is passed along, the *body*, and is read in place. Each command reports over a socket
//! of its own, whose end means that nothing of the command is left.
//!
//! Numbers are little-endian. A string is its length without the NUL (`u32`), its bytes, and a NUL.

#[path = "wire/reports.rs"]
mod reports;

use core::ffi::CStr;

pub use self::reports::{READY_BYTES, REPORT_BYTES, Ready, Report, Stage};

/// Bytes of an [`Order`].
pub const ORDER_BYTES: usize = 16;

/// What the supervisor is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The first one: builds the walls. Descriptors: the body, then for each control group the file
    /// that one joins it by. Answered by a [`Ready`].
    Setup,
    /// Starts a command. Descriptors: the body, the socket for reports, and stdin, stdout and
    /// stderr or, for a command with a terminal of ours, nothing more.
    Spawn {
        /// Names the command from now on.
        id: u32,
    },
    /// Sends a signal to the process group of a command's first process.
    Signal {
        /// The command.
        id: u32,
        /// Its first process.
        pid: i32,
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
    /// Writes what is left of a command to the pipe that comes along: for each process its id,
    /// a space, its command line and a NUL.
    List {
        /// The command.
        id: u32,
    },
}

impl Order {
    /// The order in a message.
    #[must_use]
    pub fn encode(self) -> [u8; ORDER_BYTES] {
        let (op, id, pid, signal) = match self {
            Self::Setup => (1, 0, 0, 0),
            Self::Spawn { id } => (2, id, 0, 0),
            Self::Signal { id, pid, signal } => (3, id, pid, signal),
            Self::Terminate { id } => (4, id, 0, 0),
            Self::Kill { id } => (5, id, 0, 0),
            Self::List { id } => (6, id, 0, 0),
        };
        let mut bytes = [0; ORDER_BYTES];
        put(&mut bytes, 0, op);
        put(&mut bytes, 4, id);
        put(&mut bytes, 8, pid as u32);
        put(&mut bytes, 12, signal as u32);
        bytes
    }

    /// The order of a message.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        let (op, id) = (reader.u32()?, reader.u32()?);
        let (pid, signal) = (reader.u32()? as i32, reader.u32()? as i32);
        Some(match op {
            1 => Self::Setup,
            2 => Self::Spawn { id },
            3 => Self::Signal { id, pid, signal },
            4 => Self::Terminate { id },
            5 => Self::Kill { id },
            6 => Self::List { id },
            _ => return None,
        })
    }
}

/// The start of a body for [`Order::Setup`]; [`Group`]s follow, and [`Step`]s to the body's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup<'b> {
    /// The namespaces to make (`CLONE_NEW…`). With a process namespace the supervisor is its
    /// first process; without one it finds what belongs to it by parentage.
    pub namespaces: u64,
    /// What to write into the new user namespace's `uid_map`; empty for none.
    pub uid_map: &'b CStr,
    /// The same for `gid_map`.
    pub gid_map: &'b CStr,
    /// Whether `setgroups` must be given up first, as for an ordinary user.
    pub deny_setgroups: bool,
    /// How many [`Group`]s follow.
    pub groups: u32,
}

/// A control group of the sandbox, which ends with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group<'b> {
    /// Its directory, which is removed in the end.
    pub directory: &'b CStr,
    /// A file through which what is left in it is stopped; empty for none.
    pub stop: &'b CStr,
    /// What is written to that file.
    pub word: &'b CStr,
}

/// Where an engine brings large files to, each under a number, before they are given their names; and
/// where it takes them from. Only its owner changes names there.
pub const STAGING: &CStr = c"/.cantle-staging";

/// Where everybody may offer files, to be taken from [`STAGING`] under the same number.
pub const OFFERED: &CStr = c"/.cantle-staging/out";

/// One step of building a sandbox, done by its first process in the order given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'b> {
    /// `mount(2)`; an empty string stands for null.
    Mount {
        /// What.
        source: &'b CStr,
        /// Where.
        target: &'b CStr,
        /// The file system's type.
        kind: &'b CStr,
        /// `MS_…`.
        flags: u64,
        /// Options of the file system's.
        data: &'b CStr,
    },
    /// Sets attributes (`MOUNT_ATTR_…`) of a mount and of those below it.
    Attributes {
        /// Where it is mounted.
        target: &'b CStr,
        /// To be set.
        set: u64,
    },
    /// Makes a directory.
    MakeDirectory {
        /// Where.
        path: &'b CStr,
        /// Its mode.
        mode: u32,
    },
    /// Makes a directory somebody's and gives it a mode; makes it where there is none. A link is
    /// followed: this is for before anything has run that could make one.
    Give {
        /// Where.
        path: &'b CStr,
        /// The user and the group; none to leave it whose it is.
        identity: Option<(u32, u32)>,
        /// Its mode.
        mode: u32,
    },
    /// Makes [`STAGING`] and [`OFFERED`]. Who knows a name there may use it.
    Staging,
    /// Makes a file.
    MakeFile {
        /// Where.
        path: &'b CStr,
        /// What is in it.
        content: &'b CStr,
    },
    /// Makes a link.
    Link {
        /// Where.
        path: &'b CStr,
        /// To what.
        target: &'b CStr,
    },
    /// Makes a directory the root, and lets the old root go.
    Root {
        /// The directory; it is a mount.
        path: &'b CStr,
    },
    /// Sets the name of the machine.
    HostName {
        /// The name.
        name: &'b CStr,
    },
    /// Turns the loopback interface on.
    Loopback,
    /// Opens a directory and hands its descriptor (`O_PATH`) to the owner.
    OpenDirectory {
        /// Which.
        path: &'b CStr,
    },
    /// Listens on a port of 127.0.0.1 and hands the socket to the owner.
    Listen {
        /// The port.
        port: u16,
    },
    /// Gives up all capabilities, lets no program give any (`no_new_privs`), and becomes another
    /// user, without supplementary groups where that is allowed.
    Unprivileged {
        /// The user and the group; none to stay who we are.
        identity: Option<(u32, u32)>,
    },
    /// Restricts access to files and all that Landlock scopes, as far as this kernel's version
    /// goes. Allowed is what the [`Step::Allow`]s say that follow directly.
    Landlock {
        /// How many they are.
        rules: u32,
    },
    /// A rule of the last [`Step::Landlock`].
    Allow {
        /// A file, or a directory with all below it.
        path: &'b CStr,
        /// `LANDLOCK_ACCESS_FS_…`; what the kernel doesn't know is left out.
        access: u64,
    },
    /// Installs a system call filter.
    Filter {
        /// Its instructions, in the kernel's layout.
        program: &'b [u8],
    },
    /// A filter for commands alone, installed last: it may refuse what starting one takes. Where it
    /// asks its tracer (`SECCOMP_RET_TRACE`), there is one until the command's own program is
    /// executed, who says yes.
    FilterCommands {
        /// Its instructions, in the kernel's layout.
        program: &'b [u8],
    },
    /// What commands are, where the supervisor itself stays what it is: for a relay.
    Commands {
        /// The user and the group they run as, without any privilege; none to stay who we are, with
        /// what we may do.
        identity: Option<(u32, u32)>,
        /// The directory that no link leads out of; `/` where there is nothing outside.
        root: &'b CStr,
    },
    /// A limit (`RLIMIT_…`) for each process of every command.
    Limit {
        /// Which.
        resource: u32,
        /// What a process may not pass.
        soft: u64,
        /// What it may raise that to.
        hard: u64,
    },
}

/// A step as it stands in a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbered<'b> {
    /// Where the step may fail, the bit of [`Ready::Ready::missing`] that says so.
    pub wall: Option<u8>,
    /// The step.
    pub step: Step<'b>,
}

/// The start of a body for [`Order::Spawn`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spawn<'b> {
    /// Where it starts, as seen inside the sandbox.
    pub directory: &'b CStr,
    /// Whether its input is a terminal, which becomes its controlling one.
    pub takes_terminal: bool,
    /// Whether it gets a terminal of ours of this many rows and columns.
    pub terminal: Option<(u16, u16)>,
    /// How many strings follow that each name its program: the first that can be executed is. None
    /// where the supervisor itself does something with files, which the arguments say.
    pub programs: u32,
    /// How many arguments follow, the program's name among them.
    pub arguments: u32,
    /// How many variables follow, as `NAME=value`.
    pub variables: u32,
}

/// Reads a body.
#[derive(Clone, Debug)]
pub struct Reader<'b> {
    rest: &'b [u8],
}

impl<'b> Reader<'b> {
    /// Reads from the start.
    #[must_use]
    pub fn new(bytes: &'b [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Whether all is read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The next bytes.
    pub fn take(&mut self, count: usize) -> Option<&'b [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(taken)
    }

    /// The next number of four bytes.
    pub fn u32(&mut self) -> Option<u32> {
        let bytes = self.take(4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    }

    /// The next number of eight bytes.
    pub fn u64(&mut self) -> Option<u64> {
        let bytes = self.take(8)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }

    fn bytes(&mut self) -> Option<&'b [u8]> {
        let length = self.u32()? as usize;
        let bytes = self.take(length.checked_add(1)?)?;
        bytes.get(..length)
    }

    /// The next string.
    pub fn string(&mut self) -> Option<&'b CStr> {
        let length = self.u32()? as usize;
        CStr::from_bytes_with_nul(self.take(length.checked_add(1)?)?).ok()
    }

    /// The start of a body for [`Order::Setup`].
    pub fn setup(&mut self) -> Option<Setup<'b>> {
        Some(Setup {
            namespaces: self.u64()?,
            uid_map: self.string()?,
            gid_map: self.string()?,
            deny_setgroups: self.u32()? != 0,
            groups: self.u32()?,
        })
    }

    /// The next control group.
    pub fn group(&mut self) -> Option<Group<'b>> {
        Some(Group {
            directory: self.string()?,
            stop: self.string()?,
            word: self.string()?,
        })
    }

    /// The start of a body for [`Order::Spawn`].
    pub fn spawn(&mut self) -> Option<Spawn<'b>> {
        Some(Spawn {
            directory: self.string()?,
            takes_terminal: self.u32()? != 0,
            terminal: match (self.u32()?, self.u32()?) {
                (0, _) => None,
                (_, size) => Some(((size >> 16) as u16, size as u16)),
            },
            programs: self.u32()?,
            arguments: self.u32()?,
            variables: self.u32()?,
        })
    }

    /// A user and a group, or none.
    fn identity(&mut self) -> Option<Option<(u32, u32)>> {
        Some(match (self.u32()?, self.u32()?, self.u32()?) {
            (0, ..) => None,
            (_, uid, gid) => Some((uid, gid)),
        })
    }

    /// The next step.
    pub fn step(&mut self) -> Option<Numbered<'b>> {
        let (tag, wall) = (self.u32()?, self.u32()?);
        let step = match tag {
            1 => Step::Mount {
                source: self.string()?,
                target: self.string()?,
                kind: self.string()?,
                flags: self.u64()?,
                data: self.string()?,
            },
            2 => Step::Attributes {
                target: self.string()?,
                set: self.u64()?,
            },
            3 => Step::MakeDirectory {
                path: self.string()?,
                mode: self.u32()?,
            },
            4 => Step::MakeFile {
                path: self.string()?,
                content: self.string()?,
            },
            5 => Step::Link {
                path: self.string()?,
                target: self.string()?,
            },
            6 => Step::Root {
                path: self.string()?,
            },
            7 => Step::HostName {
                name: self.string()?,
            },
            8 => Step::Loopback,
            9 => Step::OpenDirectory {
                path: self.string()?,
            },
            10 => Step::Listen {
                port: self.u32()? as u16,
            },
            11 => Step::Unprivileged {
                identity: self.identity()?,
            },
            12 => Step::Landlock { rules: self.u32()? },
            13 => Step::Allow {
                path: self.string()?,
                access: self.u64()?,
            },
            14 => Step::Filter {
                program: self.bytes()?,
            },
            15 => Step::FilterCommands {
                program: self.bytes()?,
            },
            16 => Step::Limit {
                resource: self.u32()?,
                soft: self.u64()?,
                hard: self.u64()?,
            },
            17 => Step::Commands {
                identity: self.identity()?,
                root: self.string()?,
            },
            18 => Step::Give {
                path: self.string()?,
                identity: self.identity()?,
                mode: self.u32()?,
            },
            19 => Step::Staging,
            _ => return None,
        };
        let wall = match wall.checked_sub(1) {
            Some(bit) => Some(u8::try_from(bit).ok()?),
            None => None,
        };
        Some(Numbered { wall, step })
    }
}

/// Writes a number into a message.
pub(crate) fn put(bytes: &mut [u8], at: usize, number: u32) {
    if let Some(place) = bytes.get_mut(at..at + 4) {
        place.copy_from_slice(&number.to_le_bytes());
    }
}
