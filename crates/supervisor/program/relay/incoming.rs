//! The request stream from the owner.

use super::{INPUT, write_all};
use crate::frames::{HEADER_BYTES, MAX_BODY, Request};
use crate::sys::{self, EINTR, EINVAL, Fd};

/// Capacity of the buffer.
pub const BUFFER_BYTES: usize = 256 * 1024;

/// The buffered stream of requests.
pub struct Incoming {
    buffer: &'static mut [u8],
    start: usize,
    end: usize,
}

impl Incoming {
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

    /// Reads at most so many bytes, waiting for some; returns the count, which is zero at the end.
    pub fn fill(&mut self, most: usize) -> sys::Result<usize> {
        // At most a partial header is left.
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        let end = self.buffer.len().min(self.end.saturating_add(most));
        loop {
            match sys::read(INPUT, &mut self.buffer[self.end..end]) {
                Err(EINTR) => {}
                Ok(count) => {
                    self.end += count;
                    return Ok(count);
                }
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Returns the next request if its header is complete.
    pub fn header(&mut self) -> sys::Result<Option<Request>> {
        let here = &self.buffer[self.start..self.end];
        let Some(header) = here.first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let request = Request::decode(header).ok_or(EINVAL)?;
        self.start += HEADER_BYTES;
        Ok(Some(request))
    }

    /// Returns the buffered part of a payload of which `left` bytes are outstanding.
    pub fn payload(&mut self, left: u64) -> &[u8] {
        let here = self.end - self.start;
        let count = usize::try_from(left).map_or(here, |left| left.min(here));
        let piece = &self.buffer[self.start..self.start + count];
        self.start += count;
        piece
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
        let file = body_file(length)?;
        let mut left = length;
        while left > 0 {
            let piece = self.payload(left);
            write_all(file, piece)?;
            left -= piece.len() as u64;
            if left > 0 && self.fill(BUFFER_BYTES)? == 0 {
                return Err(sys::EIO);
            }
        }
        Ok(file)
    }
}

/// Creates the file for a body of so many bytes.
pub fn body_file(length: u64) -> sys::Result<Fd> {
    if length == 0 || length > MAX_BODY as u64 {
        return Err(EINVAL);
    }
    sys::memory_file()
}
