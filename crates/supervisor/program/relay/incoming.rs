//! The request stream from the owner.

use super::INPUT;
use super::buffer::Buffer;
use crate::frames::{HEADER_BYTES, MAX_BODY, Request};
use crate::sys::{self, EINVAL, EIO, Fd};

/// Capacity of the buffer.
pub const BUFFER_BYTES: usize = 256 * 1024;

/// The buffered stream of requests.
pub struct Incoming {
    buffer: Buffer,
}

impl Incoming {
    pub fn new() -> sys::Result<Self> {
        let buffer = Buffer::new(BUFFER_BYTES)?;
        Ok(Self { buffer })
    }

    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Reads at most so many bytes, waiting for some; returns the count, which is zero at the end.
    pub fn fill(&mut self, most: usize) -> sys::Result<usize> {
        // At most a partial header is moved.
        let room = self.buffer.room();
        let most = most.min(room.len());
        let count = sys::uninterrupted(|| sys::read(INPUT, &mut room[..most]))?;
        self.buffer.add(count);
        Ok(count)
    }

    /// Returns the next request if its header is complete.
    pub fn header(&mut self) -> sys::Result<Option<Request>> {
        let Some(header) = self.buffer.content().first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let request = Request::decode(header).ok_or(EINVAL)?;
        self.buffer.take(HEADER_BYTES);
        Ok(Some(request))
    }

    /// Returns the buffered part of a payload of which `left` bytes are outstanding.
    pub fn payload(&mut self, left: u64) -> &[u8] {
        let here = self.buffer.content().len();
        let count = usize::try_from(left).map_or(here, |left| left.min(here));
        self.buffer.take(count)
    }

    /// Waits for a request; `None` at the end.
    pub fn request(&mut self) -> sys::Result<Option<Request>> {
        loop {
            if let Some(request) = self.header()? {
                return Ok(Some(request));
            }
            if self.fill(BUFFER_BYTES)? == 0 {
                return Ok(None);
            }
        }
    }

    /// Waits for a whole payload and writes it to a file.
    pub fn body(&mut self, length: u64) -> sys::Result<Fd> {
        check_body(length)?;
        let file = sys::memory_file()?;
        let mut left = length;
        while left > 0 {
            let piece = self.payload(left);
            sys::write_all(file, piece)?;
            left -= piece.len() as u64;
            if left > 0 && self.fill(BUFFER_BYTES)? == 0 {
                return Err(EIO);
            }
        }
        Ok(file)
    }
}

/// Checks the length of a body.
pub fn check_body(length: u64) -> sys::Result<()> {
    match (1..=MAX_BODY as u64).contains(&length) {
        true => Ok(()),
        false => Err(EINVAL),
    }
}
