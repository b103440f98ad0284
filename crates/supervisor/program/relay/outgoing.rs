//! What goes to the owner.

use super::OUTPUT;
use crate::frames::{Answer, HEADER_BYTES, Lane, MOST_PAYLOAD, OUTPUT_WINDOW};
use crate::sys::{self, EAGAIN, EINTR, EINVAL, ENOSYS, Fd, PollFd};

/// What the pipes of the stream are enlarged to.
pub const PIPE_BYTES: usize = 256 * 1024;

/// What waits to be written at most.
const BUFFER_BYTES: usize = 1024 * 1024;

/// Short of it no more output is taken, so that there is always room for what is said.
const DATA_BYTES: usize = 256 * 1024;

/// Pieces that are shorter are copied.
const LEAST_MOVED: usize = 32 * 1024;

/// Room for the pages of a piece, which may be partly filled, and a header.
const BETWEEN_BYTES: usize = 512 * 1024;

/// The stream of answers, and what could not be written yet.
pub struct Outgoing {
    /// What is moved from a pipe without reading it, before what is in the buffer.
    moved: Option<Moved>,
    /// A pipe of our own that it goes through: where it is read, and where it is written.
    between: Option<(Fd, Fd)>,
    can_move: bool,
    buffer: &'static mut [u8],
    start: usize,
    end: usize,
}

impl Outgoing {
    pub fn new() -> sys::Result<Self> {
        Ok(Self {
            moved: None,
            between: None,
            can_move: true,
            buffer: sys::map_bytes(BUFFER_BYTES)?,
            start: 0,
            end: 0,
        })
    }

    pub fn is_empty(&self) -> bool {
        self.moved.is_none() && self.start == self.end
    }

    /// Whether output is taken.
    pub fn has_room(&self) -> bool {
        self.moved.is_none() && self.end - self.start < DATA_BYTES
    }

    /// Whether output is taken, after what there is was written as far as that goes.
    pub fn make_room(&mut self) -> sys::Result<bool> {
        if !self.has_room() {
            self.flush()?;
        }
        Ok(self.has_room())
    }

    /// Says something, however long that takes: the owner always listens.
    pub fn say(&mut self, answer: Answer, payload: &[u8]) -> sys::Result<()> {
        let length = HEADER_BYTES + payload.len();
        while self.free() < length {
            sys::poll(&mut [PollFd::writable(OUTPUT)], -1)?;
            self.flush()?;
        }
        self.append(&answer.encode());
        self.append(payload);
        Ok(())
    }

    /// Takes output from a pipe, for which there must be [room](Self::has_room); how much.
    pub fn take(&mut self, id: u32, lane: Lane, pipe: Fd, most: usize) -> sys::Result<usize> {
        let start = self.end_of_room() + HEADER_BYTES;
        let piece = &mut self.buffer[start..][..most.min(MOST_PAYLOAD)];
        let count = sys::read(pipe, piece)?;
        if count > 0 {
            let length = count as u64;
            self.append(&Answer::Output { id, lane, length }.encode());
            self.end += count;
        }
        Ok(count)
    }

    /// The same for a pipe that holds much, which is moved without copying it where that goes.
    pub fn take_much(&mut self, id: u32, lane: Lane, pipe: Fd, most: usize) -> sys::Result<usize> {
        if self.is_empty()
            && let Some(between) = self.between()
        {
            let count = sys::unread_bytes(pipe)?.min(most).min(MOST_PAYLOAD);
            // The command's own may be closed before all is moved.
            if count >= LEAST_MOVED
                && let Ok(pipe) = sys::dup_above(pipe, 3)
            {
                let length = count as u64;
                let header = Answer::Output { id, lane, length }.encode();
                self.moved = Some(Moved::begin(between, &header, pipe, count));
                return Ok(count);
            }
        }
        self.take(id, lane, pipe, most)
    }

    /// A pipe of our own, where bytes can be moved.
    fn between(&mut self) -> Option<(Fd, Fd)> {
        if self.between.is_none() && self.can_move {
            self.between = sys::pipe().ok();
            self.can_move = self.between.is_some();
            if let Some((reader, _)) = self.between {
                sys::enlarge_pipe(reader, BETWEEN_BYTES);
            }
        }
        self.between.filter(|_| self.can_move)
    }

    /// Takes output from a pipe and throws it away; how much.
    pub fn discard(&mut self, pipe: Fd) -> sys::Result<usize> {
        let start = self.end_of_room();
        sys::read(pipe, &mut self.buffer[start..][..MOST_PAYLOAD])
    }

