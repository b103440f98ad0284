//! Resolving paths beneath the root.

use core::ffi::CStr;

use super::Failure;
use crate::sys::{self, EAGAIN, EINTR, ENAMETOOLONG, EXDEV, Fd, NONE};
use crate::tasks::TaskErrorKind;

/// Length that a path must not reach.
const PATH_MAX: usize = 4096;

/// Retries when the kernel cannot resolve a path because a directory was moved meanwhile.
const MAX_RETRIES: u32 = 128;

/// A directory that no symbolic link leads out of. With `/` links are followed as usual.
pub struct Root<'r> {
    path: &'r [u8],
    /// The directory, unless it is `/`.
    descriptor: Fd,
}

impl<'r> Root<'r> {
    pub fn open(path: &'r CStr) -> Result<Self, Failure> {
        if path == c"/" {
            return Ok(Self {
                path: b"",
                descriptor: NONE,
            });
        }
        let flags = sys::O_PATH | sys::O_DIRECTORY;
        Ok(Self {
            path: path.to_bytes(),
            descriptor: sys::open(path, flags)?,
        })
    }

    pub fn descriptor(&self) -> Fd {
        self.descriptor
    }

    /// Returns the length of its path; all other paths are longer.
    pub fn length(&self) -> usize {
        self.path.len()
    }

    /// Opens an absolute path.
    pub fn open_path(&self, path: &[u8], mut flags: i32) -> Result<Fd, Failure> {
        if flags & sys::O_PATH == 0 {
            // A file made by untrusted code must not block or become the controlling terminal.
            flags |= sys::O_NONBLOCK | sys::O_NOCTTY;
        }
        let mut buffer = [0; PATH_MAX];
        if self.path.is_empty() {
            let path = terminated(path, &mut buffer)?;
            return Ok(sys::open(path, flags)?);
        }
        let outside = || Failure::new(TaskErrorKind::Outside, EXDEV);
        let below = match path.strip_prefix(self.path).ok_or_else(outside)? {
            b"" => b".",
            [b'/', below @ ..] => below,
            _ => return Err(outside()),
        };
        let below = terminated(below, &mut buffer)?;
        let resolve = sys::RESOLVE_BENEATH | sys::RESOLVE_NO_MAGICLINKS;
        let mut result = Err(EAGAIN);
        for _ in 0..MAX_RETRIES {
            result = sys::openat2(self.descriptor, below, flags, 0, resolve);
            if !matches!(result, Err(EAGAIN | EINTR)) {
                break;
            }
        }
        result.map_err(|errno| match errno {
            EXDEV => outside(),
            errno => errno.into(),
        })
    }

    /// Opens the parent of a path and returns it with the last component, which is empty if the path is
    /// the root.
    pub fn open_parent<'p>(&self, path: &'p CStr) -> Result<(Fd, &'p CStr), Failure> {
        let bytes = path.to_bytes();
        let slash = bytes.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        let (parent, name) = if bytes.len() <= self.length().max(1) {
            (bytes, &path.to_bytes_with_nul()[bytes.len()..])
        } else {
            (
                &bytes[..slash.max(1)],
                &path.to_bytes_with_nul()[slash + 1..],
            )
        };
        let name = CStr::from_bytes_with_nul(name).map_err(|_| sys::EINVAL)?;
        let directory = self.open_path(parent, sys::O_PATH | sys::O_DIRECTORY)?;
        Ok((directory, name))
    }
}

/// Copies a path and appends a NUL.
fn terminated<'b>(path: &[u8], buffer: &'b mut [u8; PATH_MAX]) -> sys::Result<&'b CStr> {
    if path.len() >= PATH_MAX {
        return Err(ENAMETOOLONG);
    }
    buffer[..path.len()].copy_from_slice(path);
    CStr::from_bytes_until_nul(&buffer[..=path.len()]).map_err(|_| sys::EINVAL)
}
