//! Where the keys or values of one head lie, and as what.
//!
//! The kernels for few rows are given the address of every row, so that it is all the same to them whether the rows
//! follow each other or lie in pages; and what COUNT numbers of a row are as a register is a type of its own. So a
//! cache is attended to where its memory is: what is narrower becomes f32 in the registers where it is multiplied.

use std::any::TypeId;
use std::ops::Range;

use half::{bf16, f16};
use ndarray::ArrayView2;

use super::across::Across;
use super::widen::Levels;
use crate::cast::Stored;

/// Bytes of the longest register.
const LONGEST: usize = 64;

/// As what numbers are stored.
pub(super) trait Source<V: Across> {
    /// Bits of a number.
    const BITS: usize;

    /// COUNT numbers.
    ///
    /// # Safety
    /// The processor has the instruction set of `V`, and the numbers can be read at `from`.
    unsafe fn load(from: *const u8) -> V;

    /// The first `count` numbers, and zeros; 0 < count < COUNT.
    ///
    /// # Safety
    /// As for `load`; nothing but the bytes of `count` numbers is read.
    #[inline(always)]
    unsafe fn load_first(from: *const u8, count: usize) -> V {
        let mut bytes = [0u8; LONGEST];
        // SAFETY: these bytes can be read, and are fewer than those of a register of what is no wider than f32.
        unsafe {
            std::ptr::copy_nonoverlapping(
                from,
                bytes.as_mut_ptr(),
                (count * Self::BITS).div_ceil(8),
            );
            // The other half of a last byte is no number of this row.
            if Self::BITS == 4 && count % 2 == 1 {
                bytes[count / 2] &= 15;
            }
            Self::load(bytes.as_ptr())
        }
    }
}

/// What is computed in.
pub(super) struct Computed;

impl<V: Across> Source<V> for Computed {
    const BITS: usize = 8 * size_of::<V::Scalar>();

    #[inline(always)]
    unsafe fn load(from: *const u8) -> V {
        // SAFETY: the caller's.
        unsafe { V::load(from.cast()) }
    }

    #[inline(always)]
    unsafe fn load_first(from: *const u8, count: usize) -> V {
        // SAFETY: the caller's.
        unsafe { V::load_first(from.cast(), count) }
    }
}

macro_rules! narrow {
    ($(#[$doc:meta] $name:ident, $bits:literal, $load:ident;)*) => {$(
        #[$doc]
        pub(super) struct $name;

        impl<V: Across> Source<V> for $name {
            const BITS: usize = $bits;

            #[inline(always)]
            unsafe fn load(from: *const u8) -> V {
                // SAFETY: the caller's.
                unsafe { V::$load(from) }
            }
        }
    )*};
}

narrow! {
    /// f16.
    F16, 16, from_f16;
    /// bf16.
    Bf16, 16, from_bf16;
    /// Codes from -127 to 127.
    Int8, 8, from_i8;
    /// Codes from -7 to 7, two a byte.
    Int4, 4, from_i4;
}

/// As what the rows of a head are stored: the name of one of those types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// What is computed in.
    Computed,
    /// 11 bits of precision.
    F16,
    /// 8 bits of precision.
    Bf16,
    /// Integers of 8 bits, with a scale for each row.
    Int8,
    /// Integers of 4 bits, with a scale for each row.
    Int4,
    /// 4 bits of precision.
    Fp8,
}

impl Kind {
    /// Of a type.
    pub fn of<S: Stored>() -> Self {
        let own = TypeId::of::<S>();
        if own == TypeId::of::<f16>() {
            Self::F16
        } else if own == TypeId::of::<bf16>() {
            Self::Bf16
        } else {
            Self::Computed
        }
    }
}

/// Makes numbers that are computed with of some rows.
pub(crate) type Restore<'a, T> = Box<dyn Fn(Range<usize>, &mut Vec<T>) + 'a>;

