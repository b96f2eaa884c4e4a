//! The weighted sum of few rows. As in [`few`](super::few) the lanes are channels, and rows are asked for before they are
//! needed.
//!
//! Every function is inlined into one that was compiled for the instruction set of `V`.

#![allow(clippy::needless_range_loop, reason = "constant index loops unroll into registers")]

use super::across::Across;
use super::few::{AHEAD, ask, room};
use super::kernel::num;
use super::lanes::Lanes;
use super::source::Source;

/// Values that are weighed together, few enough to stay in L1 for all rows: 32 rows of 128 f32 are 16 KiB.
pub(super) const VALUE_BLOCK: usize = 32;

/// `sums` (R, room) times `factors` (R).
///
/// # Safety
/// The processor has the instruction set of `V`, and the slices have these sizes; `room` is a multiple of COUNT.
#[inline(always)]
pub(super) unsafe fn rescale<V: Lanes>(sums: &mut [V::Scalar], room: usize, factors: &[V::Scalar]) {
    for (sums, &factor) in sums.chunks_exact_mut(room).zip(factors) {
        for lanes in sums.chunks_exact_mut(V::COUNT) {
            // SAFETY: a chunk has COUNT numbers; the caller vouches for the instruction set.
            unsafe { V::load(lanes.as_ptr()).mul(V::splat(factor)).store(lanes.as_mut_ptr()) };
        }
    }
}

/// What the weighted sum of a block is made of.
#[derive(Clone, Copy)]
pub(super) struct Weighing<'a, T> {
    /// (R, stride), or a part of each row of it, which has `keys` weights
    pub weights: &'a [T],
    pub stride: usize,
    pub keys: usize,
    /// The address of each value, and of AHEAD that are needed next.
    pub v: &'a [*const u8],
    pub dv: usize,
    /// Whether a slot is hidden.
    pub hides: bool,
}

/// Adds the weighed values to `sums` (R, room); `room` is Dv rounded up to whole registers, at least one.
///
/// # Safety
/// The processor has the instruction set of `V`, the values can be read, and the slices have these sizes.
#[inline(always)]
pub(super) unsafe fn weighted_sum<V: Across, S: Source<V>>(
    of: Weighing<'_, V::Scalar>,
    sums: &mut [V::Scalar],
) {
    let Weighing { keys, stride, dv, .. } = of;
    let room = room::<V>(dv);
    let rows = sums.len() / room;
    debug_assert!(of.weights.len() >= (rows - 1) * stride + keys);
    debug_assert!(sums.len() == rows * room && of.v.len() >= keys + AHEAD);
    // SAFETY: as for this function.
    let selects = of.hides && !unsafe { all_finite::<V, S>(&of.v[..keys], dv) };
    for start in (0..keys).step_by(VALUE_BLOCK) {
        let count = VALUE_BLOCK.min(keys - start);
        let (w, v) = (of.weights[start..].as_ptr(), of.v[start..].as_ptr());
        let part = Part { w, stride, v, count, room, dv };
        let mut r = 0;
        // SAFETY: r + N <= rows, and each row has `room` sums; the caller vouches for the rest.
        unsafe {
            while r < rows {
                let part = Part { w: part.w.add(r * stride), ..part };
                let out = sums.as_mut_ptr().add(r * room);
                r += match rows - r {
                    _ if selects => all_channels::<V, S, 1, true>(part, out),
                    4.. => all_channels::<V, S, 4, false>(part, out),
                    _ => all_channels::<V, S, 1, false>(part, out),
                };
            }
        }
    }
}

