//! The inner loops, generic over the register.
//!
//! The lanes of a register are *queries*: a tile is R = M · COUNT queries wide, everything is stored
//! with the queries last, and K and V are read as they lie, one number at a time to all lanes. So no
//! loop ever sums across lanes, and a query gets the same bits in whatever lane and tile it falls.
//!
//! Every function is inlined into one that was compiled for the instruction set of `V`.

#![allow(clippy::needless_range_loop, reason = "constant index loops unroll into registers")]

use super::exp::exp;
use super::lanes::Lanes;
use crate::float::Float;

/// Values that are weighed together, few enough to stay in L1 with their weights: 64 rows of 64
/// f32 and 64 rows of 64 weights are 16 KiB each.
const VALUE_BLOCK: usize = 64;

/// `scores` (Tk, R) = `k` (Tk, D) · `queries` (D, R).
///
/// # Safety
/// The processor has the instruction set of `V`, and the slices have these sizes.
#[inline(always)]
pub(super) unsafe fn scores<V: Lanes, const M: usize>(
    queries: &[V::Scalar],
    k: &[V::Scalar],
    d: usize,
    scores: &mut [V::Scalar],
) {
    let (width, keys) = (M * V::COUNT, k.len() / d);
    debug_assert!(queries.len() == d * width && scores.len() == keys * width);
    let (q, k, out) = (queries.as_ptr(), k.as_ptr(), scores.as_mut_ptr());
    let step = if M == 1 { 8 } else { 4 }; // at least 8 sums, to hide the latency of one
    let whole = keys - keys % step;
    // SAFETY: key j has its d numbers at k + j·d, its scores at out + j·R, and j + step <= keys.
    unsafe {
        for j in (0..whole).step_by(step) {
            let (k, out) = (k.add(j * d), out.add(j * width));
            match step {
                8 => score_tile::<V, M, 8>(q, k, d, out),
                _ => score_tile::<V, M, 4>(q, k, d, out),
            }
        }
        for j in whole..keys {
            score_tile::<V, M, 1>(q, k.add(j * d), d, out.add(j * width));
        }
    }
}

/// The scores of M registers of queries and N keys, all N·M sums in registers.
///
/// # Safety
/// The processor has the instruction set of `V`; d·R numbers at `q`, N·d at `k`, N·R at `out`.
#[inline(always)]
unsafe fn score_tile<V: Lanes, const M: usize, const N: usize>(
    q: *const V::Scalar,
    k: *const V::Scalar,
    d: usize,
    out: *mut V::Scalar,
) {
    let width = M * V::COUNT;
    // SAFETY: c < d, m < M and n < N; the caller vouches for the sizes and the instruction set.
    unsafe {
        let mut sums = [[V::splat(num(0.0)); M]; N];
        for c in 0..d {
            let mut queries = [V::splat(num(0.0)); M];
            for m in 0..M {
                queries[m] = V::load(q.add(c * width + m * V::COUNT));
            }
            for n in 0..N {
                let key = V::splat(*k.add(n * d + c));
                for m in 0..M {
                    sums[n][m] = queries[m].mul_add(key, sums[n][m]);
                }
            }
        }
        for n in 0..N {
            for m in 0..M {
                sums[n][m].store(out.add(n * width + m * V::COUNT));
            }
        }
    }
}

/// Turns scores (Tk, R) into exp(score - maximum of the scores and the sink), and writes the maxima
/// of the scores to `top` (R) and the sums of the exponentials to `total` (R), both without the sink.
///
/// A hidden slot, -inf, becomes -0. It adds nothing to any sum, and its sign tells it from a visible
/// slot whose exponential is too small for the type.
///
/// # Safety
/// The processor has the instruction set of `V`, and the slices have these sizes.
#[inline(always)]
pub(super) unsafe fn exponentials<V: Lanes, const M: usize>(
    scores: &mut [V::Scalar],
    sinks: &[V::Scalar],
    top: &mut [V::Scalar],
    total: &mut [V::Scalar],
) {
    let width = M * V::COUNT;
    debug_assert!(sinks.len() == width && top.len() == width && total.len() == width);
    let keys = scores.len() / width;
    let slots = scores.as_mut_ptr();
    // SAFETY: j < keys and m < M; the caller vouches for the sizes and the instruction set.
    unsafe {
        let (zero, hidden) = (V::splat(num(0.0)), V::splat(num(f64::NEG_INFINITY)));
        let minus_zero = V::splat(num(-0.0));
        let mut maxima = [hidden; M];
        for j in 0..keys {
            for m in 0..M {
                let x = V::load(slots.add(j * width + m * V::COUNT));
                maxima[m] = x.max(maxima[m]); // drops a NaN, which the sum below finds again
            }
        }
        let mut shifts = [zero; M];
        for m in 0..M {
            maxima[m].store(top.as_mut_ptr().add(m * V::COUNT));
            let shift = V::load(sinks.as_ptr().add(m * V::COUNT)).max(maxima[m]);
            shifts[m] = shift.select_equal(hidden, zero, shift); // -inf - -inf is NaN
        }
        let mut totals = [zero; M];
        for j in 0..keys {
            for m in 0..M {
                let slot = slots.add(j * width + m * V::COUNT);
                let x = V::load(slot);
                let e = x.select_equal(hidden, minus_zero, exp(x.sub(shifts[m])));
                e.store(slot);
                totals[m] = totals[m].add(e);
            }
        }
        for m in 0..M {
            totals[m].store(total.as_mut_ptr().add(m * V::COUNT));
        }
    }
}

