//! Memory of the images that are decoded at the same time.

use parking_lot::{Condvar, Mutex};

/// Memory for the images of this process, however many tools and runs decode them. The largest image takes almost all of it.
pub(super) static MEMORY: ImageMemory = ImageMemory::new(1 << 30);

/// An amount of memory in which images reserve their parts.
pub(super) struct ImageMemory {
    max_bytes: u64,
    reserved: Mutex<u64>,
    released: Condvar,
    /// Locked by the thread whose turn it is, so that small images do not pass a large one that waits.
    turn: Mutex<()>,
}

/// A part of the memory, released when it is dropped.
#[must_use]
pub(super) struct Reservation<'m> {
    memory: &'m ImageMemory,
    bytes: u64,
}

impl ImageMemory {
    const fn new(max_bytes: u64) -> Self {
        Self {
            max_bytes,
            reserved: Mutex::new(0),
            released: Condvar::new(),
            turn: Mutex::new(()),
        }
    }

    /// Reserves memory, all of it for an image that needs more. Blocks until other images have released enough.
    pub(super) fn reserve(&self, bytes: u64) -> Reservation<'_> {
        let bytes = bytes.min(self.max_bytes);
        let _turn = self.turn.lock();
        let mut reserved = self.reserved.lock();
        while *reserved + bytes > self.max_bytes {
            self.released.wait(&mut reserved);
        }
        *reserved += bytes;
        Reservation {
            memory: self,
            bytes,
        }
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        *self.memory.reserved.lock() -= self.bytes;
        self.memory.released.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use image::{DynamicImage, ImageFormat};

    use super::super::picture::Picture;
    use super::super::tests::encoded;
    use super::*;

    #[test]
    fn images_wait_for_memory_and_one_that_needs_more_than_there_is_gets_all() {
        let memory = ImageMemory::new(100);
        let is_within = Mutex::new(true);
        thread::scope(|scope| {
            for bytes in [40, 1_000, 60, 1, 99, 100, 40] {
                let (memory, is_within) = (&memory, &is_within);
                scope.spawn(move || {
                    for _ in 0..100 {
                        let part = memory.reserve(bytes);
                        *is_within.lock() &= *memory.reserved.lock() <= 100;
                        thread::yield_now();
                        drop(part);
                    }
                });
            }
        });
        assert!(*is_within.lock());
        assert_eq!(*memory.reserved.lock(), 0);
    }

    #[test]
    fn a_decoded_image_holds_its_memory() {
        let image = encoded(DynamicImage::new_rgb8(1_000, 1_000), ImageFormat::Png);
        let picture = Picture::decode(&image).expect("it is whole");
        // Other tests decode images, too.
        assert!(*MEMORY.reserved.lock() >= 11_000_000);
        drop(picture);
    }
}
