//! The inner loops for few rows, as in decode: one query of each of the G heads of a KV head.
//!
//! With a query in each lane most lanes would idle. Here the lanes are keys for the scores, and channels for the
//! weighted sum, and each key and value is loaded once for the whole group. Everything is stored with the rows first.
//!
//! Every number is the same chain of operations as in the [tile](super::kernel), in the same order: a query gets the
//! same bits from either. For that the keys are turned in registers, so that no sum crosses the lanes.
//!
//! Every function is inlined into one that was compiled for the instruction set of `V`.

#![allow(clippy::needless_range_loop, reason = "constant index loops unroll into registers")]

use super::exp::exp;
use super::kernel::{all_finite, num, prefetch, turn};
use super::lanes::Lanes;
use super::online::Step;

/// Values that are weighed together, few enough to stay in L1 for all rows: 32 rows of 128 f32 are 16 KiB.
const VALUE_BLOCK: usize = 32;

/// The longest register.
const LONGEST: usize = 16;

/// Keys that are turned and scored together: two registers, so that four rows make eight sums, which hide the
/// latency of one.
pub(super) const fn width<V: Lanes>() -> usize {
    2 * V::COUNT
}

/// Numbers that `turned` must have room for: the keys of a block, or the last channels of its values.
pub(super) fn turned<V: Lanes>(d: usize) -> usize {
    (d * width::<V>()).max(VALUE_BLOCK * V::COUNT)
}

/// `scores` (R, stride) = `queries` (R, D) · `k` (keys, D). `stride` is a
/// multiple of `width`, and `next` is what will be read after these keys.
///
/// # Safety
/// The processor has the instruction set of `V`, and the slices have these sizes.
#[inline(always)]
pub(super) unsafe fn scores<V: Lanes>(
    queries: &[V::Scalar],
    k: &[V::Scalar],
    d: usize,
    turned: &mut [V::Scalar],
    (scores, stride): (&mut [V::Scalar], usize),
    next: *const V::Scalar,
) {
    let (width, keys, rows) = (width::<V>(), k.len() / d, queries.len() / d);
    debug_assert!(turned.len() >= d * width && scores.len() == rows * stride);
    debug_assert!(stride.is_multiple_of(width) && keys <= stride);
    for j in (0..keys).step_by(width) {
        let count = width.min(keys - j);
        // SAFETY: j + count <= keys, r + N <= rows, j + width <= stride; the caller vouches for the rest.
        unsafe {
            let block = k.as_ptr().add(j * d);
            let next = if j + width < keys { block.add(width * d) } else { next };
            for c in (0..d).step_by(V::COUNT) {
                let columns = V::COUNT.min(d - c);
                turn::<V>(
                    (count, columns),
                    block.add(c),
                    d,
                    turned.as_mut_ptr().add(c * width),
                    width,
                );
                for row in 0..width {
                    prefetch(next.wrapping_add(row * d + c));
                }
            }
            let mut r = 0;
            while r < rows {
                let (q, out) =
                    (queries.as_ptr().add(r * d), scores.as_mut_ptr().add(r * stride + j));
                r += match rows - r {
                    4.. => score_rows::<V, 4>(q, turned.as_ptr(), d, out, stride),
                    2.. => score_rows::<V, 2>(q, turned.as_ptr(), d, out, stride),
                    _ => score_rows::<V, 1>(q, turned.as_ptr(), d, out, stride),
                };
            }
        }
    }
}

/// The scores of N rows and two registers of keys. Returns N.
///
/// # Safety
/// The processor has the instruction set of `V`; N·d numbers at `q`, d · `width` at `k`, and `width` at `out` and at
/// every `stride` after it, N times.
#[inline(always)]
unsafe fn score_rows<V: Lanes, const N: usize>(
    q: *const V::Scalar,
    k: *const V::Scalar,
    d: usize,
    out: *mut V::Scalar,
    stride: usize,
) -> usize {
    // SAFETY: c < d and n < N; the caller vouches for the sizes and the instruction set.
    unsafe {
        let mut sums = [[V::splat(num(0.0)); 2]; N];
        for c in 0..d {
            let at = k.add(c * width::<V>());
            let keys = [V::load(at), V::load(at.add(V::COUNT))];
            for n in 0..N {
                let query = V::splat(*q.add(n * d + c));
                for m in 0..2 {
                    sums[n][m] = query.mul_add(keys[m], sums[n][m]);
                }
            }
        }
        for n in 0..N {
            for m in 0..2 {
                sums[n][m].store(out.add(n * stride + m * V::COUNT));
            }
        }
    }
    N
}

