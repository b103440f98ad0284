//! Files and directories.

use core::ffi::CStr;
use core::mem::size_of;

use super::{
    AT_FDCWD, EINTR, Errno, Fd, O_CLOEXEC, O_DIRECTORY, O_RDWR, Result, openat, pad, syscall,
};

pub const O_NONBLOCK: i32 = 0o4000;
pub const O_NOFOLLOW: i32 = 0o40_0000;

pub const RESOLVE_NO_MAGICLINKS: u64 = 2;
pub const RESOLVE_BENEATH: u64 = 8;

/// Opens a path below a directory; `resolve` restricts the resolution.
pub fn openat2(at: Fd, path: &CStr, flags: i32, mode: u32, resolve: u64) -> Result<Fd> {
    let how = [(flags | O_CLOEXEC) as u64, u64::from(mode), resolve];
    let size = size_of::<[u64; 3]>();
    call!(437, at.0, path.as_ptr(), how.as_ptr(), size).map(|fd| Fd(fd as i32))
}

/// The kernel's `struct stat`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Stat {
    pub device: u64,
    pub inode: u64,
    links: u64,
    mode: u32,
    owner: [u32; 3],
    special: u64,
    pub size: i64,
    rest: [u64; 11],
}

/// The type of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum FileType {
    Regular,
    Directory,
    Link,
    Other,
}

impl Stat {
    pub fn file_type(&self) -> FileType {
        match self.mode & 0o170_000 {
            0o100_000 => FileType::Regular,
            0o040_000 => FileType::Directory,
            0o120_000 => FileType::Link,
            _ => FileType::Other,
        }
    }

    pub fn permissions(&self) -> u32 {
        self.mode & 0o777
    }
}

/// Returns the status of a path below a directory, or of the directory itself if the path is empty. A final
/// symbolic link is not followed.
pub fn statat(at: Fd, path: &CStr) -> Result<Stat> {
    const NO_FOLLOW: usize = 0x100;
    const EMPTY_PATH: usize = 0x1000;
    let mut stat = Stat {
        device: 0,
        inode: 0,
        links: 0,
        mode: 0,
        owner: [0; 3],
        special: 0,
        size: 0,
        rest: [0; 11],
    };
    let flags = NO_FOLLOW | EMPTY_PATH;
    call!(262, at.0, path.as_ptr(), &raw mut stat, flags).map(|_| stat)
}

pub fn mkdirat(at: Fd, path: &CStr, mode: u32) -> Result<()> {
    call!(258, at.0, path.as_ptr(), mode).map(drop)
}

/// Removes a name; that of an empty directory if `is_directory` is set.
pub fn unlinkat(at: Fd, path: &CStr, is_directory: bool) -> Result<()> {
    const REMOVE_DIRECTORY: usize = 0x200;
    let flags = if is_directory { REMOVE_DIRECTORY } else { 0 };
    call!(263, at.0, path.as_ptr(), flags).map(drop)
}

pub fn renameat(from_at: Fd, from: &CStr, to_at: Fd, to: &CStr) -> Result<()> {
    call!(264, from_at.0, from.as_ptr(), to_at.0, to.as_ptr()).map(drop)
}

/// Creates an unnamed file in a directory, if the file system supports that.
pub fn unnamed_file(directory: Fd) -> Result<Fd> {
    const O_TMPFILE: i32 = 0o2000_0000 | O_DIRECTORY;
    openat(directory, c".", O_RDWR | O_TMPFILE, 0o600)
}

/// Links a file, following a symbolic link such as `/proc/self/fd/N`.
pub fn name_file(link: &CStr, to_at: Fd, to: &CStr) -> Result<()> {
    const FOLLOW: usize = 0x400;
    let from_at = AT_FDCWD.0;
    call!(265, from_at, link.as_ptr(), to_at.0, to.as_ptr(), FOLLOW).map(drop)
}

pub fn fchmod(fd: Fd, mode: u32) -> Result<()> {
    call!(91, fd.0, mode).map(drop)
}

pub fn chmod(path: &CStr, mode: u32) -> Result<()> {
    call!(90, path.as_ptr(), mode).map(drop)
}

/// Changes the owner of a path, following symbolic links.
pub fn chown(path: &CStr, uid: u32, gid: u32) -> Result<()> {
    call!(92, path.as_ptr(), uid, gid).map(drop)
}

/// Changes the owner of an open file.
pub fn fchown(fd: Fd, uid: u32, gid: u32) -> Result<()> {
    call!(93, fd.0, uid, gid).map(drop)
}

pub fn fchdir(fd: Fd) -> Result<()> {
    call!(81, fd.0).map(drop)
}

/// Whether a path may be executed, following symbolic links.
pub fn may_execute(path: &CStr) -> bool {
    const X_OK: usize = 1;
    call!(269, AT_FDCWD.0 as isize, path.as_ptr(), X_OK).is_ok()
}

/// Reads at an offset.
pub fn pread(fd: Fd, buffer: &mut [u8], offset: u64) -> Result<usize> {
    loop {
        match call!(17, fd.0, buffer.as_mut_ptr(), buffer.len(), offset) {
            Err(EINTR) => {}
            other => return other,
        }
    }
}

/// Writes all bytes.
pub fn write_all(fd: Fd, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        match super::write(fd, bytes) {
            Ok(0) => return Err(Errno(5)),
            Ok(count) => bytes = &bytes[count..],
            Err(EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Returns a random number.
pub fn random() -> Result<u64> {
    let mut number = 0_u64;
    call!(318, &raw mut number, size_of::<u64>(), 0).map(|_| number)
}
