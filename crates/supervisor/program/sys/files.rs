//! Files and directories.

use core::ffi::CStr;
use core::mem::size_of;

use super::{
    AT_FDCWD, EINVAL, EIO, ENOSYS, EPERM, Fd, FromRegister, O_CLOEXEC, O_DIRECTORY, O_RDWR, Result,
    getdents, openat, pad, syscall, uninterrupted,
};
use crate::tasks::EntryKind;

pub const O_NONBLOCK: i32 = 0o4000;
pub const O_NOFOLLOW: i32 = 0o40_0000;

pub const RESOLVE_NO_MAGICLINKS: u64 = 2;
pub const RESOLVE_BENEATH: u64 = 8;

/// Opens a path below a directory; `resolve` restricts the resolution.
pub fn openat2(at: Fd, path: &CStr, flags: i32, mode: u32, resolve: u64) -> Result<Fd> {
    let how = [(flags | O_CLOEXEC) as u64, u64::from(mode), resolve];
    let size = size_of::<[u64; 3]>();
    call!(437, at.0, path.as_ptr(), how.as_ptr(), size).map(Fd::from_register)
}

/// The kernel's `struct stat`.
#[derive(Clone, Copy, Default)]
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

impl Stat {
    pub fn kind(&self) -> EntryKind {
        match self.mode & 0o170_000 {
            0o100_000 => EntryKind::File,
            0o040_000 => EntryKind::Directory,
            0o120_000 => EntryKind::Link,
            _ => EntryKind::Other,
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
    let mut stat = Stat::default();
    let flags = NO_FOLLOW | EMPTY_PATH;
    call!(262, at.0, path.as_ptr(), &raw mut stat, flags).map(|_| stat)
}

/// Removes a name; that of an empty directory if `is_directory` is set.
pub fn unlinkat(at: Fd, path: &CStr, is_directory: bool) -> Result<()> {
    const REMOVE_DIRECTORY: usize = 0x200;
    let flags = if is_directory { REMOVE_DIRECTORY } else { 0 };
    call!(263, at.0, path.as_ptr(), flags).map(drop)
}

system_calls! {
    fn mkdirat(at: Fd, path: &CStr, mode: u32) = 258(at.0, path.as_ptr(), mode);
    fn renameat(from_at: Fd, from: &CStr, to_at: Fd, to: &CStr)
        = 264(from_at.0, from.as_ptr(), to_at.0, to.as_ptr());
    /// Links a file, following a symbolic link such as `/proc/self/fd/N`.
    fn name_file(link: &CStr, to_at: Fd, to: &CStr)
        = 265(AT_FDCWD.0, link.as_ptr(), to_at.0, to.as_ptr(), 0x400 /* AT_SYMLINK_FOLLOW */);
    fn fchmod(fd: Fd, mode: u32) = 91(fd.0, mode);
    fn chmod(path: &CStr, mode: u32) = 90(path.as_ptr(), mode);
    /// Changes the owner of a path, following symbolic links.
    fn chown(path: &CStr, uid: u32, gid: u32) = 92(path.as_ptr(), uid, gid);
    /// Changes the owner of an open file.
    fn fchown(fd: Fd, uid: u32, gid: u32) = 93(fd.0, uid, gid);
    fn fchdir(fd: Fd) = 81(fd.0);
    /// Returns the number of an unused loop device; `control` is `/dev/loop-control`.
    fn unused_loop_device(control: Fd) -> usize = 16(control.0, 0x4C82 /* LOOP_CTL_GET_FREE */);
}

/// Makes an unused loop device represent a file until no one has the device open.
pub fn attach_to_loop_device(device: Fd, file: Fd) -> Result<()> {
    const LOOP_CONFIGURE: usize = 0x4C0A;
    const LO_FLAGS_AUTOCLEAR: u32 = 4;
    /// The kernel's `struct loop_config`.
    #[derive(Default)]
    #[repr(C)]
    struct Configuration {
        file: u32,
        block_size: u32,
        place: [u64; 5],
        numbers: [u32; 3],
        flags: u32,
        names: [u64; 22],
        reserved: [u64; 8],
    }
    let configuration = Configuration {
        file: file.0 as u32,
        flags: LO_FLAGS_AUTOCLEAR,
        ..Configuration::default()
    };
    call!(16, device.0, LOOP_CONFIGURE, &raw const configuration).map(drop)
}

/// Creates an unnamed file in a directory, if the file system supports that.
pub fn unnamed_file(directory: Fd) -> Result<Fd> {
    const O_TMPFILE: i32 = 0o2000_0000 | O_DIRECTORY;
    openat(directory, c".", O_RDWR | O_TMPFILE, 0o600)
}

/// Whether the effective user may execute a path, following symbolic links.
pub fn may_execute(path: &CStr) -> bool {
    const X_OK: usize = 1;
    const AT_EACCESS: usize = 0x200;
    match call!(439, AT_FDCWD.0 as isize, path.as_ptr(), X_OK, AT_EACCESS) {
        // Before Linux 5.8, or refused by an old filter, there is only the check for the real user.
        Err(ENOSYS | EPERM) => call!(269, AT_FDCWD.0 as isize, path.as_ptr(), X_OK).is_ok(),
        checked => checked.is_ok(),
    }
}

/// Reads at an offset.
pub fn pread(fd: Fd, buffer: &mut [u8], offset: u64) -> Result<usize> {
    uninterrupted(|| call!(17, fd.0, buffer.as_mut_ptr(), buffer.len(), offset))
}

/// Writes all bytes.
pub fn write_all(fd: Fd, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        match uninterrupted(|| super::write(fd, bytes))? {
            0 => return Err(EIO),
            count => bytes = &bytes[count..],
        }
    }
    Ok(())
}

/// Returns a random number.
pub fn random() -> Result<u64> {
    let mut number = 0_u64;
    call!(318, &raw mut number, size_of::<u64>(), 0).map(|_| number)
}

/// Iterates over a directory: names, and whether they are directories, where the file system reports that.
pub struct Entries {
    directory: Fd,
    page: [u8; 8192],
    start: usize,
    end: usize,
}

impl Entries {
    pub fn of(directory: Fd) -> Self {
        Self {
            directory,
            page: [0; 8192],
            start: 0,
            end: 0,
        }
    }

    pub fn next(&mut self) -> Result<Option<(&CStr, Option<bool>)>> {
        const DIRECTORY: u8 = 4;
        loop {
            if self.start == self.end {
                self.start = 0;
                self.end = getdents(self.directory, &mut self.page)?;
                if self.end == 0 {
                    return Ok(None);
                }
            }
            // An entry: inode and offset (8 bytes each), its length (2), a type (1), its name, NUL.
            let start = self.start;
            let length = [self.page[start + 16], self.page[start + 17]];
            self.start += usize::from(u16::from_le_bytes(length));
            let name = &self.page[start + 19..self.start];
            if name.starts_with(b".\0") || name.starts_with(b"..\0") {
                continue;
            }
            let is_directory = match self.page[start + 18] {
                // Unknown: not every file system reports it.
                0 => None,
                kind => Some(kind == DIRECTORY),
            };
            let name = &self.page[start + 19..self.start];
            let name = CStr::from_bytes_until_nul(name).map_err(|_| EINVAL)?;
            return Ok(Some((name, is_directory)));
        }
    }
}
