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
use crate::fp8::E4M3;

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
    ///
    /// # Safety
    /// The processor has the instruction set of `V`.
    #[inline(always)]
    unsafe fn apply<V: Across>(&self, slot: usize, row: &mut [V::Scalar], count: V::Scalar) {
        let wide = |x: f32| num::<V::Scalar>(f64::from(x));
        let groups = row.len().div_ceil(self.group);
        for (g, codes) in row.chunks_mut(self.group).enumerate() {
            let at = slot * groups + g;
            let (scale, zero) = (wide(self.scales[at]), self.zeros.get(at).map(|&zero| wide(zero)));
            let mut registers = codes.chunks_exact_mut(V::COUNT);
            for codes in &mut registers {
                // SAFETY: a chunk has COUNT numbers; the caller vouches for the instruction set.
                unsafe {
                    let x = V::load(codes.as_ptr());
                    let x = match zero {
                        None => x.mul(V::splat(scale)),
                        Some(zero) => {
                            let code = x.select_negative(x.add(V::splat(count)), x);
                            code.mul(V::splat(scale)).add(V::splat(zero))
                        }
                    };
                    x.store(codes.as_mut_ptr());
                }
            }
            for x in registers.into_remainder() {
                *x = match zero {
                    None => *x * scale,
                    Some(zero) => {
                        let code = if *x < num(0.0) { *x + count } else { *x };
                        code * scale + zero
                    }
                };
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
                *to = num(f64::from(E4M3[usize::from(*from.add(lane))]));
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
            let (slot, count) = ((start + row).min(last), num(f64::from(1_u32 << S::BITS)));
            // SAFETY: as for this function.
            unsafe { levels.apply::<V>(slot, &mut to[..n], count) };
        }
        addresses[row] = to.as_ptr().cast();
    }
}

#[cfg(test)]
mod tests {
    use ndarray::Array2;

    use super::super::registers::on_every_tier;
    use super::super::tier::Tier;
    use super::super::vectors::Vectors;
    use super::*;
    use crate::fp8::e4m3_value;
    use crate::quantise::{Codes, Format, Quantisation, quantise, restored};

    const SLOTS: usize = 5;

    /// The first four slots from the second on, of which one is past the last.
    fn widened<V: Across<Scalar = f32>>(kind: Kind, codes: &Codes<ndarray::Ix2>) -> Vec<Vec<f32>> {
        let (n, group) = (codes.channels, codes.quantisation.group_of(codes.channels));
        let (scales, zeros) = (codes.scale.as_slice().unwrap(), codes.zero.as_slice().unwrap());
        let levels = (!scales.is_empty()).then_some(Levels { scales, zeros, group });
        let line = |slot: usize| codes.codes.row(slot.min(SLOTS - 1)).to_slice().unwrap().as_ptr();
        let mut addresses: Vec<_> = (2..6 + AHEAD).map(line).collect();
        let (of, mut wide) = (Narrow { kind, n, levels, start: 2, last: SLOTS - 1 }, vec![]);
        // SAFETY: the tests ask only for tiers of this machine; each address is that of a row.
        unsafe { widen::<V>(of, &mut addresses, &mut wide) };
        let row = |&from: &*const u8| {
            // SAFETY: `widen` wrote n numbers there, which `wide` still holds.
            unsafe { std::slice::from_raw_parts(from.cast::<f32>(), n) }.to_vec()
        };
        addresses[..4].iter().map(row).collect()
    }

    #[test]
    fn rows_have_the_bits_of_the_text() {
        fn check<V: Across<Scalar = f32>>() {
            let kinds = [Kind::F16, Kind::Bf16, Kind::Int8, Kind::Int4, Kind::Fp8];
            for (format, kind) in Format::ALL.into_iter().zip(kinds) {
                for n in [1, 5, 16, 67] {
                    for group in [None, Some(1), Some(3), Some(16)] {
                        for zero_point in [false, true] {
                            if !format.is_integer() && (zero_point || group.is_some()) {
                                continue;
                            }
                            let number = |(t, c): (usize, usize)| {
                                ((t * 131 + c * 37) % 23) as f32 * 0.37 - 3.9
                            };
                            let x = Array2::from_shape_fn((SLOTS, n), number);
                            let how = Quantisation { format, group, zero_point };
                            let codes = quantise(&x, how).unwrap();
                            let want = restored(&codes);
                            for (row, got) in widened::<V>(kind, &codes).iter().enumerate() {
                                let want = want.row((row + 2).min(SLOTS - 1));
                                let same =
                                    got.iter().zip(want).all(|(x, y)| x.to_bits() == y.to_bits());
                                assert!(same, "{how:?}, {n}: {got:?}, not {want}");
                            }
                        }
                    }
                }
            }
        }
        on_every_tier!(check::<f32>);
    }

    #[test]
    fn every_code_of_fp8() {
        fn check<V: Across<Scalar = f32>>() {
            let all: Vec<u8> = (0..=255).collect();
            for first in (0..256).step_by(V::COUNT) {
                let mut got = [0.0; LONGEST];
                // SAFETY: the tests ask only for tiers of this machine; first + COUNT <= 256.
                unsafe {
                    <Fp8 as Source<V>>::load(all.as_ptr().add(first)).store(got.as_mut_ptr());
                }
                for (&code, got) in all[first..].iter().zip(&got[..V::COUNT]) {
                    let want = e4m3_value(code);
                    let same = got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan());
                    assert!(same, "{code:#x}: {got}, not {want}");
                }
            }
        }
        on_every_tier!(check::<f32>);
    }
}