    /// Writes what can be written at once.
    pub fn flush(&mut self) -> sys::Result<()> {
        if let Some(moved) = &mut self.moved {
            match moved.go_on() {
                Ok(()) => {}
                Err(EAGAIN) => return Ok(()),
                Err(EINVAL | ENOSYS) => {
                    self.can_move = false;
                    moved.copy()?;
                }
                Err(errno) => return Err(errno),
            }
            sys::close(moved.pipe);
            self.moved = None;
        }
        while !self.is_empty() {
            match sys::write(OUTPUT, &self.buffer[self.start..self.end]) {
                Ok(count) => self.start += count,
                Err(EINTR) => {}
                Err(EAGAIN) => return Ok(()),
                Err(errno) => return Err(errno),
            }
        }
        self.start = 0;
        self.end = 0;
        Ok(())
    }

    fn free(&self) -> usize {
        self.buffer.len() - (self.end - self.start)
    }

    /// Where the next byte goes; from there on there is room for a piece of output.
    fn end_of_room(&mut self) -> usize {
        if self.buffer.len() - self.end < HEADER_BYTES + MOST_PAYLOAD {
            self.compact();
        }
        self.end
    }

    fn append(&mut self, bytes: &[u8]) {
        if self.buffer.len() - self.end < bytes.len() {
            self.compact();
        }
        self.buffer[self.end..][..bytes.len()].copy_from_slice(bytes);
        self.end += bytes.len();
    }

    fn compact(&mut self) {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
    }
}

/// A frame of output that goes through a pipe of our own, with its header, so that whoever reads the
/// stream is woken once.
struct Moved {
    between: (Fd, Fd),
    /// What is in that pipe.
    ready: usize,
    /// Where the rest of what the header promises is.
    pipe: Fd,
    left: usize,
}

impl Moved {
    fn begin(between: (Fd, Fd), header: &[u8; HEADER_BYTES], pipe: Fd, count: usize) -> Self {
        let mut moved = Self {
            between,
            // The pipe is empty, and takes short writes whole.
            ready: sys::write(between.1, header).unwrap_or(0),
            pipe,
            left: count,
        };
        // What goes wrong here does again where it is heard.
        let _ = moved.take(true);
        moved
    }

    /// Takes what there is room for; something, where there is any.
    fn take(&mut self, moves: bool) -> sys::Result<()> {
        let taken = if moves {
            sys::splice(self.pipe, self.between.1, self.left, false)
        } else {
            let mut page = [0; 4096];
            let most = self.left.min(page.len());
            // There is room for it: what was there is written.
            sys::read(self.pipe, &mut page[..most])
                .and_then(|count| sys::write(self.between.1, &page[..count]))
        };
        let taken = match taken {
            // Whoever opened a pipe of his own for reading has taken what was in it. What was promised comes
            // all the same.
            Ok(0) => self.write_zeros(),
            Err(EAGAIN) if self.ready > 0 => Ok(0),
            Err(EAGAIN) if sys::unread_bytes(self.pipe)? == 0 => self.write_zeros(),
            taken => taken,
        };
        let taken = again(taken)?;
        self.ready += taken;
        self.left -= taken;
        Ok(())
    }

    fn write_zeros(&self) -> sys::Result<usize> {
        let zeros = [0; 4096];
        sys::write(self.between.1, &zeros[..self.left.min(zeros.len())])
    }

    /// Moves the rest of it; `EAGAIN` where not all of that goes at once, and `EINVAL` or `ENOSYS` where
    /// bytes can't be moved.
    fn go_on(&mut self) -> sys::Result<()> {
        loop {
            while self.ready > 0 {
                let moved = sys::splice(self.between.0, OUTPUT, self.ready, false);
                self.ready -= again(moved)?;
            }
            if self.left == 0 {
                return Ok(());
            }
            self.take(true)?;
        }
    }

    /// Copies the rest, however long that takes.
    fn copy(&mut self) -> sys::Result<()> {
        let mut page = [0; 4096];
        loop {
            while self.ready > 0 {
                let count = again(sys::read(self.between.0, &mut page))?;
                self.ready -= count;
                let mut written = 0;
                while written < count {
                    match sys::write(OUTPUT, &page[written..count]) {
                        Err(EAGAIN) => drop(sys::poll(&mut [PollFd::writable(OUTPUT)], -1)?),
                        wrote => written += again(wrote)?,
                    }
                }
            }
            if self.left == 0 {
                return Ok(());
            }
            self.take(false)?;
        }
    }
}

/// An interrupted call has done nothing.
fn again(done: sys::Result<usize>) -> sys::Result<usize> {
    match done {
        Err(EINTR) => Ok(0),
        done => done,
    }
}

const _: () = assert!(DATA_BYTES + HEADER_BYTES + MOST_PAYLOAD < BUFFER_BYTES);
const _: () = assert!(OUTPUT_WINDOW >= 4 * MOST_PAYLOAD);
