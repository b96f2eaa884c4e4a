//! What the slots of a cache contain: one block of memory, of which each row uses as much as it holds.
//!
//! Letters: B batch, H heads, L slots of the longest row, n numbers a slot.

use std::ops::Range;

use ndarray::{Array1, Array4, ArrayView3, ArrayView4, ArrayViewMut4, Axis, s};

use crate::allocation::Purpose;
use crate::errors::Result;

/// Numbers (B, H, room, n); what lies beyond a row's slots is junk.
#[derive(Debug, Clone)]
pub(crate) struct Memory<E>(Array4<E>);

impl<E: Copy + Default> Memory<E> {
    /// For sizes (B, H, room, n).
    pub(crate) fn new(purpose: Purpose, sizes: (usize, usize, usize, usize)) -> Result<Self> {
        Ok(Self(purpose.array(sizes, E::default())?))
    }

    /// Slots that are `x` (B, H, L, n), and at least `room` of them.
    pub(crate) fn holding(purpose: Purpose, x: Array4<E>, room: usize) -> Result<Self> {
        let mut memory = Self(x);
        memory.grow(purpose, room)?;
        Ok(memory)
    }

    /// At least `room` slots a row, and at least twice as many as there were if there are more.
    pub(crate) fn grow(&mut self, purpose: Purpose, room: usize) -> Result<()> {
        let (batch, heads, old, n) = self.0.dim();
        if room > old {
            let mut larger = purpose.array((batch, heads, room.max(2 * old), n), E::default())?;
            larger.slice_mut(s![.., .., ..old, ..]).assign(&self.0);
            self.0 = larger; // (B, H, room, n)
        }
        Ok(())
    }

    /// Slots of row `b` from `start` on become `x` (H, count, n).
    pub(crate) fn write(&mut self, b: usize, start: usize, x: ArrayView3<'_, E>) {
        let end = start + x.dim().1;
        self.0.slice_mut(s![b, .., start..end, ..]).assign(&x);
    }

    /// A view of some slots of row `b`: (1, H, count, n).
    pub(crate) fn slots(&self, b: usize, slots: Range<usize>) -> ArrayView4<'_, E> {
        self.0.slice(s![b..=b, .., slots, ..])
    }

    /// The slots named, ascending, move to the front of row `b`.
    pub(crate) fn retain(&mut self, b: usize, slots: &[usize]) {
        for (to, &from) in slots.iter().enumerate().filter(|(to, from)| *to != **from) {
            let slot = self.0.slice(s![b, .., from, ..]).to_owned(); // (H, n)
            self.0.slice_mut(s![b, .., to, ..]).assign(&slot);
        }
    }

    /// New row i is a copy of old row `index[i]`.
    pub(crate) fn reorder(&mut self, index: &[usize]) {
        self.0 = self.0.select(Axis(0), index);
    }

    /// One head of row `b`, all of its room: (room · n).
    pub(crate) fn head(&self, b: usize, h: usize) -> &[E] {
        let head = self.0.slice(s![b, h, .., ..]).to_slice();
        head.expect("standard layout")
    }

    /// A view (B, H, L, n).
    pub(crate) fn view(&self, longest: usize) -> ArrayView4<'_, E> {
        self.0.slice(s![.., .., ..longest, ..])
    }

    /// The same, to change.
    pub(crate) fn view_mut(&mut self, longest: usize) -> ArrayViewMut4<'_, E> {
        self.0.slice_mut(s![.., .., ..longest, ..])
    }

    /// A copy (B, H, L, n), zero beyond the slots of each row: by selection, since junk may be NaN.
    pub(crate) fn read(&self, longest: usize, lengths: &Array1<i64>) -> Array4<E> {
        let mut x = self.view(longest).to_owned(); // (B, H, L, n)
        for (b, &length) in lengths.iter().enumerate() {
            x.slice_mut(s![b, .., length as usize.., ..]).fill(E::default());
        }
        x
    }

    /// How many bytes a slot takes.
    pub(crate) fn slot_bytes(&self) -> usize {
        self.0.dim().1 * self.0.dim().3 * size_of::<E>()
    }

    #[cfg(test)]
    pub(crate) fn room(&self) -> usize {
        self.0.dim().2
    }
}

#[cfg(test)]
mod tests {
    use ndarray::{Array3, array};

    use super::*;

    #[test]
    fn room_doubles() {
        let mut memory = Memory::<f32>::new(Purpose::append(), (1, 1, 0, 1)).unwrap();
        let mut rooms = vec![];
        for n in 0..5 {
            memory.grow(Purpose::append(), n + 1).unwrap();
            memory.write(0, n, Array3::from_elem((1, 1, 1), n as f32).view());
            rooms.push(memory.room());
        }
        assert_eq!(rooms, [1, 2, 4, 4, 8]);
        assert_eq!(
            memory.read(5, &array![3]).into_raw_vec_and_offset().0,
            [0.0, 1.0, 2.0, 0.0, 0.0]
        );
        memory.retain(0, &[1, 4]);
        assert_eq!(memory.read(2, &array![2]).into_raw_vec_and_offset().0, [1.0, 4.0]);
    }
}
