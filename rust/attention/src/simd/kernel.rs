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

/// `scores` (keys, R) = `k` (keys, D) · `queries` (D, R).
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

/// Turns scores (keys, R) into exp(score - maximum), the maximum being that of the sink and of all scores so far.
/// Brings `top` (R), the largest score, and `total` (R), the sum of the exponentials, both without the sink, up to
/// date, and writes to `factors` (R) what the weighted sums so far must be multiplied by. Returns whether a slot is
/// hidden.
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
    factors: &mut [V::Scalar],
) -> bool {
    let width = M * V::COUNT;
    debug_assert!(sinks.len() == width && top.len() == width && total.len() == width);
    debug_assert!(factors.len() == width);
    let keys = scores.len() / width;
    let slots = scores.as_mut_ptr();
    // SAFETY: j < keys and m < M; the caller vouches for the sizes and the instruction set.
    unsafe {
        let (zero, hidden) = (V::splat(num(0.0)), V::splat(num(f64::NEG_INFINITY)));
        let (mut maxima, mut minima) = ([hidden; M], [zero; M]);
        for m in 0..M {
            maxima[m] = V::load(top.as_ptr().add(m * V::COUNT));
        }
        for j in 0..keys {
            for m in 0..M {
                let x = V::load(slots.add(j * width + m * V::COUNT));
                maxima[m] = x.max(maxima[m]); // drops a NaN, which the sum below finds again
                minima[m] = x.min(minima[m]);
            }
        }
        let (mut shifts, mut totals, mut hides) = ([zero; M], [zero; M], false);
        for m in 0..M {
            let at = m * V::COUNT;
            let old = V::load(top.as_ptr().add(at));
            let step = Step::new(V::load(sinks.as_ptr().add(at)), old, maxima[m]);
            maxima[m].store(top.as_mut_ptr().add(at));
            step.factor.store(factors.as_mut_ptr().add(at));
            shifts[m] = step.shift;
            totals[m] = V::load(total.as_ptr().add(at)).mul(step.factor);
            hides |= minima[m].any_equal(hidden);
        }
        for j in 0..keys {
            for m in 0..M {
                let slot = slots.add(j * width + m * V::COUNT);
                let x = V::load(slot);
                let mut e = exp(x.sub(shifts[m]));
                if hides {
                    e = x.select_equal(hidden, V::splat(num(-0.0)), e);
                }
                e.store(slot);
                totals[m] = totals[m].add(e);
            }
        }
        for m in 0..M {
            totals[m].store(total.as_mut_ptr().add(m * V::COUNT));
        }
        hides
    }
}

/// What a block of keys does to the running softmax of its rows.
pub(super) struct Step<V> {
    /// What the exponentials are relative to.
    pub shift: V,
    /// What the sums so far must be multiplied by.
    pub factor: V,
}

impl<V: Lanes> Step<V> {
    /// `old` and `new`: the largest score before and after this block.
    ///
    /// # Safety
    /// The processor has the instruction set of `V`.
    #[inline(always)]
    pub(super) unsafe fn new(sink: V, old: V, new: V) -> Self {
        // SAFETY: as for this function.
        unsafe {
            let hidden = V::splat(num(f64::NEG_INFINITY));
            let (before, now) = (sink.max(old), sink.max(new));
            let shift = now.select_equal(hidden, V::splat(num(0.0)), now); // -inf - -inf is NaN
            // Where nothing changed nothing is multiplied, so that an infinite sink leaves an empty row 0.
            let factor = before.select_equal(now, V::splat(num(1.0)), exp(before.sub(shift)));
            Self { shift, factor }
        }
    }
}

/// `sums` (n, R) times `factors` (R).
///
/// # Safety
/// The processor has the instruction set of `V`, and the slices have these sizes.
#[inline(always)]
pub(super) unsafe fn rescale<V: Lanes, const M: usize>(
    sums: &mut [V::Scalar],
    factors: &[V::Scalar],
) {
    debug_assert!(factors.len() == M * V::COUNT);
    for lanes in sums.chunks_exact_mut(M * V::COUNT) {
        for at in (0..M * V::COUNT).step_by(V::COUNT) {
            // SAFETY: at + COUNT <= M · COUNT; the caller vouches for the instruction set.
            unsafe {
                let sum = V::load(lanes.as_ptr().add(at));
                sum.mul(V::load(factors.as_ptr().add(at))).store(lanes.as_mut_ptr().add(at));
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

/// Adds `v` (keys, Dv), weighed by `weights` (keys, R), to `sums` (Dv, R). `hides`: whether a slot is hidden.
///
/// # Safety
/// The processor has the instruction set of `V`, and the slices have these sizes.
#[inline(always)]
pub(super) unsafe fn weighted_sum<V: Lanes, const M: usize>(
    weights: &[V::Scalar],
    v: &[V::Scalar],
    dv: usize,
    sums: &mut [V::Scalar],
    hides: bool,
) {
    let width = M * V::COUNT;
    debug_assert!(sums.len() == dv * width && v.len() * width == weights.len() * dv);
    for (weights, v) in weights.chunks(VALUE_BLOCK * width).zip(v.chunks(VALUE_BLOCK * dv)) {
        let plain = !hides || all_finite(v);
        // SAFETY: the caller's; a block has as many weights·Dv as values·R.
        unsafe {
            if plain {
                weighted_block::<V, M, false>(weights, v, dv, sums);
            } else {
                weighted_block::<V, M, true>(weights, v, dv, sums);
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
pub(super) fn num<T: Float>(x: f64) -> T {
    T::from_f64(x)
}