/// As [`exponentials`](super::online::exponentials) of the tile, but `total` is only rescaled: the weighted sum adds
/// the exponentials up as it passes over them. `scores` (R, stride), of which each row has `keys` scores.
///
/// # Safety
/// The processor has the instruction set of `V`, and the slices have these sizes; 0 < keys <= stride.
#[inline(always)]
pub(super) unsafe fn exponentials<V: Lanes>(
    (scores, stride): (&mut [V::Scalar], usize),
    keys: usize,
    sinks: &[V::Scalar],
    top: &mut [V::Scalar],
    total: &mut [V::Scalar],
    factors: &mut [V::Scalar],
) -> bool {
    let padded = keys.next_multiple_of(V::COUNT);
    let mut hides = false;
    for (r, row) in scores.chunks_exact_mut(stride).enumerate() {
        let first = row[0];
        row[keys..padded].fill(first); // changes neither maximum nor minimum, and is never read again
        let slots = row.as_mut_ptr();
        // SAFETY: at + COUNT <= padded <= stride; the caller vouches for the instruction set.
        unsafe {
            let hidden = V::splat(num(f64::NEG_INFINITY));
            let (mut maxima, mut minima) = (V::splat(top[r]), V::splat(num(0.0)));
            for at in (0..padded).step_by(V::COUNT) {
                let x = V::load(slots.add(at));
                maxima = x.max(maxima);
                minima = x.min(minima);
            }
            let mut new = top[r];
            for x in elements(maxima).into_iter().take(V::COUNT) {
                new = if x > new { x } else { new };
            }
            let step = Step::new(V::splat(sinks[r]), V::splat(top[r]), V::splat(new));
            top[r] = new;
            factors[r] = elements(step.factor)[0];
            total[r] *= factors[r];
            let hides_here = minima.any_equal(hidden);
            hides |= hides_here;
            for at in (0..padded).step_by(V::COUNT) {
                let x = V::load(slots.add(at));
                let mut e = exp(x.sub(step.shift));
                if hides_here {
                    e = x.select_equal(hidden, V::splat(num(-0.0)), e);
                }
                e.store(slots.add(at));
            }
        }
    }
    hides
}

/// The elements of a register, and zeros.
///
/// # Safety
/// The processor has the instruction set of `V`.
#[inline(always)]
unsafe fn elements<V: Lanes>(x: V) -> [V::Scalar; LONGEST] {
    const { assert!(V::COUNT <= LONGEST) };
    let mut elements = [num(0.0); LONGEST];
    // SAFETY: a register has no more than LONGEST elements; the caller vouches for the instruction set.
    unsafe { x.store(elements.as_mut_ptr()) };
    elements
}

/// What the weighted sum of a block is made of.
#[derive(Clone, Copy)]
pub(super) struct Weighing<'a, T> {
    /// (R, stride), of which each row has `keys` weights
    pub weights: &'a [T],
    pub stride: usize,
    pub keys: usize,
    /// (keys, Dv)
    pub v: &'a [T],
    pub dv: usize,
    /// Whether a slot is hidden.
    pub hides: bool,
    /// What will be read after these values. Only its cache lines are asked for.
    pub next: *const T,
}

/// `sums` (R, room) times `factors` (R), plus the weighed values; `room` is Dv rounded up to whole registers, at
/// least one. Adds the weights to `total` (R).
///
/// # Safety
/// The processor has the instruction set of `V`, and the slices have these sizes.
#[inline(always)]
pub(super) unsafe fn weighted_sum<V: Lanes>(
    of: Weighing<'_, V::Scalar>,
    factors: &[V::Scalar],
    turned: &mut [V::Scalar],
    sums: &mut [V::Scalar],
    total: &mut [V::Scalar],
) {
    let Weighing { keys, dv, .. } = of;
    let room = room::<V>(dv);
    debug_assert!(sums.len() == total.len() * room && turned.len() >= VALUE_BLOCK * V::COUNT);
    for (sums, &factor) in sums.chunks_exact_mut(room).zip(factors) {
        for lanes in sums.chunks_exact_mut(V::COUNT) {
            // SAFETY: a chunk has COUNT numbers; the caller vouches for the instruction set.
            unsafe { V::load(lanes.as_ptr()).mul(V::splat(factor)).store(lanes.as_mut_ptr()) };
        }
    }
    let whole = dv - dv % V::COUNT;
    for start in (0..keys).step_by(VALUE_BLOCK) {
        let count = VALUE_BLOCK.min(keys - start);
        let v = &of.v[start * dv..(start + count) * dv];
        let plain = !of.hides || all_finite(v);
        let next =
            if start + VALUE_BLOCK < keys { v.as_ptr().wrapping_add(v.len()) } else { of.next };
        let part = Part { w: of.weights[start..].as_ptr(), stride: of.stride, count, room, plain };
        // SAFETY: channels c to c + M · COUNT of `count` values stand at v + c, dv apart.
        unsafe {
            let mut c = 0;
            while c < whole {
                let (v, next) = (v.as_ptr().add(c), next.wrapping_add(c));
                if whole - c >= V::BLOCK * V::COUNT && V::BLOCK == 4 {
                    all_rows::<V, 4>(part, v, dv, next, c, sums, total);
                    c += 4 * V::COUNT;
                } else if whole - c >= 2 * V::COUNT {
                    all_rows::<V, 2>(part, v, dv, next, c, sums, total);
                    c += 2 * V::COUNT;
                } else {
                    all_rows::<V, 1>(part, v, dv, next, c, sums, total);
                    c += V::COUNT;
                }
            }
            if whole < dv || dv == 0 {
                // The last channels, with zeros up to a whole register.
                for (row, lanes) in turned.chunks_exact_mut(V::COUNT).take(count).enumerate() {
                    lanes.fill(num(0.0));
                    let rest = &v[row * dv + whole..(row + 1) * dv];
                    lanes[..rest.len()].copy_from_slice(rest);
                }
                let (v, next) = (turned.as_ptr(), std::ptr::null());
                all_rows::<V, 1>(part, v, V::COUNT, next, whole, sums, total);
            }
        }
    }
}

