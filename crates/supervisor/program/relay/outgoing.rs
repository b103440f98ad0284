//! What goes to the owner.

use super::OUTPUT;
use crate::frames::{Answer, HEADER_BYTES, Lane, MOST_PAYLOAD, OUTPUT_WINDOW};
use crate::sys::{self, EAGAIN, EINTR, Fd, PollFd};

/// What waits to be written at most: a piece of output, and what is said.
const BUFFER_BYTES: usize = 2 * MOST_PAYLOAD;

/// The stream of answers, and what could not be written yet.
///
/// Output is copied through one piece of memory that stays in the processor's cache, and no more of it
/// is taken before that is written. Moving its pages, larger pipes and longer queues were all
/// measured to be slower: what is read later is read from memory.
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

    /// Whether all is written, and output can be taken.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
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

    /// Takes output from a pipe, where it [is empty](Self::is_empty); how much.
    pub fn take(&mut self, id: u32, lane: Lane, pipe: Fd, most: usize) -> sys::Result<usize> {
        let piece = &mut self.buffer[HEADER_BYTES..][..most.min(MOST_PAYLOAD)];
        let count = sys::read(pipe, piece)?;
        if count > 0 {
            let length = count as u64;
            self.append(&Answer::Output { id, lane, length }.encode());
            self.end += count;
        }
        Ok(count)
    }

    /// Takes output from a pipe, where it [is empty](Self::is_empty), and throws it away; how much.
    pub fn discard(&mut self, pipe: Fd) -> sys::Result<usize> {
        sys::read(pipe, self.buffer)
    }

    /// Writes what can be written at once.
    pub fn flush(&mut self) -> sys::Result<()> {
        while !self.is_empty() {
            let waiting = &self.buffer[self.start..self.end];
            match sys::write(OUTPUT, waiting) {
                Ok(count) => {
                    let is_full = count < waiting.len();
                    self.start += count;
                    if is_full {
                        return Ok(());
                    }
                }
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

    fn append(&mut self, bytes: &[u8]) {
        if self.buffer.len() - self.end < bytes.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        self.buffer[self.end..][..bytes.len()].copy_from_slice(bytes);
        self.end += bytes.len();
    }
}

const _: () = assert!(HEADER_BYTES + MOST_PAYLOAD < BUFFER_BYTES);
const _: () = assert!(OUTPUT_WINDOW >= 4 * MOST_PAYLOAD);
