//! What is done with files where there is no program to do it: the tasks, and how they are answered.
//!
//! A task is the body of a command without a program. What it finds goes to the command's output;
//! why it failed, as a [`Refusal`], to its errors. Both sides are compiled from this file.

use core::ffi::CStr;

use crate::wire::{Reader, put};

/// Something to do with files. Paths are absolute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task<'b> {
    /// Reads a regular file: its bytes are the output.
    Read {
        /// Which.
        path: &'b CStr,
        /// The first byte.
        offset: u64,
        /// How many bytes at most.
        length: u64,
    },
    /// Writes a regular file and the directories above it. The input is pieces: the length of each
    /// (`u32`, not zero) and its bytes; then a zero. Where that doesn't come, nothing is written.
    Write {
        /// Which.
        path: &'b CStr,
        /// Its permissions.
        mode: u32,
    },
    /// Reads a regular file, all of it. One that is large is offered first, if its user may link it: the
    /// output is a one and the file's inode (`u64`), and the input is awaited. It says from which byte on
    /// to read all the same (`u64`); its end is the end. Of any other file the output is a zero and its
    /// bytes.
    Offer {
        /// Which.
        path: &'b CStr,
        /// Where to link it.
        offered: &'b CStr,
        /// How large is large.
        least_bytes: u64,
    },
    /// Gives a name to a file that was brought to [`STAGING`](crate::wire::STAGING). The output is one
    /// byte where that can be done; then the input is awaited: [`COMPLETE`], or [`INCOMPLETE`] and from
    /// which byte on (`u64`) the pieces are to be written that follow as for a write. Where neither comes,
    /// nothing is written.
    Place {
        /// Which it will be.
        path: &'b CStr,
        /// Its permissions.
        mode: u32,
        /// Where it is brought to.
        staged: &'b CStr,
    },
    /// Says what is at a path, links not followed: one [`Entry`].
    Look {
        /// Where.
        path: &'b CStr,
    },
    /// Says what is in a directory: an [`Entry`] for each.
    List {
        /// Which.
        path: &'b CStr,
    },
    /// Makes a directory and those above it.
    MakeDirectory {
        /// Which.
        path: &'b CStr,
    },
    /// Removes what is at a path, with all that is in it.
    Remove {
        /// Where.
        path: &'b CStr,
    },
    /// Moves something.
    Move {
        /// From where.
        from: &'b CStr,
        /// To where.
        to: &'b CStr,
    },
    /// Says which of the paths that follow is a program: its number (`u32`). Nothing where none is.
    Find {
        /// How many paths follow.
        count: u32,
    },
}

impl<'b> Task<'b> {
    /// Reads a task.
    pub fn decode(reader: &mut Reader<'b>) -> Option<Self> {
        Some(match reader.u32()? {
            1 => Self::Read {
                path: reader.string()?,
                offset: reader.u64()?,
                length: reader.u64()?,
            },
            2 => Self::Write {
                path: reader.string()?,
                mode: reader.u32()?,
            },
            3 => Self::Look {
                path: reader.string()?,
            },
            4 => Self::List {
                path: reader.string()?,
            },
            5 => Self::MakeDirectory {
                path: reader.string()?,
            },
            6 => Self::Remove {
                path: reader.string()?,
            },
            7 => Self::Move {
                from: reader.string()?,
                to: reader.string()?,
            },
            8 => Self::Find {
                count: reader.u32()?,
            },
            9 => Self::Place {
                path: reader.string()?,
                mode: reader.u32()?,
                staged: reader.string()?,
            },
            10 => Self::Offer {
                path: reader.string()?,
                offered: reader.string()?,
                least_bytes: reader.u64()?,
            },
            _ => return None,
        })
    }
}

/// A file was brought as a whole.
pub const COMPLETE: u8 = b'+';
/// Only a part of a file was brought.
pub const INCOMPLETE: u8 = b'-';

/// What a directory entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A link.
    Link,
    /// Anything else.
    Other,
}

/// What is at a path: 16 bytes, and the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'b> {
    /// What it is.
    pub kind: Kind,
    /// Its permissions (`0o777` and below).
    pub mode: u32,
    /// Its size.
    pub size_bytes: u64,
    /// Its name in the directory; empty where that is known.
    pub name: &'b [u8],
}

/// Bytes of an [`Entry`] before its name.
pub const ENTRY_BYTES: usize = 16;
/// Bytes of a [`Refusal`] before its name.
pub const REFUSAL_BYTES: usize = 12;

impl<'b> Entry<'b> {
    /// What comes before the name.
    #[must_use]
    pub fn encode_head(&self) -> [u8; ENTRY_BYTES] {
        let mut head = [0; ENTRY_BYTES];
        put(&mut head, 0, self.kind as u32 | (self.mode & 0xffff) << 8);
        put(&mut head, 4, self.name.len() as u32);
        put(&mut head, 8, self.size_bytes as u32);
        put(&mut head, 12, (self.size_bytes >> 32) as u32);
        head
    }

    /// Reads an entry; `None` where there is none, or less than one.
    pub fn decode(reader: &mut Reader<'b>) -> Option<Self> {
        let what = reader.u32()?;
        let length = reader.u32()? as usize;
        Some(Self {
            kind: match what & 0xff {
                0 => Kind::File,
                1 => Kind::Directory,
                2 => Kind::Link,
                3 => Kind::Other,
                _ => return None,
            },
            mode: what >> 8,
            size_bytes: reader.u64()?,
            name: reader.take(length)?,
        })
    }
}

/// Why a task failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal<'b> {
    /// What is said of it.
    pub reason: Reason,
    /// The kernel's error number.
    pub errno: i32,
    /// What it is about, where that is not the path of the task: a name.
    pub name: &'b [u8],
}

/// What is said of a failed task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// What the error number says.
    Errno,
    /// It is not a regular file.
    NotAFile,
    /// Something else is there.
    AlreadyThere,
    /// It leads out of the root.
    Outside,
    /// The input ended before the file was complete.
    Incomplete,
    /// Something is left in the directory that should be removed.
    Left,
}

impl<'b> Refusal<'b> {
    /// What comes before the name.
    #[must_use]
    pub fn encode_head(&self) -> [u8; REFUSAL_BYTES] {
        let mut head = [0; REFUSAL_BYTES];
        put(&mut head, 0, self.reason as u32);
        put(&mut head, 4, self.errno as u32);
        put(&mut head, 8, self.name.len() as u32);
        head
    }

    /// Reads a refusal; `None` where there is none, or less than one.
    pub fn decode(reader: &mut Reader<'b>) -> Option<Self> {
        let (reason, errno, length) = (reader.u32()?, reader.u32()?, reader.u32()?);
        Some(Self {
            reason: match reason {
                0 => Reason::Errno,
                1 => Reason::NotAFile,
                2 => Reason::AlreadyThere,
                3 => Reason::Outside,
                4 => Reason::Incomplete,
                5 => Reason::Left,
                _ => return None,
            },
            errno: errno as i32,
            name: reader.take(length as usize)?,
        })
    }
}
