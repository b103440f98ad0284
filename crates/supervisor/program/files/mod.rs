//! File tasks: file operations, and connections, by a command that executes no program.
//!
//! They run as the commands' user, so that a path can't lead to more than commands can reach; the root
//! additionally confines symbolic links.

#![expect(
    clippy::result_large_err,
    reason = "an error is reported once, and there is no heap to box it in"
)]

mod connect;
mod read;
mod remove;
mod root;
mod tree;
mod write;

use core::ffi::CStr;

use self::root::Root;
use crate::sys::{self, Errno, Fd, List, Stat};
use crate::tasks::{Entry, MAX_ERROR_BYTES, Task, TaskError, TaskErrorKind};
use crate::wire::{Reader, encode_into};

const INPUT: Fd = Fd(0);
const OUTPUT: Fd = Fd(1);
const ERRORS: Fd = Fd(2);

/// Performs a task and exits.
pub fn run(root: &CStr, mut reader: Reader<'_>) -> ! {
    sys::close_from(3);
    sys::set_name(c"cantle-files");
    // Commands of the same user must not trace it. The kernel may have a setting that keeps it dumpable when its user
    // changes.
    let _ = sys::set_dumpable(false);
    // Exceeding the file size limit must return an error, so that the partial file is removed.
    sys::set_signal_mask(1 << (sys::SIGXFSZ - 1));
    let done = match reader.read::<Task<'_>>() {
        Some(task) => Root::open(root).and_then(|root| perform(&root, task, reader)),
        None => Err(sys::EINVAL.into()),
    };
    if let Err(failure) = done {
        // The exit code says enough if stderr is closed.
        let _ = failure.send();
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
        Task::Stat { path } => tree::stat(root, path),
        Task::List { path } => tree::list(root, path),
        Task::MakeDirectory { path } => tree::make_directory(root, path),
        Task::Remove { path } => remove::remove(root, path),
        Task::Rename { from, to } => tree::rename(root, from, to),
        Task::Connect { port } => connect::connect(port),
        Task::FindProgram { count } => {
            for number in 0..count {
                let path = rest.read::<&CStr>().ok_or(sys::EINVAL)?;
                if sys::may_execute(path) {
                    return Ok(sys::write_all(OUTPUT, &number.to_le_bytes())?);
                }
            }
            Ok(())
        }
    }
}

/// Changes to a directory below the root.
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

/// The error of a task.
struct Failure {
    kind: TaskErrorKind,
    errno: Errno,
    name: Name,
}

impl Failure {
    fn new(kind: TaskErrorKind, errno: Errno) -> Self {
        let name = Name::new();
        Self { kind, errno, name }
    }

    fn send(&self) -> sys::Result<()> {
        let error = TaskError {
            kind: self.kind,
            errno: self.errno.0,
            name: &self.name,
        };
        let mut message = [0; MAX_ERROR_BYTES];
        let length = encode_into(&error, &mut message).ok_or(sys::EINVAL)?;
        sys::write_all(ERRORS, &message[..length])
    }
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Self::new(TaskErrorKind::Errno, errno)
    }
}

/// The copied name of a directory entry.
type Name = List<u8, 255>;

fn entry<'n>(stat: &Stat, name: &'n [u8]) -> Entry<'n> {
    Entry {
        kind: stat.kind(),
        mode: stat.permissions(),
        size_bytes: stat.size.max(0) as u64,
        name,
    }
}
