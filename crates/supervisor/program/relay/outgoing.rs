//! What goes to the owner.

use super::OUTPUT;
use crate::frames::{Answer, HEADER_BYTES, Lane, MOST_PAYLOAD, OUTPUT_WINDOW};
use crate::sys::{self, EAGAIN, EINTR, Fd, PollFd};

/// What the pipes of the stream are enlarged to.
pub const PIPE_BYTES: usize = 256 * 1024;

/// What waits to be written at most.
const BUFFER_BYTES: usize = 1024 * 1024;

/// Short of it no more output is taken, so that there is always room for what is said.
const DATA_BYTES: usize = 256 * 1024;

/// The stream of answers, and what could not be written yet.
pub struct Outgoing {
    buffer: &'static mut [u8],
    start: usize,
    end: usize,
}

impl Outgoing {
    pub fn new() -> sys::Result<Self> {
        Ok(Self {
            buffer: sys::map_bytes(BUFFER_BYTES)?,
            start: 0,
            end: 0,
        })
    }

    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Whether output is taken.
    pub fn has_room(&self) -> bool {
        self.end - self.start < DATA_BYTES
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

    /// Takes output from a pipe and throws it away; how much.
    pub fn discard(&mut self, pipe: Fd) -> sys::Result<usize> {
        let start = self.end_of_room();
        sys::read(pipe, &mut self.buffer[start..][..MOST_PAYLOAD])
    }

    /// Writes what can be written at once.
    pub fn flush(&mut self) -> sys::Result<()> {
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

const _: () = assert!(DATA_BYTES + HEADER_BYTES + MOST_PAYLOAD < BUFFER_BYTES);
const _: () = assert!(OUTPUT_WINDOW >= 4 * MOST_PAYLOAD);
