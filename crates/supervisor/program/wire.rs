//! The control protocol between a sandbox's owner and its supervisor.
//!
//! Both sides are compiled from this file, so the protocol has no version. An order is one message on the
//! control socket (`SOCK_SEQPACKET`). Long content goes into a sealed memory file, the *body*, whose
//! descriptor accompanies the order; the supervisor maps it and reads it in place. Each command reports on
//! a socket of its own, whose end of file means that no process of the command is left.

#[path = "wire/codec.rs"]
mod codec;

use core::ffi::CStr;

pub use self::codec::{Reader, Wire, encode_into};
pub(crate) use self::codec::{wire_enum, wire_struct};

/// Length of an encoded [`Order`].
pub const ORDER_BYTES: usize = 16;
/// Length of an encoded [`SetupReply`].
pub const SETUP_REPLY_BYTES: usize = 16;
/// Length of an encoded [`Report`].
pub const REPORT_BYTES: usize = 8;

wire_enum! {
    /// An instruction to the supervisor.
    pub enum Order message ORDER_BYTES {
        /// Builds the sandbox; always the first order. Descriptors: the body, then the disk image if there is
        /// one, then the directory of the control group of version 2 if there is one, then for each of
        /// version 1 the file through which a process joins it. Answered by a [`SetupReply`].
        Setup = 1,
        /// Starts a command. Descriptors: the body, the report socket, then stdin, stdout and stderr. A
        /// command whose terminal the supervisor allocates gets no further descriptors.
        Spawn {
            /// Identifies the command in later orders.
            id: u32,
        } = 2,
        /// Sends a signal to the process group of a command's first process.
        Signal {
            id: u32,
            /// Its first process.
            pid: i32,
            signal: i32,
        } = 3,
        /// Sends SIGTERM to all processes of a command.
        Terminate { id: u32 } = 4,
        /// Kills all processes of a command.
        Kill { id: u32 } = 5,
        /// Lists a command's processes into the accompanying pipe: for each its id, a space, its command
        /// line and a NUL.
        List { id: u32 } = 6,
        /// Counts the processes of all commands into the accompanying pipe: a `u32` in little-endian order.
        Count = 7,
        /// Connects to a TCP port of the loopback interface. Descriptor: a socket, which gets an error number (`i32`
        /// in little-endian order, 0 for none), and with 0 the connected or connecting socket, which does not block.
        Connect {
            port: u16,
            /// Whether to connect to `::1` instead of `127.0.0.1`.
            v6: bool,
        } = 8,
    }
}

wire_struct! {
    /// The start of the body of [`Order::Setup`]. [`ControlGroup`]s and [`MappedDirectory`]s follow, then
    /// [`PlannedStep`]s up to the end.
    pub struct Setup<'b> {
        /// The namespaces to create (`CLONE_NEW…`). With a PID namespace the supervisor is its init;
        /// without one it identifies the sandbox's processes by parentage.
        pub namespaces: u64,
        /// Content for the new user namespace's `uid_map`; empty for none.
        pub uid_map: &'b CStr,
        /// Content for its `gid_map`.
        pub gid_map: &'b CStr,
        /// Whether `setgroups` must be denied first, as the kernel demands of an unprivileged user.
        pub deny_setgroups: bool,
        /// The number of [`ControlGroup`]s that follow.
        pub groups: u32,
        /// The number of [`MappedDirectory`]s that follow them, at most [`MAX_MAPPED`].
        pub mapped: u32,
        /// The directory of a control group that the owner removes, or the guard if the owner is gone; empty
        /// for none.
        pub shared_group: &'b CStr,
        /// Whether a disk image accompanies the order: a file with a file system (ext4), which the guard
        /// mounts through a loop device.
        pub has_image: bool,
        /// Whether a control group of version 2 accompanies the order, in which the guard creates init.
        pub has_group: bool,
    }
}

wire_struct! {
    /// A control group of the sandbox, removed with it.
    pub struct ControlGroup<'b> {
        pub directory: &'b CStr,
        /// The control file that stops its processes; empty for none.
        pub stop: &'b CStr,
        /// The value written to that file.
        pub stop_value: &'b CStr,
    }
}

