//! System calls, by number and register: the program has no C library.
//!
//! Each function is a thin, typed wrapper of the system call of the same name; see its manual page.
//! Functions are safe if no argument can break Rust's rules, whatever they do to the process.

use core::arch::asm;
use core::ffi::CStr;
use core::mem::{size_of, size_of_val};

/// An error number of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

pub const ENOENT: Errno = Errno(2);
pub const EINTR: Errno = Errno(4);
pub const EAGAIN: Errno = Errno(11);
pub const EIO: Errno = Errno(5);
pub const EACCES: Errno = Errno(13);
pub const EBUSY: Errno = Errno(16);
pub const EEXIST: Errno = Errno(17);
pub const EXDEV: Errno = Errno(18);
pub const ENOTDIR: Errno = Errno(20);
pub const EISDIR: Errno = Errno(21);
pub const EINVAL: Errno = Errno(22);
pub const ENAMETOOLONG: Errno = Errno(36);
pub const ENOTEMPTY: Errno = Errno(39);

pub type Result<T> = core::result::Result<T, Errno>;

/// Performs a system call.
///
/// # Safety
/// The arguments must be valid for system call `number`: pointers lead to live memory that the kernel may
/// read or, where it writes, that is exclusively borrowed.
#[inline(always)]
pub unsafe fn syscall(number: usize, args: [usize; 6]) -> Result<usize> {
    let [a, b, c, d, e, f] = args;
    let result: isize;
    // SAFETY: the kernel's calling convention. It clobbers rcx, r11 and memory that the caller
    // guarantees to be valid.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    if result < 0 {
        Err(Errno(-(result as i32)))
    } else {
        Ok(result as usize)
    }
}

/// Performs a system call; arguments are numbers or pointers, and missing ones are zero.
macro_rules! call {
    ($number:expr $(, $arg:expr)* $(,)?) => {
        // SAFETY: each function using this macro passes numbers, or pointers to memory that it borrows for
        // the call and whose size the kernel is told.
        unsafe { syscall($number, pad([$($arg as usize),*])) }
    };
}

mod confine;
mod files;
mod process;
mod socket;
mod stream;

pub use self::confine::*;
pub use self::files::*;
pub use self::process::*;
pub use self::socket::*;
pub use self::stream::*;

/// Pads the arguments with zeros.
const fn pad<const N: usize>(given: [usize; N]) -> [usize; 6] {
    let mut all = [0; 6];
    let mut at = 0;
    while at < N {
        all[at] = given[at];
        at += 1;
    }
    all
}

/// A file descriptor. It is not closed on drop: lifetimes here are explicit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fd(pub i32);

/// The base of relative paths.
pub const AT_FDCWD: Fd = Fd(-100);

pub fn close(fd: Fd) {
    // The descriptor is released even on an error.
    let _ = call!(3, fd.0);
}

/// Duplicates `from` as `to`, which survives an exec.
pub fn dup_to(from: Fd, to: Fd) -> Result<()> {
    if from == to {
        return call!(72, from.0, 2 /* F_SETFD */, 0).map(drop);
    }
    call!(292, from.0, to.0, 0).map(drop)
}

/// Duplicates a descriptor to a number of at least `least`, closed on exec.
pub fn dup_above(fd: Fd, least: i32) -> Result<Fd> {
    call!(72, fd.0, 1030 /* F_DUPFD_CLOEXEC */, least).map(|fd| Fd(fd as i32))
}

/// Creates a pipe: its read end and its write end.
pub fn pipe() -> Result<(Fd, Fd)> {
    let mut ends = [0_i32; 2];
    call!(293, ends.as_mut_ptr(), O_CLOEXEC)?;
    Ok((Fd(ends[0]), Fd(ends[1])))
}

/// Closes a range of descriptors, or sets their close-on-exec flag.
pub fn close_range(first: u32, last: u32, cloexec: bool) -> Result<()> {
    call!(436, first, last, if cloexec { 4 } else { 0 }).map(drop)
}

pub fn read(fd: Fd, buffer: &mut [u8]) -> Result<usize> {
    call!(0, fd.0, buffer.as_mut_ptr(), buffer.len())
}

