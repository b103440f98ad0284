//! A command's output: pipes, or the terminal that it runs in.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use bytes::{BufMut as _, Bytes, BytesMut};
use cantle_command_driver::OutputChannel;
use cantle_core::sandbox::{PtySize, SandboxError};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::termios::{Winsize, tcsetwinsize};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::unix::pipe;

use crate::readiness::register;

/// Most commands write little: the first chunk is small, and chunks grow as long as they are full.
const MIN_CHUNK: usize = 8 * 1024;
const MAX_CHUNK: usize = 256 * 1024;

/// Content of a full pipe of the default size, less some slack.
const FULL_PIPE: usize = 60 * 1024;
/// Size of a pipe that has been full once. Not used from the start: `fs.pipe-user-pages-soft` limits the
/// memory that an ordinary user has in large pipes, beyond which pipes become tiny.
const LARGE_PIPE: usize = 256 * 1024;

/// Bytes read from a terminal at once, which is the size of its buffer.
const TERMINAL_BYTES: usize = 4096;

/// Reads one output channel.
#[derive(Debug)]
pub(crate) struct LocalOutput {
    source: Arc<OutputSource>,
    buffer: BytesMut,
    chunk_size: usize,
    is_enlarged: bool,
}

impl LocalOutput {
    pub(super) fn new(source: Arc<OutputSource>) -> Self {
        Self {
            source,
            buffer: BytesMut::new(),
            chunk_size: MIN_CHUNK,
            is_enlarged: false,
        }
    }
}

impl OutputChannel for LocalOutput {
    async fn next(&mut self) -> Option<Result<Bytes, SandboxError>> {
        loop {
            let readable = self.source.readable().await;
            // Reuses the memory of chunks that were dropped.
            if self.buffer.capacity() < self.chunk_size / 2 {
                self.buffer.reserve(self.chunk_size);
            }
            let room = self.buffer.capacity();
            match readable.and_then(|()| self.source.try_read(&mut self.buffer)) {
                Ok(0) => return None,
                Ok(count) => {
                    if count == room {
                        self.chunk_size = (self.chunk_size * 4).min(MAX_CHUNK);
                    }
                    if count >= FULL_PIPE && !self.is_enlarged {
                        self.is_enlarged = true;
                        self.source.enlarge(LARGE_PIPE);
                    }
                    return Some(Ok(self.buffer.split().freeze()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => {
                    let doing = "failed to read the command's output";
                    return Some(Err(SandboxError::io(doing, error)));
                }
            }
        }
    }
}

/// Reads a channel to its end without keeping anything.
pub(super) async fn discard(mut output: LocalOutput) {
    while let Some(Ok(_)) = output.next().await {}
}

/// The source of output.
#[derive(Debug)]
pub(super) enum OutputSource {
    Pipe(pipe::Receiver),
    Terminal(Arc<Terminal>),
}

impl OutputSource {
    async fn readable(&self) -> io::Result<()> {
        match self {
            Self::Pipe(pipe) => pipe.readable().await,
            Self::Terminal(terminal) => terminal.master.readable().await.map(drop),
        }
    }

    /// Reads available bytes into the buffer; 0 at the end, `WouldBlock` if there are none yet.
    fn try_read(&self, buffer: &mut BytesMut) -> io::Result<usize> {
        match self {
            Self::Pipe(pipe) => pipe.try_read_buf(buffer),
            Self::Terminal(terminal) => terminal.try_read(buffer),
        }
    }

    /// Number of bytes that can be read at once.
    pub(super) fn unread_bytes(&self) -> u64 {
        match self {
            Self::Pipe(pipe) => rustix::io::ioctl_fionread(pipe.as_fd()),
            Self::Terminal(terminal) => rustix::io::ioctl_fionread(terminal.master.as_fd()),
        }
        .unwrap_or(0)
    }

    /// Sets the capacity of a pipe, where the system supports that.
    fn enlarge(&self, bytes: usize) {
        #[cfg(confined)]
        if let Self::Pipe(pipe) = self {
            // A refusal makes reading slower, nothing else.
            let _ = rustix::pipe::fcntl_setpipe_size(pipe, bytes);
        }
        // Only Linux supports it.
        #[cfg(not(confined))]
        let _ = bytes;
    }
}

/// The master of a terminal.
#[derive(Debug)]
pub(crate) struct Terminal {
    master: AsyncFd<OwnedFd>,
}

impl Terminal {
    pub(super) fn new(master: OwnedFd) -> io::Result<Self> {
        fcntl_setfl(&master, fcntl_getfl(&master)? | OFlags::NONBLOCK)?;
        let master = register(master, Interest::READABLE | Interest::WRITABLE)?;
        Ok(Self { master })
    }

    fn try_read(&self, buffer: &mut BytesMut) -> io::Result<usize> {
        let mut bytes = [0; TERMINAL_BYTES];
        let read = self.master.try_io(Interest::READABLE, |master| {
            match rustix::io::read(master, &mut bytes) {
                // No process has the other end open.
                Err(Errno::IO) => Ok(0),
                read => Ok(read?),
            }
        })?;
        buffer.put_slice(bytes.get(..read).unwrap_or_default());
        Ok(read)
    }

    /// Writes some of `data`, as if it was typed; returns how many bytes.
    pub(super) async fn write(&self, data: &[u8]) -> io::Result<usize> {
        self.master
            .async_io(Interest::WRITABLE, |master| {
                Ok(rustix::io::write(master, data)?)
            })
            .await
    }

    pub(super) fn resize(&self, size: PtySize) -> io::Result<()> {
        Ok(tcsetwinsize(&self.master, window_size(size))?)
    }
}

pub(super) fn window_size(size: PtySize) -> Winsize {
    Winsize {
        ws_row: size.rows,
        ws_col: size.columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}
