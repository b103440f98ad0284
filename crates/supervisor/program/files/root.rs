//! Paths below the root, and nowhere else.

use core::ffi::CStr;

use super::Failure;
use crate::sys::{self, EAGAIN, EINTR, ENAMETOOLONG, EXDEV, Fd};
use crate::tasks::Reason;

/// What a path must be shorter than.
const LONG_PATH: usize = 4096;

/// The kernel can't tell where a path leads while directories are being moved; then it says so.
const MOST_RETRIES: u32 = 128;

/// A directory that no link leads out of. Where it is `/` there is nothing outside, and links mean
/// what they say.
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
                descriptor: Fd(-1),
            });
        }
        let flags = sys::O_PATH | sys::O_DIRECTORY;
        Ok(Self {
            path: path.to_bytes(),
            descriptor: sys::openat(sys::AT_FDCWD, path, flags, 0)?,
        })
    }

    pub fn descriptor(&self) -> Fd {
        self.descriptor
    }

    /// Bytes of its path: all other paths are longer.
    pub fn length(&self) -> usize {
        self.path.len()
    }

    /// Opens what is at an absolute path.
    pub fn open_path(&self, path: &[u8], mut flags: i32) -> Result<Fd, Failure> {
        if flags & sys::O_PATH == 0 {
            // Nothing that code has put there may block us or become our terminal.
            flags |= sys::O_NONBLOCK | sys::O_NOCTTY;
        }
        let mut buffer = [0; LONG_PATH];
        if self.path.is_empty() {
            let path = terminated(path, &mut buffer)?;
            return Ok(sys::openat(sys::AT_FDCWD, path, flags, 0)?);
        }
        let outside = || Failure::new(Reason::Outside, EXDEV);
        let below = match path.strip_prefix(self.path).ok_or_else(outside)? {
            b"" => b".",
            [b'/', below @ ..] => below,
            _ => return Err(outside()),
        };
        let below = terminated(below, &mut buffer)?;
        let resolve = sys::RESOLVE_BENEATH | sys::RESOLVE_NO_MAGICLINKS;
        let mut result = Err(EAGAIN);
        for _ in 0..MOST_RETRIES {
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

    /// Opens the directory in which a path lies, and gives the path's last component, which is empty
    /// where the path is the root.
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

/// The same with a NUL.
fn terminated<'b>(path: &[u8], buffer: &'b mut [u8; LONG_PATH]) -> sys::Result<&'b CStr> {
    if path.len() >= LONG_PATH {
        return Err(ENAMETOOLONG);
    }
    buffer[..path.len()].copy_from_slice(path);
    CStr::from_bytes_until_nul(&buffer[..=path.len()]).map_err(|_| sys::EINVAL)
}
