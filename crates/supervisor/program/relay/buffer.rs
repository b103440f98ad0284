//! Bytes that have been read and not passed on yet.

use crate::sys::{self, EINVAL};

/// A queue of bytes in one mapped piece of memory.
pub struct Buffer {
    bytes: &'static mut [u8],
    start: usize,
    end: usize,
}

impl Buffer {
    /// Creates a buffer without memory.
    pub fn empty() -> Self {
        Self {
            bytes: &mut [],
            start: 0,
            end: 0,
        }
    }

    pub fn new(capacity: usize) -> sys::Result<Self> {
        Ok(Self {
            bytes: sys::map(capacity)?,
            ..Self::empty()
        })
    }

    pub fn has_memory(&self) -> bool {
        !self.bytes.is_empty()
    }

    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    pub fn content(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Returns how much can be appended.
    pub fn free(&self) -> usize {
        self.bytes.len() - (self.end - self.start)
    }

    /// Removes bytes at the start and returns them.
    pub fn take(&mut self, count: usize) -> &[u8] {
        let taken = self.start..self.start + count;
        self.start = taken.end;
        if self.is_empty() {
            (self.start, self.end) = (0, 0);
        }
        &self.bytes[taken]
    }

    /// Returns all the memory that is free, to be filled from its start and [added](Self::add).
    pub fn room(&mut self) -> &mut [u8] {
        self.bytes.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        &mut self.bytes[self.end..]
    }

    /// Appends what was written to the start of [`room`](Self::room).
    pub fn add(&mut self, count: usize) {
        self.end += count;
    }

    pub fn append(&mut self, bytes: &[u8]) -> sys::Result<()> {
        if self.bytes.len() - self.end < bytes.len() {
            self.room();
        }
        let room = self.bytes.get_mut(self.end..self.end + bytes.len());
        room.ok_or(EINVAL)?.copy_from_slice(bytes);
        self.end += bytes.len();
        Ok(())
    }

    /// Frees the memory and the content.
    pub fn release(&mut self) {
        sys::unmap(core::mem::replace(self, Self::empty()).bytes);
    }
}
