//! The inner loops, generic over the register.
//!
//! The lanes of a register are *queries*: a tile is R = M · COUNT queries wide, everything is stored
//! with the queries last, and K and V are read as they lie, one number at a time to all lanes. So no
//! loop ever sums across lanes, and a query gets the same bits in whatever lane and tile it falls.
//!
//! Every function is inlined into one that was compiled for the instruction set of `V`.

#![allow(clippy::needless_range_loop, reason = "constant index loops unroll into registers")]

use std::ops::Range;

use super::lanes::Lanes;
use super::online::{Block, Extremes, exponentials};
use crate::float::Float;

/// Values that are weighed together, few enough to stay in L1 with their weights: 64 rows of 64
/// f32 and 64 rows of 64 weights are 16 KiB each.
const VALUE_BLOCK: usize = 64;

/// Channels in one turn of the loop over them: with 4 keys and f32 as much as is asked for at a time, a line.
const UNROLL: usize = 4;

/// `scores` (keys, R) = `k` (keys, D) · `queries` (D, R), and the largest and smallest of each row, as by `extremes`.
/// Asks for as many numbers from `next` on as it reads keys: the values, which are read next.
///
/// Of the first half of the rows only the first `seen` keys are asked for. Where that is not all, the other scores of
/// that half are left as they were, and the extremes are those of nothing in particular.
///
/// # Safety
/// The processor has the instruction set of `V`, and the slices have these sizes.
#[inline(always)]
pub(super) unsafe fn scores<V: Lanes, const M: usize>(
    queries: &[V::Scalar],
    (k, seen): (&[V::Scalar], usize),
    d: usize,
    scores: &mut [V::Scalar],
    next: *const V::Scalar,
) -> Extremes<V, M> {
    let (width, keys) = (M * V::COUNT, k.len() / d);
    debug_assert!(queries.len() == d * width && scores.len() == keys * width);
    let (q, k, out) = (queries.as_ptr(), k.as_ptr(), scores.as_mut_ptr());
    let seen = if M > 1 { seen.next_multiple_of(4).min(keys) } else { keys };
    // SAFETY: key j has its d numbers at k + j·d, its scores at out + j·R; the second half of a line is R / 2 after the
    // first.
    unsafe {
        let mut extremes = Extremes::none();
        score_keys::<V, M, M>(q, k, d, 0..seen, out, &mut extremes, next);
        if seen < keys {
            let (q, out) = (q.add(width / 2), out.add(width / 2));
            match M {
                4 => score_keys::<V, 2, 4>(q, k, d, seen..keys, out, &mut Extremes::none(), next),
                2 => score_keys::<V, 1, 2>(q, k, d, seen..keys, out, &mut Extremes::none(), next),
                _ => unreachable!("a tile that is halved has 2 or 4 registers"),
            }
        }
        extremes
    }
}

/// The scores of M registers of queries and some keys; a line of queries or scores has W registers.
///
/// # Safety
/// The processor has the instruction set of `V`; d lines at `q`; each of the keys has d numbers at k + j·d and a line
/// at `out`.
#[inline(always)]
unsafe fn score_keys<V: Lanes, const M: usize, const W: usize>(
    q: *const V::Scalar,
    k: *const V::Scalar,
    d: usize,
    keys: Range<usize>,
    out: *mut V::Scalar,
    extremes: &mut Extremes<V, M>,
    next: *const V::Scalar,
) {
    let width = W * V::COUNT;
    let step = if M == 1 { 8 } else { 4 }; // at least 8 sums, to hide the latency of one
    let whole = keys.end - keys.len() % step;
    // SAFETY: the caller's, and j + step <= keys.end.
    unsafe {
        for j in (keys.start..whole).step_by(step) {
            let (k, out, next) = (k.add(j * d), out.add(j * width), next.wrapping_add(j * d));
            match step {
                8 => score_tile::<V, M, W, 8>(q, k, d, out, extremes, next),
                _ => score_tile::<V, M, W, 4>(q, k, d, out, extremes, next),
            }
        }
        for j in whole..keys.end {
            let (k, out, next) = (k.add(j * d), out.add(j * width), next.wrapping_add(j * d));
            score_tile::<V, M, W, 1>(q, k, d, out, extremes, next);
        }
    }
}