/// Whether all numbers of these values are finite.
///
/// # Safety
/// The processor has the instruction set of `V`, and the values can be read.
#[inline(always)]
unsafe fn all_finite<V: Across, S: Source<V>>(v: &[*const u8], dv: usize) -> bool {
    // SAFETY: c + COUNT <= whole <= dv; the caller vouches for the rest.
    unsafe {
        let zero = V::splat(num(0.0));
        let (mut nothing, whole) = (zero, dv - dv % V::COUNT);
        for &line in v {
            for c in (0..whole).step_by(V::COUNT) {
                let x = S::load(line.add(c * S::BITS / 8));
                nothing = nothing.add(x.sub(x)); // 0, or NaN
            }
            if whole < dv {
                let x = S::load_first(line.add(whole * S::BITS / 8), dv - whole);
                nothing = nothing.add(x.sub(x));
            }
        }
        !zero.select_equal(nothing, zero, V::splat(num(1.0))).any_equal(V::splat(num(1.0)))
    }
}

/// The weights of some values, and these.
#[derive(Clone, Copy)]
struct Part<T> {
    w: *const T,
    stride: usize,
    v: *const *const u8,
    count: usize,
    /// Between the sums of two rows.
    room: usize,
    dv: usize,
}

/// N rows and all channels. Returns N.
///
/// # Safety
/// As for `weigh`.
#[inline(always)]
unsafe fn all_channels<V: Across, S: Source<V>, const N: usize, const SELECT: bool>(
    part: Part<V::Scalar>,
    out: *mut V::Scalar,
) -> usize {
    let (dv, mut c) = (part.dv, 0);
    // SAFETY: c + M · COUNT <= dv; the caller vouches for the rest.
    unsafe {
        while c + V::COUNT <= dv {
            if !SELECT && V::BLOCK == 4 && c + 4 * V::COUNT <= dv {
                weigh::<V, S, 4, N, SELECT>(part, c, out.add(c));
                c += 4 * V::COUNT;
            } else if !SELECT && c + 2 * V::COUNT <= dv {
                weigh::<V, S, 2, N, SELECT>(part, c, out.add(c));
                c += 2 * V::COUNT;
            } else {
                weigh::<V, S, 1, N, SELECT>(part, c, out.add(c));
                c += V::COUNT;
            }
        }
        if c < dv {
            weigh::<V, S, 0, N, SELECT>(part, c, out.add(c));
        }
    }
    N
}

/// N rows and M registers of channels from `c` on, all N·M sums in registers; M = 0: the last channels, fewer than a
/// register has. `SELECT`: a hidden slot (weight -0) is passed over, since 0 · NaN is NaN.
///
/// # Safety
/// The processor has the instruction set of `V`; `count` weights at `part.w` and at every `stride` after it, N times;
/// as many addresses of values and AHEAD more; M registers at `out` and at every `room` after it, N times.
#[inline(always)]
unsafe fn weigh<V: Across, S: Source<V>, const M: usize, const N: usize, const SELECT: bool>(
    part: Part<V::Scalar>,
    c: usize,
    out: *mut V::Scalar,
) {
    const { assert!(M <= 4) };
    // SAFETY: j < count, m < max(M, 1) and n < N; the caller vouches for the sizes and the instruction set.
    unsafe {
        let (registers, bytes) = (if M == 0 { 1 } else { M }, V::COUNT * S::BITS / 8);
        let mut sums = [[V::splat(num(0.0)); 4]; N];
        for n in 0..N {
            for m in 0..registers {
                sums[n][m] = V::load(out.add(n * part.room + m * V::COUNT));
            }
        }
        let at = c * S::BITS / 8;
        for j in 0..part.count {
            let (line, later) = ((*part.v.add(j)).add(at), *part.v.add(j + AHEAD));
            let mut values = [V::splat(num(0.0)); 4];
            for m in 0..registers {
                values[m] = match M {
                    0 => S::load_first(line, part.dv - c),
                    _ => S::load(line.add(m * bytes)),
                };
                ask::<V, S>(later, c + m * V::COUNT);
            }
            for n in 0..N {
                let weight = V::splat(*part.w.add(n * part.stride + j));
                for m in 0..registers {
                    let sum = weight.mul_add(values[m], sums[n][m]);
                    sums[n][m] = if SELECT { weight.select_negative(sums[n][m], sum) } else { sum };
                }
            }
        }
        for n in 0..N {
            for m in 0..registers {
                sums[n][m].store(out.add(n * part.room + m * V::COUNT));
            }
        }
    }
}
