//! Where a command's output comes from: a pipe, or the terminal that it believes to be on.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use bytes::{BufMut as _, BytesMut};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::termios::{Winsize, tcsetwinsize};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::unix::pipe;

use cantle_core::sandbox::PtySize;

use super::watched;

/// Bytes that are read from a terminal at once: what it holds.
const TERMINAL_BYTES: usize = 4096;

#[derive(Debug)]
pub(crate) enum Source {
    Pipe(pipe::Receiver),
    Terminal(Arc<Terminal>),
}

impl Source {
    pub(super) async fn readable(&self) -> io::Result<()> {
        match self {
            Self::Pipe(pipe) => pipe.readable().await,
            Self::Terminal(terminal) => terminal.master.readable().await.map(drop),
        }
    }

    /// Reads what is there; nothing at the end. `WouldBlock` where nothing is there yet.
    pub(super) fn try_read(&self, buffer: &mut BytesMut) -> io::Result<usize> {
        match self {
            Self::Pipe(pipe) => pipe.try_read_buf(buffer),
            Self::Terminal(terminal) => terminal.try_read(buffer),
        }
    }

    /// Bytes that can be read at once.
    pub(super) fn unread_bytes(&self) -> u64 {
        match self {
            Self::Pipe(pipe) => rustix::io::ioctl_fionread(pipe.as_fd()),
            Self::Terminal(terminal) => rustix::io::ioctl_fionread(terminal.master.as_fd()),
        }
        .unwrap_or(0)
    }

    /// Makes room for so many bytes between the command and us, where that can be.
    pub(super) fn enlarge(&self, bytes: usize) {
        #[cfg(confined)]
        if let Self::Pipe(pipe) = self {
            // Slower where it is refused, nothing else.
            let _ = rustix::pipe::fcntl_setpipe_size(pipe, bytes);
        }
        // Only Linux lets pipes grow.
        #[cfg(not(confined))]
        let _ = bytes;
    }
}

/// Our end of a terminal.
#[derive(Debug)]
pub(crate) struct Terminal {
    master: AsyncFd<OwnedFd>,
}

impl Terminal {
    pub(super) fn new(master: OwnedFd) -> io::Result<Self> {
        fcntl_setfl(&master, fcntl_getfl(&master)? | OFlags::NONBLOCK)?;
        let master = watched(master, Interest::READABLE | Interest::WRITABLE)?;
        Ok(Self { master })
    }

    fn try_read(&self, buffer: &mut BytesMut) -> io::Result<usize> {
        let mut bytes = [0; TERMINAL_BYTES];
        let read = self.master.try_io(Interest::READABLE, |master| {
            match rustix::io::read(master, &mut bytes) {
                // Nobody has its other end open any more.
                Err(Errno::IO) => Ok(0),
                read => Ok(read?),
            }
        })?;
        buffer.put_slice(bytes.get(..read).unwrap_or_default());
        Ok(read)
    }

    /// Types what it can of `data`; how many bytes that were.
    pub(super) async fn type_in(&self, data: &[u8]) -> io::Result<usize> {
        self.master
            .async_io(Interest::WRITABLE, |master| {
                Ok(rustix::io::write(master, data)?)
            })
            .await
    }

    pub(super) fn resize(&self, size: PtySize) -> io::Result<()> {
        Ok(tcsetwinsize(&self.master, window(size))?)
    }
}

pub(super) fn window(size: PtySize) -> Winsize {
    Winsize {
        ws_row: size.rows,
        ws_col: size.columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}
