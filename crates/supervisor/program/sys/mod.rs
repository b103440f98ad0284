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

pub const EPERM: Errno = Errno(1);
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
pub const ENFILE: Errno = Errno(23);
pub const EMFILE: Errno = Errno(24);
pub const ENAMETOOLONG: Errno = Errno(36);
pub const ENOSYS: Errno = Errno(38);
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
        // the call and whose size it passes to the kernel.
        unsafe { syscall($number, pad([$($arg as usize),*])) }
    };
}

/// Declares functions that only perform a system call: its number and arguments follow the signature.
macro_rules! system_calls {
    ($($(#[$meta:meta])* fn $name:ident($($parameter:ident: $type:ty),*) $(-> $answer:ty)?
        = $number:literal($($argument:expr),*);)*) => {$(
        $(#[$meta])*
        pub fn $name($($parameter: $type),*) -> Result<system_calls!(@ $($answer)?)> {
            call!($number $(, $argument)*).map(FromRegister::from_register)
        }
    )*};
    (@) => { () };
    (@ $answer:ty) => { $answer };
}

/// The answer of a successful system call.
trait FromRegister {
    fn from_register(value: usize) -> Self;
}

impl FromRegister for () {
    fn from_register(_: usize) {}
}

impl FromRegister for usize {
    fn from_register(value: usize) -> Self {
        value
    }
}

impl FromRegister for Fd {
    fn from_register(value: usize) -> Self {
        Self(value as i32)
    }
}

/// Repeats a system call that a signal has interrupted.
pub fn uninterrupted<T>(mut call: impl FnMut() -> Result<T>) -> Result<T> {
    loop {
        match call() {
            Err(EINTR) => {}
            result => return result,
        }
    }
}

mod confine;
mod files;
mod list;
mod process;
mod socket;
mod stream;

pub use self::confine::*;
pub use self::files::*;
pub use self::list::List;
pub use self::process::*;
pub use self::socket::*;
pub use self::stream::*;

/// Pads the arguments with zeros.
fn pad<const N: usize>(given: [usize; N]) -> [usize; 6] {
    let mut all = [0; 6];
    all[..N].copy_from_slice(&given);
    all
}

/// A file descriptor. It is not closed on drop: lifetimes here are explicit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fd(pub i32);

/// No descriptor.
pub const NONE: Fd = Fd(-1);

impl Default for Fd {
    fn default() -> Self {
        NONE
    }
}

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

/// Creates a pipe: its read end and its write end.
pub fn pipe() -> Result<(Fd, Fd)> {
    let mut ends = [0_i32; 2];
    call!(293, ends.as_mut_ptr(), O_CLOEXEC)?;
    Ok((Fd(ends[0]), Fd(ends[1])))
}

/// Closes this descriptor and all above it.
pub fn close_from(first: i32) {
    if call!(436, first, u32::MAX, 0).is_err() {
        // Linux before 5.9.
        (first..4096).map(Fd).for_each(close);
    }
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

system_calls! {
    /// Duplicates a descriptor to a number of at least `least`, closed on exec.
    fn dup_above(fd: Fd, least: i32) -> Fd = 72(fd.0, 1030 /* F_DUPFD_CLOEXEC */, least);
    fn read(fd: Fd, buffer: &mut [u8]) -> usize = 0(fd.0, buffer.as_mut_ptr(), buffer.len());
    fn write(fd: Fd, bytes: &[u8]) -> usize = 1(fd.0, bytes.as_ptr(), bytes.len());
    fn write_at(fd: Fd, bytes: &[u8], offset: u64) -> usize
        = 18(fd.0, bytes.as_ptr(), bytes.len(), offset);
    fn openat(at: Fd, path: &CStr, flags: i32, mode: u32) -> Fd
        = 257(at.0, path.as_ptr(), flags | O_CLOEXEC, mode);
    fn mkdir(path: &CStr, mode: u32) = 83(path.as_ptr(), mode);
    fn rmdir(path: &CStr) = 84(path.as_ptr());
    fn symlink(target: &CStr, path: &CStr) = 88(target.as_ptr(), path.as_ptr());
    fn chdir(path: &CStr) = 80(path.as_ptr());
    /// Reads entries of an open directory in the kernel's format; see `getdents64`.
    fn getdents(fd: Fd, buffer: &mut [u8]) -> usize
        = 217(fd.0, buffer.as_mut_ptr(), buffer.len());
    /// Sets the file offset.
    fn seek(fd: Fd, offset: u64) = 8(fd.0, offset, 0);
    /// Returns the length of a file.
    fn file_length(fd: Fd) -> usize = 8(fd.0, 0, 2 /* SEEK_END */);
}

/// Opens an absolute path.
pub fn open(path: &CStr, flags: i32) -> Result<Fd> {
    openat(AT_FDCWD, path, flags, 0)
}

/// Reads the start of a file, as much as one read returns.
pub fn read_file(path: &CStr, buffer: &mut [u8]) -> Result<usize> {
    let file = open(path, O_RDONLY)?;
    let length = read(file, buffer);
    close(file);
    length
}

/// Writes to an existing file with one write.
pub fn write_file(path: &CStr, content: &[u8]) -> Result<()> {
    let file = open(path, O_WRONLY)?;
    let written = write(file, content);
    close(file);
    written.map(drop)
}

pub fn umask(mask: u32) {
    let _ = call!(95, mask);
}

/// Maps an immutable file for the rest of the process's life, and closes it.
pub fn map_file(fd: Fd) -> Result<&'static [u8]> {
    const PROT_READ: usize = 1;
    const MAP_PRIVATE: usize = 2;
    let length = file_length(fd)?;
    if length == 0 {
        close(fd);
        return Ok(&[]);
    }
    let address = call!(9, 0, length, PROT_READ, MAP_PRIVATE, fd.0, 0)?;
    close(fd);
    // SAFETY: fresh, readable memory of this length; the sender has sealed the file, so that it neither
    // shrinks nor changes.
    Ok(unsafe { core::slice::from_raw_parts(address as *const u8, length) })
}

/// A type with a valid value of zeros.
///
/// # Safety
/// Memory filled with zeros is a valid value.
pub unsafe trait Zeroable {}

// SAFETY: the number zero.
unsafe impl Zeroable for u8 {}
// SAFETY: the null pointer.
unsafe impl Zeroable for *const u8 {}

/// Maps memory for `count` zeroed values, to be freed by [`unmap`]. Pages are allocated on first use.
pub fn map<T: Zeroable>(count: usize) -> Result<&'static mut [T]> {
    const PROT_READ_WRITE: usize = 3;
    const MAP_PRIVATE_ANONYMOUS_NORESERVE: usize = 0x4022;
    let length = (count * size_of::<T>()).max(1);
    let flags = MAP_PRIVATE_ANONYMOUS_NORESERVE;
    let address = call!(9, 0, length, PROT_READ_WRITE, flags, usize::MAX, 0)?;
    // SAFETY: fresh, page-aligned memory of this length without another reference; zeros are valid.
    Ok(unsafe { core::slice::from_raw_parts_mut(address as *mut T, count) })
}

/// Frees mapped memory.
pub fn unmap<T: Zeroable>(values: &'static mut [T]) {
    if !values.is_empty() {
        let _ = call!(11, values.as_mut_ptr(), size_of_val(values));
    }
}
