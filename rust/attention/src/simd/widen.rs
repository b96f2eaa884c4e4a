//! Rows of numbers in few bits that become wide before they are read.
//!
//! Most kinds become wide in the registers where they are multiplied ([`Across::NARROW`]). Where a code counts from a zero
//! point, where a row has several scales, where it is fp8, and where no kernel of its own is compiled for a kind, a block
//! of rows becomes wide first, into memory that stays in L2, and the kernel of wide numbers reads that. What it becomes is
//! bit by bit what the readable text restores.

use super::across::{Across, LONGEST};
use super::few::{AHEAD, ask};
use super::kernel::num;
use super::source::{Bf16, F16, Int4, Int8, Kind, Source};
use crate::float::Float;
use crate::fp8::e4m3_value;

/// What the codes of each row are multiplied by, and what is then added.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Levels<'a> {
    /// (S, g)
    pub scales: &'a [f32],
    /// (S, g), and codes without a sign; or nothing, and codes with one.
    pub zeros: &'a [f32],
    /// Channels of each of the g groups, the last of which may have fewer.
    pub group: usize,
}

impl Levels<'_> {
    /// `row`: the codes of one slot as if they had a sign, of which there are `count`; then what they stand for.
    #[inline(always)]
    fn apply<T: Float>(&self, slot: usize, row: &mut [T], count: T) {
        let groups = row.len().div_ceil(self.group);
        for (g, codes) in row.chunks_mut(self.group).enumerate() {
            let at = slot * groups + g;
            let scale = T::from_f64(f64::from(self.scales[at]));
            match self.zeros.get(at) {
                None => codes.iter_mut().for_each(|x| *x *= scale),
                Some(&zero) => {
                    let zero = T::from_f64(f64::from(zero));
                    for x in codes {
                        let code = if *x < T::zero() { *x + count } else { *x };
                        *x = code * scale + zero;
                    }
                }
            }
        }
    }
}

/// fp8, as in [`fp8`](crate::fp8).
struct Fp8;

impl<V: Across> Source<V> for Fp8 {
    const BITS: usize = 8;

    /// With its exponent moved to the lowest four bits of that of an f16, a number is 2^-8 of what it was, also below
    /// the smallest normal one. Of the bits of NaN that makes 480.
    #[inline(always)]
    unsafe fn load(from: *const u8) -> V {
        let (mut halves, mut wide) = ([0_u16; LONGEST], [num(0.0); LONGEST]);
        // SAFETY: lane < COUNT <= LONGEST; the caller vouches for the rest.
        unsafe {
            if V::NARROW {
                for (lane, half) in halves.iter_mut().enumerate().take(V::COUNT) {
                    let code = u16::from(*from.add(lane));
                    *half = (code & 0x80) << 8 | (code & 0x7f) << 7;
                }
                let x = V::from_f16(halves.as_ptr().cast()).mul(V::splat(num(256.0)));
                let nan = V::splat(num(f64::NAN));
                let x = x.select_equal(V::splat(num(480.0)), nan, x);
                return x.select_equal(V::splat(num(-480.0)), nan, x);
            }
            for (lane, to) in wide.iter_mut().enumerate().take(V::COUNT) {
                *to = num(f64::from(e4m3_value(*from.add(lane))));
            }
            V::load(wide.as_ptr())
        }
    }
}

/// Some rows of one head.
#[derive(Clone, Copy)]
pub(super) struct Narrow<'a> {
    pub kind: Kind,
    /// Numbers of a row.
    pub n: usize,
    pub levels: Option<Levels<'a>>,
    /// The first one.
    pub start: usize,
    /// The last one there is, which stands for those past it.
    pub last: usize,
}

/// Makes what is computed in of the rows at these addresses, but for the AHEAD last ones, and writes where that is.
///
/// # Safety
/// The processor has the instruction set of `V`, and the rows can be read there.
#[inline(always)]
pub(super) unsafe fn widen<V: Across>(
    of: Narrow<'_>,
    addresses: &mut [*const u8],
    wide: &mut Vec<V::Scalar>,
) {
    // SAFETY: as for this function.
    unsafe {
        match of.kind {
            Kind::Computed => {}
            Kind::F16 => widen_rows::<V, F16>(of, addresses, wide),
            Kind::Bf16 => widen_rows::<V, Bf16>(of, addresses, wide),
            Kind::Int8 => widen_rows::<V, Int8>(of, addresses, wide),
            Kind::Int4 => widen_rows::<V, Int4>(of, addresses, wide),
            Kind::Fp8 => widen_rows::<V, Fp8>(of, addresses, wide),
        }
    }
}

/// `widen` of one kind.
///
/// # Safety
/// As for that.
#[inline(always)]
unsafe fn widen_rows<V: Across, S: Source<V>>(
    Narrow { n, levels, start, last, .. }: Narrow<'_>,
    addresses: &mut [*const u8],
    wide: &mut Vec<V::Scalar>,
) {
    let (room, whole) = (n.next_multiple_of(V::COUNT).max(1), n - n % V::COUNT);
    let rows = addresses.len() - AHEAD;
    wide.resize(rows * room, num(0.0));
    for (row, to) in wide.chunks_exact_mut(room).enumerate() {
        let (from, later) = (addresses[row], addresses[row + AHEAD]);
        // SAFETY: c + COUNT <= whole <= n, and a row has room for whole registers; the caller vouches for the rest.
        unsafe {
            for c in (0..whole).step_by(V::COUNT) {
                S::load(from.add(c * S::BITS / 8)).store(to.as_mut_ptr().add(c));
                ask::<V, S>(later, c);
            }
            if whole < n {
                let first = S::load_first(from.add(whole * S::BITS / 8), n - whole);
                first.store(to.as_mut_ptr().add(whole));
            }
        }
        if let Some(levels) = levels {
            levels.apply((start + row).min(last), &mut to[..n], num((1_u32 << S::BITS) as f64));
        }
        addresses[row] = to.as_ptr().cast();
    }
}