/// Dv rounded up to whole registers, at least one.
pub(super) fn room<V: Lanes>(dv: usize) -> usize {
    dv.next_multiple_of(V::COUNT).max(V::COUNT)
}

/// The weights of a block of values.
#[derive(Clone, Copy)]
struct Part<T> {
    w: *const T,
    stride: usize,
    count: usize,
    /// Between the sums of two rows.
    room: usize,
    /// No value is both hidden and not finite.
    plain: bool,
}

/// M registers of channels from `c` on, for all rows. The first channels add up the weights too.
///
/// # Safety
/// The processor has the instruction set of `V`; M registers at `v` and at every `dv` after it, `count` times.
#[inline(always)]
unsafe fn all_rows<V: Lanes, const M: usize>(
    part: Part<V::Scalar>,
    v: *const V::Scalar,
    dv: usize,
    next: *const V::Scalar,
    c: usize,
    sums: &mut [V::Scalar],
    total: &mut [V::Scalar],
) {
    let (rows, totals) = (total.len(), total.as_mut_ptr());
    let mut r = 0;
    // SAFETY: r + N <= rows, and each row has `room` sums; the caller vouches for the rest.
    unsafe {
        while r < rows {
            let part = Part { w: part.w.add(r * part.stride), ..part };
            let next = if r == 0 { next } else { std::ptr::null() };
            let (out, total) = (sums.as_mut_ptr().add(r * part.room + c), totals.add(r));
            r += match (part.plain, rows - r, c) {
                (true, 4.., 0) => weigh::<V, M, 4, true, false>(part, v, dv, next, out, total),
                (true, 4.., _) => weigh::<V, M, 4, false, false>(part, v, dv, next, out, total),
                (true, _, 0) => weigh::<V, M, 1, true, false>(part, v, dv, next, out, total),
                (true, _, _) => weigh::<V, M, 1, false, false>(part, v, dv, next, out, total),
                (false, _, 0) => weigh::<V, M, 1, true, true>(part, v, dv, next, out, total),
                (false, _, _) => weigh::<V, M, 1, false, true>(part, v, dv, next, out, total),
            };
        }
    }
}

/// N rows and M registers of channels, all N·M sums in registers. `TOTAL`: the weights are added up too. `SELECT`: a
/// hidden slot (weight -0) is passed over, since 0 · NaN is NaN. Returns N.
///
/// # Safety
/// As for `all_rows`, with N rows at `part.w`, `out` and `total`.
#[inline(always)]
unsafe fn weigh<V: Lanes, const M: usize, const N: usize, const TOTAL: bool, const SELECT: bool>(
    part: Part<V::Scalar>,
    v: *const V::Scalar,
    dv: usize,
    next: *const V::Scalar,
    out: *mut V::Scalar,
    total: *mut V::Scalar,
) -> usize {
    // SAFETY: j < count, m < M and n < N; the caller vouches for the sizes and the instruction set.
    unsafe {
        let mut sums = [[V::splat(num(0.0)); M]; N];
        let mut totals = [V::splat(num(0.0)); N];
        for n in 0..N {
            totals[n] = V::splat(*total.add(n));
            for m in 0..M {
                sums[n][m] = V::load(out.add(n * part.room + m * V::COUNT));
            }
        }
        for j in 0..part.count {
            let mut values = [V::splat(num(0.0)); M];
            for m in 0..M {
                values[m] = V::load(v.add(j * dv + m * V::COUNT));
                if !next.is_null() {
                    prefetch(next.wrapping_add(j * dv + m * V::COUNT));
                }
            }
            for n in 0..N {
                let weight = V::splat(*part.w.add(n * part.stride + j));
                if TOTAL {
                    totals[n] = totals[n].add(weight);
                }
                for m in 0..M {
                    let sum = weight.mul_add(values[m], sums[n][m]);
                    sums[n][m] = if SELECT { weight.select_negative(sums[n][m], sum) } else { sum };
                }
            }
        }
        for n in 0..N {
            if TOTAL {
                *total.add(n) = elements(totals[n])[0];
            }
            for m in 0..M {
                sums[n][m].store(out.add(n * part.room + m * V::COUNT));
            }
        }
    }
    N
}
