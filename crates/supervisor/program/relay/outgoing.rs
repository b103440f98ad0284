//! The answer stream to the owner.

use super::OUTPUT;
use crate::frames::{Answer, Channel, HEADER_BYTES, MAX_PAYLOAD, OUTPUT_WINDOW};
use crate::sys::{self, EAGAIN, EINTR, Fd, PollFd};

/// Room for one piece of output and control frames.
const BUFFER_BYTES: usize = 2 * MAX_PAYLOAD;

/// The stream of answers, and what could not be written yet.
///
/// Output is copied through one buffer that stays in the CPU cache, and no more is read before it is written.
/// `vmsplice`, larger pipes and longer queues all measured slower.
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

    /// Whether everything is written, so that output can be read.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Queues a frame, waiting for room: the owner always reads.
    pub fn send(&mut self, answer: Answer, payload: &[u8]) -> sys::Result<()> {
        let length = HEADER_BYTES + payload.len();
        while self.free() < length {
            sys::poll(&mut [PollFd::writable(OUTPUT)], -1)?;
            self.flush()?;
        }
        self.append(&answer.encode());
        self.append(payload);
        Ok(())
    }

    /// Reads output from a pipe into the buffer, which must be [empty](Self::is_empty); returns the count.
    pub fn take(&mut self, id: u32, channel: Channel, pipe: Fd, most: usize) -> sys::Result<usize> {
        let piece = &mut self.buffer[HEADER_BYTES..][..most.min(MAX_PAYLOAD)];
        let count = sys::read(pipe, piece)?;
        if count > 0 {
            let length = count as u64;
            let header = Answer::Output {
                id,
                channel,
                length,
            };
            self.append(&header.encode());
            self.end += count;
        }
        Ok(count)
    }

    /// Reads and discards output; the buffer must be [empty](Self::is_empty). Returns the count.
    pub fn discard(&mut self, pipe: Fd) -> sys::Result<usize> {
        sys::read(pipe, self.buffer)
    }

    /// Writes as much as possible without blocking.
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

const _: () = assert!(HEADER_BYTES + MAX_PAYLOAD < BUFFER_BYTES);
const _: () = assert!(OUTPUT_WINDOW >= 4 * MAX_PAYLOAD);