pub fn write(fd: Fd, bytes: &[u8]) -> Result<usize> {
    call!(1, fd.0, bytes.as_ptr(), bytes.len())
}

pub const O_RDONLY: i32 = 0;
pub const O_WRONLY: i32 = 1;
pub const O_RDWR: i32 = 2;
pub const O_CREAT: i32 = 0o100;
pub const O_EXCL: i32 = 0o200;
pub const O_NOCTTY: i32 = 0o400;
pub const O_DIRECTORY: i32 = 0o20_0000;
pub const O_CLOEXEC: i32 = 0o200_0000;
pub const O_PATH: i32 = 0o1000_0000;

pub fn openat(at: Fd, path: &CStr, flags: i32, mode: u32) -> Result<Fd> {
    call!(257, at.0, path.as_ptr(), flags | O_CLOEXEC, mode).map(|fd| Fd(fd as i32))
}

pub fn mkdir(path: &CStr, mode: u32) -> Result<()> {
    call!(83, path.as_ptr(), mode).map(drop)
}

pub fn rmdir(path: &CStr) -> Result<()> {
    call!(84, path.as_ptr()).map(drop)
}

pub fn symlink(target: &CStr, path: &CStr) -> Result<()> {
    call!(88, target.as_ptr(), path.as_ptr()).map(drop)
}

pub fn chdir(path: &CStr) -> Result<()> {
    call!(80, path.as_ptr()).map(drop)
}

pub fn umask(mask: u32) {
    let _ = call!(95, mask);
}

/// Reads entries of an open directory in the kernel's format; see `getdents64`.
pub fn getdents(fd: Fd, buffer: &mut [u8]) -> Result<usize> {
    call!(217, fd.0, buffer.as_mut_ptr(), buffer.len())
}

pub fn rewind(fd: Fd) -> Result<()> {
    call!(8, fd.0, 0, 0).map(drop)
}

/// Sets the file offset.
pub fn seek(fd: Fd, offset: u64) -> Result<()> {
    call!(8, fd.0, offset, 0).map(drop)
}

/// Maps an immutable file for the rest of the process's life.
pub fn map_file(fd: Fd, length: usize) -> Result<&'static [u8]> {
    const PROT_READ: usize = 1;
    const MAP_PRIVATE: usize = 2;
    if length == 0 {
        return Ok(&[]);
    }
    let address = call!(9, 0, length, PROT_READ, MAP_PRIVATE, fd.0, 0)?;
    // SAFETY: fresh, readable memory of this length; the sender has sealed the file, so that it neither
    // shrinks nor changes.
    Ok(unsafe { core::slice::from_raw_parts(address as *const u8, length) })
}

/// Maps zeroed memory of at least one byte. Pages are allocated on first use.
fn map_zeroed(length: usize) -> Result<usize> {
    const PROT_READ_WRITE: usize = 3;
    const MAP_PRIVATE_ANONYMOUS_NORESERVE: usize = 0x4022;
    let flags = MAP_PRIVATE_ANONYMOUS_NORESERVE;
    call!(9, 0, length.max(1), PROT_READ_WRITE, flags, usize::MAX, 0)
}

/// Allocates rows of four numbers.
pub fn map_rows(count: usize) -> Result<&'static mut [[i32; 4]]> {
    let address = map_zeroed(count * size_of::<[i32; 4]>())?;
    // SAFETY: fresh, page-aligned memory without another reference; zeros are valid numbers.
    Ok(unsafe { core::slice::from_raw_parts_mut(address as *mut [i32; 4], count) })
}

/// Frees rows.
pub fn unmap_rows(rows: &'static mut [[i32; 4]]) {
    let _ = call!(11, rows.as_mut_ptr(), size_of_val(rows));
}

/// Allocates null pointers, for the rest of the process's life.
pub fn map_pointers(count: usize) -> Result<&'static mut [*const u8]> {
    let address = map_zeroed(count * size_of::<*const u8>())?;
    // SAFETY: as above; zeros are null pointers.
    Ok(unsafe { core::slice::from_raw_parts_mut(address as *mut *const u8, count) })
}

/// Returns the length of a file.
pub fn file_length(fd: Fd) -> Result<usize> {
    const SEEK_END: usize = 2;
    call!(8, fd.0, 0, SEEK_END)
}
