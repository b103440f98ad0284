//! The answer stream to the owner.

use super::OUTPUT;
use super::buffer::Buffer;
use crate::frames::{Answer, Channel, HEADER_BYTES, MAX_PAYLOAD, OUTPUT_WINDOW};
use crate::sys::{self, EAGAIN, EINTR, Fd, PollFd};

/// Room for one piece of output and control frames.
const BUFFER_BYTES: usize = 2 * MAX_PAYLOAD;

/// The stream of answers, and what could not be written yet.
///
/// Output is copied through one buffer that stays in the CPU cache, and no more is read before it is written.
/// `vmsplice`, larger pipes and longer queues all measured slower.
pub struct Outgoing {
    buffer: Buffer,
}

impl Outgoing {
    pub fn new() -> sys::Result<Self> {
        let buffer = Buffer::new(BUFFER_BYTES)?;
        Ok(Self { buffer })
    }

    /// Whether everything is written, so that output can be read.
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Queues a frame, waiting for room: the owner always reads.
    pub fn send(&mut self, answer: Answer, payload: &[u8]) -> sys::Result<()> {
        while self.buffer.free() < HEADER_BYTES + payload.len() {
            sys::poll(&mut [PollFd::writable(OUTPUT)], -1)?;
            self.flush()?;
        }
        self.buffer.append(&answer.encode())?;
        self.buffer.append(payload)
    }

    /// Reads output from a pipe into the buffer, which must be [empty](Self::is_empty); returns the count.
    pub fn take(&mut self, id: u32, channel: Channel, pipe: Fd, most: usize) -> sys::Result<usize> {
        let (header, payload) = self.buffer.room().split_at_mut(HEADER_BYTES);
        let count = sys::read(pipe, &mut payload[..most.min(MAX_PAYLOAD)])?;
        if count > 0 {
            let length = count as u64;
            let answer = Answer::Output {
                id,
                channel,
                length,
            };
            header.copy_from_slice(&answer.encode());
            self.buffer.add(HEADER_BYTES + count);
        }
        Ok(count)
    }

    /// Reads and discards output; the buffer must be [empty](Self::is_empty). Returns the count.
    pub fn discard(&mut self, pipe: Fd) -> sys::Result<usize> {
        sys::read(pipe, self.buffer.room())
    }

    /// Writes as much as possible without blocking.
    pub fn flush(&mut self) -> sys::Result<()> {
        while !self.is_empty() {
            match sys::write(OUTPUT, self.buffer.content()) {
                Ok(count) => {
                    self.buffer.take(count);
                    if !self.is_empty() {
                        return Ok(());
                    }
                }
                Err(EINTR) => {}
                Err(EAGAIN) => return Ok(()),
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }
}

const _: () = assert!(HEADER_BYTES + MAX_PAYLOAD < BUFFER_BYTES);
const _: () = assert!(OUTPUT_WINDOW >= 4 * MAX_PAYLOAD);