/// Where rows are.
pub(crate) enum Place<'a, T> {
    /// One after the other.
    Block(&'a [u8]),
    /// The same, copied from where they were anything else.
    Copied(Vec<T>),
    /// In pages of so many rows.
    Pages(Vec<&'a [u8]>, usize),
    /// Nowhere as any of the kinds: they are made when they are needed.
    Made(Restore<'a, T>),
}

/// The keys or values of one head.
pub(crate) struct Lines<'a, T> {
    pub place: Place<'a, T>,
    /// Bytes of a row.
    pub width: usize,
    /// Bytes from one row to the next.
    pub stride: usize,
    /// One for each row, what its codes are multiplied by; or none.
    pub scales: &'a [f32],
    /// Where one scale for each row does not do.
    pub levels: Option<Levels<'a>>,
}

impl<'a, T: Copy> Lines<'a, T> {
    /// Rows of `n` numbers, one after the other.
    pub fn block<S: Copy>(all: &'a [S], n: usize) -> Self {
        let width = n * size_of::<S>();
        Self { place: Place::Block(bytes_of(all)), width, stride: width, scales: &[], levels: None }
    }

    /// Pages of `size` rows each, in the order of the slots.
    pub fn pages<S: Copy>(pages: Vec<&'a [S]>, size: usize, n: usize) -> Self {
        let (pages, width) = (pages.into_iter().map(bytes_of).collect(), n * size_of::<S>());
        Self { place: Place::Pages(pages, size), width, stride: width, scales: &[], levels: None }
    }

    /// The rows of an array: in place, if the numbers of each follow each other.
    pub fn of(rows: ArrayView2<'a, T>) -> Self {
        let ((count, n), strides) = (rows.dim(), rows.strides());
        let (width, apart) = (n * size_of::<T>(), usize::try_from(strides[0]));
        match apart {
            Ok(apart) if (strides[1] == 1 || n < 2) && apart >= n && count > 0 => {
                let size = (count - 1) * apart + n;
                // SAFETY: from the first number to the last of the view; what lies between two rows belongs to the
                // same array.
                let all = unsafe { std::slice::from_raw_parts(rows.as_ptr(), size) };
                let stride = apart * size_of::<T>();
                Self {
                    place: Place::Block(bytes_of(all)),
                    width,
                    stride,
                    scales: &[],
                    levels: None,
                }
            }
            _ => {
                let all = rows.iter().copied().collect();
                Self { place: Place::Copied(all), width, stride: width, scales: &[], levels: None }
            }
        }
    }

    /// Writes the addresses of `count` rows from `start` on, and of `beyond` after these, which are asked for but not
    /// yet read; of the last row there is, `end - 1`, for those past it.
    pub(super) fn addresses(
        &self,
        start: usize,
        (count, beyond): (usize, usize),
        end: usize,
        made: &mut Vec<T>,
        to: &mut [*const u8],
    ) {
        let (last, to) = (end - 1, &mut to[..count + beyond]);
        let block = match &self.place {
            Place::Block(all) => Some(*all),
            Place::Copied(all) => Some(bytes_of(all)),
            _ => None,
        };
        if let Some(all) = block {
            assert!(all.len() >= last * self.stride + self.width);
            let first = all.as_ptr();
            for (n, to) in to.iter_mut().enumerate() {
                *to = first.wrapping_add((start + n).min(last) * self.stride);
            }
        }
        match &self.place {
            Place::Block(_) | Place::Copied(_) => {}
            Place::Pages(pages, size) => {
                let mut at = (start / size, start % size);
                for (n, to) in to.iter_mut().enumerate() {
                    let page = pages[at.0];
                    assert!(page.len() >= at.1 * self.stride + self.width);
                    *to = page.as_ptr().wrapping_add(at.1 * self.stride);
                    if start + n < last {
                        at = if at.1 + 1 < *size { (at.0, at.1 + 1) } else { (at.0 + 1, 0) };
                    }
                }
            }
            Place::Made(restore) => {
                let rows = start..end.min(start + count);
                restore(rows.clone(), made);
                assert!(size_of_val(&made[..]) >= rows.len() * self.stride);
                let first = made.as_ptr().cast::<u8>();
                for (n, to) in to.iter_mut().enumerate() {
                    *to = first.wrapping_add(n.min(rows.len() - 1) * self.stride);
                }
            }
        }
    }
}

/// The bytes of numbers.
pub(crate) fn bytes_of<S: Copy>(x: &[S]) -> &[u8] {
    // SAFETY: the numbers that there are, floats and integers, have no padding, and any byte is one.
    unsafe { std::slice::from_raw_parts(x.as_ptr().cast(), size_of_val(x)) }
}
