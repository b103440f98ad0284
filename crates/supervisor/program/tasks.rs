//! File tasks: file operations and connections that the supervisor performs where there is no program to do it.
//!
//! A task is the body of a command without a program. Its result is written to the command's stdout, a
//! [`TaskError`] to its stderr. Both sides are compiled from this file.

use core::ffi::CStr;

use crate::wire::{wire_enum, wire_struct};

wire_enum! {
    /// A file operation. Paths are absolute.
    pub enum Task<'b> {
        /// Writes the bytes of a regular file to stdout.
        Read {
            path: &'b CStr,
            /// Offset of the first byte.
            offset: u64,
            /// Maximum number of bytes.
            length: u64,
        } = 1,
        /// Writes a regular file, creating the directories above it. stdin carries chunks, each a nonzero
        /// length (`u32`) and its bytes, then a zero. Without the zero nothing is written.
        Write { path: &'b CStr, mode: u32 } = 2,
        /// Reports the [`Entry`] at a path, without following a symbolic link.
        Stat { path: &'b CStr } = 3,
        /// Reports an [`Entry`] for each name in a directory.
        List { path: &'b CStr } = 4,
        /// Creates a directory and those above it.
        MakeDirectory { path: &'b CStr } = 5,
        /// Removes a file, or a directory with its contents.
        Remove { path: &'b CStr } = 6,
        /// Renames a file or directory.
        Rename { from: &'b CStr, to: &'b CStr } = 7,
        /// Reports the index (`u32`) of the first of the following paths that is executable; nothing if none
        /// is.
        FindProgram {
            /// The number of paths that follow.
            count: u32,
        } = 8,
        /// Connects to a TCP port of the loopback interface. Once connected, stdout carries a zero, then what the server
        /// sends; the server gets stdin.
        Connect { port: u16 } = 9,
    }
}

wire_enum! {
    /// The type of a directory entry.
    pub enum EntryKind {
        /// A regular file.
        File = 0,
        /// A directory.
        Directory = 1,
        /// A symbolic link.
        Link = 2,
        /// Anything else.
        Other = 3,
    }
}

wire_struct! {
    /// A directory entry.
    pub struct Entry<'b> {
        pub kind: EntryKind,
        /// Its permissions (at most `0o777`).
        pub mode: u32,
        pub size_bytes: u64,
        /// Its name; empty where the caller knows it.
        pub name: &'b [u8],
    }
}

/// Maximum length of an encoded [`TaskError`].
pub const MAX_ERROR_BYTES: usize = 9 + 255;

wire_struct! {
    /// The error of a failed task.
    pub struct TaskError<'b> {
        pub kind: TaskErrorKind,
        pub errno: i32,
        /// The name concerned, if it is not the path of the task.
        pub name: &'b [u8],
    }
}

wire_enum! {
    /// The kind of a [`TaskError`].
    pub enum TaskErrorKind {
        /// The error number says it all.
        Errno = 0,
        /// Not a regular file.
        NotAFile = 1,
        /// Another file exists at the path.
        AlreadyExists = 2,
        /// The path leads out of the root.
        Outside = 3,
        /// The input ended before the file was complete.
        Incomplete = 4,
        /// Something in the directory to remove could not be removed.
        NotEmpty = 5,
    }
}
