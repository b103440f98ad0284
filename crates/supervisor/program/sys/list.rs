//! A list of bounded length, which needs no heap.

use core::ops::Deref;

use super::{EINVAL, Result};

/// At most `N` values.
#[derive(Clone, Copy)]
pub struct List<T, const N: usize> {
    values: [T; N],
    length: usize,
}

impl<T: Copy + Default, const N: usize> List<T, N> {
    pub fn new() -> Self {
        Self {
            values: [T::default(); N],
            length: 0,
        }
    }

    /// Copies a slice, as far as it fits.
    pub fn of(values: &[T]) -> Self {
        let mut list = Self::new();
        list.length = values.len().min(N);
        list.values[..list.length].copy_from_slice(&values[..list.length]);
        list
    }

    /// Appends a value; fails with `EINVAL` if the list is full.
    pub fn push(&mut self, value: T) -> Result<()> {
        *self.values.get_mut(self.length).ok_or(EINVAL)? = value;
        self.length += 1;
        Ok(())
    }

    pub fn is_full(&self) -> bool {
        self.length == N
    }

    /// Removes a value and puts the last one in its place.
    pub fn swap_remove(&mut self, at: usize) {
        self.length -= 1;
        self.values[at] = self.values[self.length];
    }
}

impl<T, const N: usize> Deref for List<T, N> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.values[..self.length]
    }
}