/// Maximum number of [`MappedDirectory`]s.
pub const MAX_MAPPED: usize = 8;

wire_struct! {
    /// A directory whose owner is another user to commands, by an ID-mapped mount.
    pub struct MappedDirectory<'b> {
        /// Its path on the host.
        pub path: &'b CStr,
        /// Content for a `uid_map`, from the ids of the files to those that commands see.
        pub uid_map: &'b CStr,
        /// Content for a `gid_map`.
        pub gid_map: &'b CStr,
    }
}

/// A user id and a group id.
pub type Identity = (u32, u32);

wire_enum! {
    /// One operation of setting up a sandbox. Init performs the steps in order.
    pub enum Step<'b> {
        /// `mount(2)`; an empty string stands for null.
        Mount {
            source: &'b CStr,
            target: &'b CStr,
            kind: &'b CStr,
            /// `MS_…`.
            flags: u64,
            /// Options of the file system.
            data: &'b CStr,
        } = 1,
        /// Sets `MOUNT_ATTR_…` attributes of a mount and of all mounts below it.
        SetMountAttributes { target: &'b CStr, set: u64 } = 2,
        /// Creates a directory, unless there is one.
        MakeDirectory { path: &'b CStr, mode: u32 } = 3,
        /// Creates a file; an empty one, unless there is a file.
        MakeFile { path: &'b CStr, content: &'b CStr } = 4,
        /// Creates a symbolic link.
        Symlink {
            path: &'b CStr,
            /// The path that it leads to.
            target: &'b CStr,
        } = 5,
        /// Makes a mount the root and detaches the old root.
        PivotRoot { path: &'b CStr } = 6,
        /// Sets the host name.
        Hostname { name: &'b CStr } = 7,
        /// Brings the loopback interface up.
        Loopback = 8,
        /// Opens a directory (`O_PATH`) and passes the descriptor to the owner.
        OpenDirectory { path: &'b CStr } = 9,
        /// Listens on 127.0.0.1 and passes the socket to the owner.
        Listen { port: u16 } = 10,
        /// Drops all capabilities, sets `no_new_privs` and switches to another user, without
        /// supplementary groups where the kernel allows that.
        DropPrivileges {
            /// The user; `None` to keep the current one.
            identity: Option<Identity>,
        } = 11,
        /// Restricts file access, and every scope of Landlock that the kernel supports. The
        /// [`Step::LandlockRule`]s that follow directly are the exceptions.
        Landlock {
            /// The number of rules that follow.
            rules: u32,
        } = 12,
        /// A rule of the preceding [`Step::Landlock`].
        LandlockRule {
            /// A file, or a directory with everything below it. One that does not exist is skipped.
            path: &'b CStr,
            /// `LANDLOCK_ACCESS_FS_…`; rights that the kernel does not know are left out.
            access: u64,
        } = 13,
        /// Installs a system call filter.
        Filter {
            /// Instructions in the kernel's layout.
            program: &'b [u8],
        } = 14,
        /// Sets a filter for commands only. It may refuse system calls that starting a command needs:
        /// where it asks the tracer (`SECCOMP_RET_TRACE`), the keeper allows the command's own `execve`.
        CommandFilter {
            /// Instructions in the kernel's layout.
            program: &'b [u8],
        } = 15,
        /// Sets a resource limit (`RLIMIT_…`) for each process of a command.
        CommandLimit { resource: u32, soft: u64, hard: u64 } = 16,
        /// Sets the user and the root of commands while the supervisor keeps its own; for a relay.
        CommandIdentity {
            /// The user, without privileges; `None` for the supervisor's own user and privileges.
            identity: Option<Identity>,
            /// A directory that no symbolic link leads out of; `/` if nothing is outside.
            root: &'b CStr,
        } = 17,
        /// Creates a directory if necessary, and sets its mode and owner. Follows symbolic links, so it
        /// must precede all untrusted code.
        OwnedDirectory {
            path: &'b CStr,
            /// The owner; `None` to leave it unchanged.
            identity: Option<Identity>,
            mode: u32,
        } = 18,
        /// Writes to an existing file, such as a setting of the kernel for the new user namespace.
        WriteFile { path: &'b CStr, content: &'b CStr } = 19,
        /// Mounts a [`MappedDirectory`]; if the kernel can't map it, as it is.
        BindMapped {
            /// Its number.
            number: u32,
            source: &'b CStr,
            target: &'b CStr,
        } = 20,
        /// Attaches the file system of the disk image to a directory.
        AttachImage { target: &'b CStr } = 21,
    }
}

wire_struct! {
    /// A step of a body.
    pub struct PlannedStep<'b> {
        /// For a step that may fail, the bit of [`SetupReply::Ready::missing`] that reports it.
        pub optional: Option<u8>,
        pub step: Step<'b>,
    }
}

wire_enum! {
    /// The answer to [`Order::Setup`].
    pub enum SetupReply message SETUP_REPLY_BYTES {
        /// The sandbox is ready. The descriptors of [`Step::OpenDirectory`] and [`Step::Listen`] follow in
        /// the order of the steps.
        Ready {
            /// One bit for each optional step that failed.
            missing: u64,
            /// The Landlock ABI version in force; 0 for none.
            landlock: u32,
        } = 0,
        /// The sandbox could not be built.
        Failed {
            /// The number of the step; [`SetupReply::BEFORE_STEPS`] if the namespaces could not be
            /// created.
            step: u32,
            errno: i32,
        } = 1,
    }
}

impl SetupReply {
    /// The "step" that creates the namespaces.
    pub const BEFORE_STEPS: u32 = u32::MAX;
    /// The "step" that mounts the disk image.
    pub const IMAGE: u32 = u32::MAX - 1;
    /// The bit of `missing` that reports a control group that could not be joined.
    pub const GROUPS: u8 = 63;
}

wire_enum! {
    /// The access of a command to files.
    pub enum FileAccess<'b> {
        /// Everything that the sandbox allows.
        Full = 0,
        /// Reading and removing them.
        RemovalOnly = 1,
        /// Reading them, and changing those below one directory.
        ReadOnlyExcept {
            /// The directory, as seen inside the sandbox. Not a symbolic link.
            directory: &'b CStr,
            /// A filter of the calls that change a file and that Landlock does not restrict.
            filter: &'b [u8],
        } = 2,
    }
}

wire_struct! {
    /// The start of the body of [`Order::Spawn`].
    pub struct Spawn<'b> {
        /// Initial directory, as seen inside the sandbox.
        pub directory: &'b CStr,
        /// Whether stdin is a terminal, to become the controlling one.
        pub takes_terminal: bool,
        /// Rows and columns of a terminal that the supervisor allocates.
        pub terminal: Option<(u16, u16)>,
        /// The access to files, within that of the sandbox.
        pub files: FileAccess<'b>,
        /// The number of candidate paths that follow; the first executable one is executed. Zero for a file
        /// task, which follows instead.
        pub programs: u32,
        /// The number of arguments that follow, the program's name among them.
        pub arguments: u32,
        /// The number of variables that follow, as `NAME=value`.
        pub variables: u32,
    }
}

wire_enum! {
    /// A message on a command's report socket.
    pub enum Report message REPORT_BYTES {
        /// The command could not be started.
        Failed {
            /// The operation that failed.
            stage: StartStage,
            errno: i32,
        } = 1,
        /// The command runs. The master of a terminal that the supervisor allocated accompanies it.
        Started {
            /// Its first process, as seen inside the sandbox.
            pid: i32,
        } = 2,
        /// The first process has ended.
        Ended {
            /// Wait status.
            status: i32,
            /// Whether no process of the command is left.
            alone: bool,
        } = 3,
    }
}

wire_enum! {
    /// An operation of starting a command.
    pub enum StartStage {
        /// Creating a process.
        Fork = 0,
        /// Allocating the terminal.
        Terminal = 1,
        /// Applying limits, stdio and filters.
        Prepare = 2,
        /// Entering the initial directory.
        Directory = 3,
        /// Executing the program.
        Execute = 4,
    }
}
