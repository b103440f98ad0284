//! Files, where there is no program to read and write them: what a command does that executes none.
//!
//! It is the user who runs commands, so that whatever a path leads to, it can do no more than they;
//! the root says which links lead out all the same.

#![expect(
    clippy::result_large_err,
    reason = "an error is told once, and there is no heap to put it on"
)]

mod read;
mod remove;
mod root;
mod tree;
mod write;

use core::ffi::CStr;

use self::root::Root;
use crate::sys::{self, Errno, Fd, FileType, Stat};
use crate::tasks::{Entry, Kind, Reason, Refusal, Task};
use crate::text::Text;
use crate::wire::{OFFERED, Reader, STAGING};

const INPUT: Fd = Fd(0);
const OUTPUT: Fd = Fd(1);
const ERRORS: Fd = Fd(2);

/// Does a task, and ends.
pub fn run(root: &CStr, mut reader: Reader<'_>) -> ! {
    let _ = sys::close_range(3, u32::MAX, false);
    sys::set_name(c"cantle-files");
    // A file that gets too large is an error, after which there is something to clean up.
    sys::set_signal_mask(1 << (sys::SIGXFSZ - 1));
    let done = match Task::decode(&mut reader) {
        Some(task) => Root::open(root).and_then(|root| perform(&root, task, reader)),
        None => Err(sys::EINVAL.into()),
    };
    if let Err(failure) = done {
        // Where nobody hears it, the end says enough.
        let _ = failure.tell();
        sys::exit(1);
    }
    sys::exit(0)
}

fn perform(root: &Root, task: Task<'_>, mut rest: Reader<'_>) -> Result<(), Failure> {
    match task {
        Task::Read {
            path,
            offset,
            length,
        } => read::read(root, path, offset, length),
        Task::Write { path, mode } => write::write(root, path, mode),
        Task::Offer {
            path,
            offered,
            least_bytes,
        } => read::offer(root, path, offered, least_bytes),
        Task::Place { path, mode, staged } => write::place(root, path, mode, staged),
        Task::Look { path } => tree::look(root, path),
        Task::List { path } => tree::list(root, path),
        Task::MakeDirectory { path } => tree::make_directory(root, path),
        Task::Remove { path } => remove::remove(root, path),
        Task::Move { from, to } => tree::rename(root, from, to),
        Task::Find { count } => {
            for number in 0..count {
                let path = rest.string().ok_or(sys::EINVAL)?;
                if sys::may_execute(path) {
                    return Ok(sys::write_all(OUTPUT, &number.to_le_bytes())?);
                }
            }
            Ok(())
        }
    }
}

/// Makes a directory the current one, where no link leads to it out of the root.
pub fn enter(root: &CStr, directory: &CStr) -> sys::Result<()> {
    if root == c"/" {
        return sys::chdir(directory);
    }
    let root = Root::open(root).map_err(|failure| failure.errno)?;
    let flags = sys::O_PATH | sys::O_DIRECTORY;
    let opened = root.open_path(directory.to_bytes(), flags);
    let opened = opened.map_err(|failure| failure.errno)?;
    let entered = sys::fchdir(opened);
    sys::close(opened);
    sys::close(root.descriptor());
    entered
}

/// Makes the directories for large files. What is in them is of an owner that is gone.
pub fn make_staging() -> sys::Result<()> {
    let _ = Root::open(c"/").and_then(|root| remove::remove(&root, STAGING));
    for (path, mode) in [(STAGING, 0o711), (OFFERED, 0o1733)] {
        match sys::mkdir(path, mode) {
            // Somebody has left in it what only he can remove.
            Err(sys::EEXIST) => {}
            made => made?,
        }
    }
    Ok(())
}

/// Takes what was offered to where nobody else changes it; the inode where it is a file.
pub fn stage(number: u32) -> u64 {
    let staged = numbered(STAGING, number);
    let offered = numbered(OFFERED, number);
    let taken = sys::renameat(sys::AT_FDCWD, offered.as_c(), sys::AT_FDCWD, staged.as_c());
    match taken.and_then(|()| sys::statat(sys::AT_FDCWD, staged.as_c())) {
        Ok(stat) if stat.file_type() == FileType::Regular => stat.inode,
        _ => 0,
    }
}

/// Gives a part of a file that was brought to a user; its size.
pub fn adopt(number: u32, (uid, gid): (u32, u32)) -> u64 {
    let staged = numbered(STAGING, number);
    let path = staged.as_c();
    let given = sys::chown(path, uid, gid);
    match given.and_then(|()| sys::statat(sys::AT_FDCWD, path)) {
        Ok(stat) => stat.size as u64,
        Err(_) => 0,
    }
}

/// Removes what was brought or offered.
pub fn unstage(number: u32) {
    // Mostly it is gone, or in one of the two.
    for directory in [STAGING, OFFERED] {
        let path = numbered(directory, number);
        let _ = sys::unlinkat(sys::AT_FDCWD, path.as_c(), false);
    }
}

fn numbered(directory: &CStr, number: u32) -> Text {
    Text::new()
        .text(directory.to_bytes())
        .text(b"/")
        .number(number as i32)
}

/// Why a task failed.
struct Failure {
    reason: Reason,
    errno: Errno,
    name: Name,
}

impl Failure {
    fn new(reason: Reason, errno: Errno) -> Self {
        let name = Name::empty();
        Self {
            reason,
            errno,
            name,
        }
    }

    fn tell(&self) -> sys::Result<()> {
        let refusal = Refusal {
            reason: self.reason,
            errno: self.errno.0,
            name: self.name.as_bytes(),
        };
        sys::write_all(ERRORS, &refusal.encode_head())?;
        sys::write_all(ERRORS, refusal.name)
    }
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Self::new(Reason::Errno, errno)
    }
}

/// The name of a directory entry.
#[derive(Clone, Copy)]
struct Name {
    bytes: [u8; 255],
    length: usize,
}

impl Name {
    const fn empty() -> Self {
        Self {
            bytes: [0; 255],
            length: 0,
        }
    }

    fn of(name: &CStr) -> Self {
        let mut copy = Self::empty();
        copy.length = name.count_bytes().min(copy.bytes.len());
        copy.bytes[..copy.length].copy_from_slice(&name.to_bytes()[..copy.length]);
        copy
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// The kind of what was found.
fn kind(stat: &Stat) -> Kind {
    match stat.file_type() {
        FileType::Regular => Kind::File,
        FileType::Directory => Kind::Directory,
        FileType::Link => Kind::Link,
        FileType::Other => Kind::Other,
    }
}

fn entry<'n>(stat: &Stat, name: &'n [u8]) -> Entry<'n> {
    Entry {
        kind: kind(stat),
        mode: stat.permissions(),
        size_bytes: stat.size.max(0) as u64,
        name,
    }
}