/// The scores of M registers of queries and N keys, all N·M sums in registers; a line has W registers.
///
/// # Safety
/// The processor has the instruction set of `V`; d lines at `q`, N·d numbers at `k`, N lines at `out`.
#[inline(always)]
unsafe fn score_tile<V: Lanes, const M: usize, const W: usize, const N: usize>(
    q: *const V::Scalar,
    k: *const V::Scalar,
    d: usize,
    out: *mut V::Scalar,
    extremes: &mut Extremes<V, M>,
    next: *const V::Scalar,
) {
    let width = W * V::COUNT;
    // SAFETY: c < d, m < M and n < N; the caller vouches for the sizes and the instruction set.
    unsafe {
        let mut sums = [[V::splat(num(0.0)); M]; N];
        let whole = d - d % UNROLL;
        for c in (0..whole).step_by(UNROLL) {
            prefetch(next.wrapping_add(c * N));
            for c in c..c + UNROLL {
                score_channel::<V, M, N>(q.add(c * width), k.add(c), d, &mut sums);
            }
        }
        for c in whole..d {
            score_channel::<V, M, N>(q.add(c * width), k.add(c), d, &mut sums);
        }
        for n in 0..N {
            for m in 0..M {
                sums[n][m].store(out.add(n * width + m * V::COUNT));
                extremes.see(m, sums[n][m]);
            }
        }
    }
}

/// One channel of M registers of queries, at `q`, and of N keys, each `d` after the one before.
///
/// # Safety
/// The processor has the instruction set of `V`; R numbers at `q`, one at `k` and at every `d` after it, N times.
#[inline(always)]
unsafe fn score_channel<V: Lanes, const M: usize, const N: usize>(
    q: *const V::Scalar,
    k: *const V::Scalar,
    d: usize,
    sums: &mut [[V; M]; N],
) {
    // SAFETY: m < M and n < N; the caller vouches for the sizes and the instruction set.
    unsafe {
        let mut queries = [V::splat(num(0.0)); M];
        for m in 0..M {
            queries[m] = V::load(q.add(m * V::COUNT));
        }
        for n in 0..N {
            let key = V::splat(*k.add(n * d));
            for m in 0..M {
                sums[n][m] = queries[m].mul_add(key, sums[n][m]);
            }
        }
    }
}

/// Turns `rows` rows of `columns` numbers, `stride` apart, into as many columns, `to_stride` apart.
///
/// # Safety
/// The processor has the instruction set of `V`; the rows can be read, and the columns written.
#[inline(always)]
pub(super) unsafe fn turn<V: Lanes>(
    (rows, columns): (usize, usize),
    from: *const V::Scalar,
    stride: usize,
    to: *mut V::Scalar,
    to_stride: usize,
) {
    for r in (0..rows).step_by(V::COUNT) {
        for c in (0..columns).step_by(V::COUNT) {
            let (height, width) = (V::COUNT.min(rows - r), V::COUNT.min(columns - c));
            // SAFETY: r + height <= rows and c + width <= columns; the caller vouches for the rest.
            unsafe {
                let (from, to) = (from.add(r * stride + c), to.add(c * to_stride + r));
                if height == V::COUNT && width == V::COUNT {
                    V::transpose(from, stride, to, to_stride);
                } else {
                    for (i, j) in (0..height).flat_map(|i| (0..width).map(move |j| (i, j))) {
                        *to.add(j * to_stride + i) = *from.add(i * stride + j);
                    }
                }
            }
        }
    }
}

/// Turns `scores` (keys, R) into exponentials, adds them to `total` (R), and adds `v` (keys, Dv), weighed by them, to
/// `sums` (Dv, R); some keys at a time, which the second finds in L1 where the first has left them. The first half of
/// the rows sees none of the keys after the first `seen`.
///
/// # Safety
/// The processor has the instruction set of `V`, and the slices have these sizes.
#[inline(always)]
pub(super) unsafe fn weighted_sum<V: Lanes, const M: usize>(
    scores: &mut [V::Scalar],
    block: &Block<V, M>,
    (v, seen): (&[V::Scalar], usize),
    dv: usize,
    total: &mut [V::Scalar],
    sums: &mut [V::Scalar],
) {
    let width = M * V::COUNT;
    debug_assert!(sums.len() == dv * width && v.len() * width == scores.len() * dv);
    for (n, scores) in scores.chunks_mut(VALUE_BLOCK * width).enumerate() {
        let first = n * VALUE_BLOCK;
        let v = &v[first * dv..(first + scores.len() / width) * dv];
        // SAFETY: the caller's; a block has as many weights·Dv as values·R; the second half of a line is R / 2 after
        // the first.
        unsafe {
            exponentials(scores, block, total);
            if dv == 0 {
                continue;
            }
            let plain = !block.hides || all_finite(v);
            let keys = v.len() / dv;
            let seen = if M > 1 { seen.saturating_sub(first).min(keys) } else { keys };
            let (w, v, out) = (scores.as_ptr(), v.as_ptr(), sums.as_mut_ptr());
            weighted_block::<V, M, M>(w, v, seen, dv, out, plain);
            if seen < keys {
                let (w, out) = (w.add(seen * width + width / 2), out.add(width / 2));
                let (v, keys) = (v.add(seen * dv), keys - seen);
                match M {
                    4 => weighted_block::<V, 2, 4>(w, v, keys, dv, out, plain),
                    2 => weighted_block::<V, 1, 2>(w, v, keys, dv, out, plain),
                    _ => unreachable!("a tile that is halved has 2 or 4 registers"),
                }
            }
        }
    }
}