/// Adds `v` (Tk, Dv), weighed by `weights` (Tk, R), to `sums` (Dv, R).
///
/// # Safety
/// The processor has the instruction set of `V`, and the slices have these sizes.
#[inline(always)]
pub(super) unsafe fn weighted_sum<V: Lanes, const M: usize>(
    weights: &[V::Scalar],
    v: &[V::Scalar],
    dv: usize,
    sums: &mut [V::Scalar],
) {
    let width = M * V::COUNT;
    debug_assert!(sums.len() == dv * width && v.len() * width == weights.len() * dv);
    for (weights, v) in weights.chunks(VALUE_BLOCK * width).zip(v.chunks(VALUE_BLOCK * dv)) {
        let finite = all_finite(v);
        // SAFETY: the caller's; a block has as many weights·Dv as values·R.
        unsafe {
            if finite {
                weighted_block::<V, M, false>(weights, v, dv, sums);
            } else {
                weighted_block::<V, M, true>(weights, v, dv, sums);
            }
        }
    }
}

/// The look at every value also brings the block into the cache, row after row.
#[inline(always)]
fn all_finite<T: Float>(v: &[T]) -> bool {
    let mut finite = true;
    for x in v {
        finite &= x.is_finite(); // no early end, so that it becomes vector code
    }
    finite
}

/// One block. `SELECT`: a hidden slot (weight -0) is passed over, since 0 · NaN is NaN.
///
/// # Safety
/// As for `weighted_sum`.
#[inline(always)]
unsafe fn weighted_block<V: Lanes, const M: usize, const SELECT: bool>(
    weights: &[V::Scalar],
    v: &[V::Scalar],
    dv: usize,
    sums: &mut [V::Scalar],
) {
    let (width, keys) = (M * V::COUNT, v.len() / dv);
    let (w, v, out) = (weights.as_ptr(), v.as_ptr(), sums.as_mut_ptr());
    let step = if M == 1 { 8 } else { 4 };
    let whole = dv - dv % step;
    // SAFETY: channel c of key j is at v + j·dv + c, its sums at out + c·R, and c + step <= dv.
    unsafe {
        for c in (0..whole).step_by(step) {
            let (v, out) = (v.add(c), out.add(c * width));
            match step {
                8 => weighted_tile::<V, M, 8, SELECT>(w, v, keys, dv, out),
                _ => weighted_tile::<V, M, 4, SELECT>(w, v, keys, dv, out),
            }
        }
        for c in whole..dv {
            weighted_tile::<V, M, 1, SELECT>(w, v.add(c), keys, dv, out.add(c * width));
        }
    }
}

/// M registers of queries and N channels, all N·M sums in registers.
///
/// # Safety
/// The processor has the instruction set of `V`; keys·R numbers at `w`, N at `v` and at every `dv`
/// after it, `keys` times, and N·R at `out`.
#[inline(always)]
unsafe fn weighted_tile<V: Lanes, const M: usize, const N: usize, const SELECT: bool>(
    w: *const V::Scalar,
    v: *const V::Scalar,
    keys: usize,
    dv: usize,
    out: *mut V::Scalar,
) {
    let width = M * V::COUNT;
    // SAFETY: j < keys, m < M and n < N; the caller vouches for the sizes and the instruction set.
    unsafe {
        let mut sums = [[V::splat(num(0.0)); M]; N];
        for n in 0..N {
            for m in 0..M {
                sums[n][m] = V::load(out.add(n * width + m * V::COUNT));
            }
        }
        for j in 0..keys {
            let mut weights = [V::splat(num(0.0)); M];
            for m in 0..M {
                weights[m] = V::load(w.add(j * width + m * V::COUNT));
            }
            for n in 0..N {
                let value = V::splat(*v.add(j * dv + n));
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
}

/// A constant of the element type.
#[inline(always)]
fn num<T: Float>(x: f64) -> T {
    T::from_f64(x)
}
