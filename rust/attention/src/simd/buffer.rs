//! Memory that registers are loaded from and stored to: it starts on a cache line.
//!
//! The allocator promises 16 bytes, and a load of 64 that starts anywhere but on a line of 64 is two. With AVX-512, D = 64
//! and 256 keys the inner loops alone take 1.02 to 1.05 times as long from an address that is 16 past a line; what it
//! gained, with other changes, and how that was measured, is in the header of the [rung](super).

use std::ops::{Deref, DerefMut};

use crate::float::Float;

/// Bytes of a cache line, and of the widest register.
const LINE: usize = 64;

/// Numbers from the start of a cache line on, kept from use to use.
#[derive(Debug, Default)]
pub(super) struct Buffer<T> {
    /// A line longer than what is used.
    all: Vec<T>,
    start: usize,
    len: usize,
}

impl<T: Float> Buffer<T> {
    /// Makes room for so many numbers. What they are is what they were, or 0.
    pub fn resize(&mut self, len: usize) {
        let spare = LINE / size_of::<T>();
        if self.all.len() < len + spare {
            self.all = vec![T::zero(); len + spare];
            self.start = (self.all.as_ptr() as usize).wrapping_neg() % LINE / size_of::<T>();
        }
        self.len = len;
    }

    /// Bytes of memory that it has.
    pub fn bytes(&self) -> usize {
        size_of_val(&self.all[..])
    }

    /// So many numbers that are all the same.
    pub fn become_all(&mut self, len: usize, value: T) {
        self.resize(len);
        self.fill(value);
    }
}

impl<T> Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.all[self.start..self.start + self.len]
    }
}

impl<T> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.all[self.start..self.start + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_on_a_line_at_every_length() {
        let (mut floats, mut doubles) = (Buffer::<f32>::default(), Buffer::<f64>::default());
        assert!(floats.is_empty());
        for len in [0, 1, 15, 16, 17, 1000, 3, 100_000] {
            floats.become_all(len, 1.0);
            doubles.become_all(len, 1.0);
            assert_eq!((floats.as_ptr() as usize % LINE, floats.len()), (0, len));
            assert_eq!((doubles.as_ptr() as usize % LINE, doubles.len()), (0, len));
            assert!(floats.iter().all(|&x| x == 1.0) && doubles.iter().all(|&x| x == 1.0));
        }
    }
}