/// The look at every value also brings the block into the cache, row after row.
#[inline(always)]
pub(super) fn all_finite<T: Float>(v: &[T]) -> bool {
    let mut finite = true;
    for x in v {
        finite &= x.is_finite(); // no early end, so that it becomes vector code
    }
    finite
}

/// M registers of queries and some keys; a line of weights or sums has W registers. `plain`: no value is both hidden and
/// not finite.
///
/// # Safety
/// The processor has the instruction set of `V`; `keys` lines at `w`, as many rows of `dv` numbers at `v`, and `dv` lines
/// at `out`.
#[inline(always)]
unsafe fn weighted_block<V: Lanes, const M: usize, const W: usize>(
    w: *const V::Scalar,
    v: *const V::Scalar,
    keys: usize,
    dv: usize,
    out: *mut V::Scalar,
    plain: bool,
) {
    // SAFETY: as for this function.
    unsafe {
        if plain {
            every_channel::<V, M, W, false>(w, v, keys, dv, out);
        } else {
            every_channel::<V, M, W, true>(w, v, keys, dv, out);
        }
    }
}

/// `weighted_block`. `SELECT`: a hidden slot (weight -0) is passed over, since 0 · NaN is NaN.
///
/// # Safety
/// As for `weighted_block`.
#[inline(always)]
unsafe fn every_channel<V: Lanes, const M: usize, const W: usize, const SELECT: bool>(
    w: *const V::Scalar,
    v: *const V::Scalar,
    keys: usize,
    dv: usize,
    out: *mut V::Scalar,
) {
    let width = W * V::COUNT;
    let mut c = 0;
    while c < dv {
        // SAFETY: channel c of key j is at v + j·dv + c, its sums at out + c·R, and c + N <= dv.
        unsafe {
            let (v, out) = (v.add(c), out.add(c * width));
            c += match dv - c {
                _ if SELECT => weighted_tile::<V, M, W, 1, true>(w, v, keys, dv, out),
                8.. if M == 1 => weighted_tile::<V, M, W, 8, false>(w, v, keys, dv, out),
                6.. if dv - c != 8 => weighted_tile::<V, M, W, 6, false>(w, v, keys, dv, out),
                4.. => weighted_tile::<V, M, W, 4, false>(w, v, keys, dv, out),
                2.. => weighted_tile::<V, M, W, 2, false>(w, v, keys, dv, out),
                _ => weighted_tile::<V, M, W, 1, false>(w, v, keys, dv, out),
            };
        }
    }
}

/// M registers of queries and N channels, all N·M sums in registers; a line has W registers. Returns N.
///
/// # Safety
/// The processor has the instruction set of `V`; `keys` lines at `w`, N numbers at `v` and at every `dv`
/// after it, `keys` times, and N lines at `out`.
#[inline(always)]
unsafe fn weighted_tile<
    V: Lanes,
    const M: usize,
    const W: usize,
    const N: usize,
    const SELECT: bool,
>(
    w: *const V::Scalar,
    v: *const V::Scalar,
    keys: usize,
    dv: usize,
    out: *mut V::Scalar,
) -> usize {
    let width = W * V::COUNT;
    // SAFETY: j < keys, m < M and n < N; the caller vouches for the sizes and the instruction set.
    unsafe {
        let mut sums = [[V::splat(num(0.0)); M]; N];
        for n in 0..N {
            for m in 0..M {
                sums[n][m] = V::load(out.add(n * width + m * V::COUNT));
            }
        }
        for j in 0..keys {
            let (w, v) = (w.add(j * width), v.add(j * dv));
            let mut weights = [V::splat(num(0.0)); M];
            for m in 0..M {
                weights[m] = V::load(w.add(m * V::COUNT));
            }
            for n in 0..N {
                let value = V::splat(*v.add(n));
                for m in 0..M {
                    let sum = weights[m].mul_add(value, sums[n][m]);
                    sums[n][m] =
                        if SELECT { weights[m].select_negative(sums[n][m], sum) } else { sum };
                }
            }
        }
        for n in 0..N {
            for m in 0..M {
                sums[n][m].store(out.add(n * width + m * V::COUNT));
            }
        }
    }
    N
}

/// Asks for a line of memory, into L2: L1 is too small to hold what is asked for so early.
#[inline(always)]
pub(super) fn prefetch<T>(line: *const T) {
    // SAFETY: a prefetch of any address does no more than take time.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(line.cast());
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!(
            "prfm pldl2keep, [{line}]",
            line = in(reg) line,
            options(readonly, nostack, preserves_flags),
        );
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = line;
}

/// A constant of the element type.
#[inline(always)]
pub(super) fn num<T: Float>(x: f64) -> T {
    T::from_f64(x)
}
