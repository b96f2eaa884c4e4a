//! The inner loops for few rows, as in decode: one query of each of the G heads of a KV head.
//!
//! With a query in each lane most lanes would idle, and memory is what the time goes to. Here the lanes are *channels*,
//! and each key and value is loaded once for a whole group: 4 keys and 4 heads have 16 sums in flight, which are turned
//! and added up in registers at the end, all 16 together. Each row is asked for 32 rows before it is needed, whatever
//! page or block it lies in. Everything is stored with the rows first.
//!
//! Against the same loops that asked for nothing and walked the quarters of a block at once instead: 1.5 times as fast
//! with G = 4, Tk 4096 and D 128 (28.9 GB/s of K and V), 1.25 in a batch of 8 with Tk 1024, 1.2 with Tk 16384, 1.1 with
//! 8 MiB, which stay in L3, 0.95 with 2 MiB, which stay in L2, and 1.25 with 128 MiB as int8 (two builds in turns,
//! AVX-512, Zen 4; no program that has both is kept: `conformance bench --full --ops sdpa --ports rust --save F`, then
//! with `--check F`, compares two commits). Asking 16 or 64 rows before, or in four streams, is slower by a tenth in one
//! place or the other. Against a tile: `cargo run --release --example simd_ratio`.
//!
//! A key has the same score, bit by bit, wherever it stands among others, and a row the same sums whatever else is at
//! work; not so between these loops and those of a [tile](super::kernel), which add in another order. Which of the
//! two a query goes through depends on its head alone.
//!
//! Every function is inlined into one that was compiled for the instruction set of `V`.

#![allow(clippy::needless_range_loop, reason = "constant index loops unroll into registers")]

use super::across::{Across, LONGEST};
use super::exp::exp;
use super::kernel::{num, prefetch};
use super::lanes::Lanes;
use super::online::Step;
use super::source::Source;

/// Keys that are loaded together.
const TOGETHER: usize = 4;

/// How many rows before it is needed a row is asked for: 16 KiB of 128 f32.
pub(super) const AHEAD: usize = 32;

/// Bits of a cache line.
const LINE: usize = 512;

/// Keys that the wider kernel takes; with so many heads that their product is COUNT.
const fn keys_of<V: Lanes>() -> usize {
    if V::COUNT < TOGETHER { V::COUNT } else { TOGETHER }
}

/// Asks for the line at channel `c` of a row, if that is where a line of it begins. They come into L2: into L1 it takes
/// longer, and pushes out what is at work.
#[inline(always)]
pub(super) fn ask<V: Across, S: Source<V>>(row: *const u8, c: usize) {
    if V::COUNT * S::BITS >= LINE || (c * S::BITS).is_multiple_of(LINE) {
        prefetch(row.wrapping_add(c * S::BITS / 8));
    }
}

/// Numbers rounded up to whole registers, at least one.
pub(super) fn room<V: Lanes>(n: usize) -> usize {
    n.next_multiple_of(V::COUNT).max(V::COUNT)
}

/// Writes `queries`: those of the rows `q` (R, D), scaled, in the order that `scores` reads them in. As many rows as
/// the wider kernel takes stand together, register by register; the rows that are left follow one by one. Zeros fill
/// up the last register of a row.
pub(super) fn pack<V: Lanes>(
    q: &[V::Scalar],
    d: usize,
    scale: V::Scalar,
    queries: &mut [V::Scalar],
) {
    let (rows, heads, room) = (q.len() / d, V::COUNT / keys_of::<V>(), room::<V>(d));
    queries.fill(num(0.0));
    for (r, row) in q.chunks_exact(d).enumerate() {
        let (first, together) = match r - r % heads {
            first if first + heads <= rows => (first, heads),
            _ => (r, 1),
        };
        for (n, channels) in row.chunks(V::COUNT).enumerate() {
            let at = first * room + (n * together + r - first) * V::COUNT;
            for (to, &x) in queries[at..].iter_mut().zip(channels) {
                *to = x * scale;
            }
        }
    }
}

/// `scores` (R, stride), or a part of each row of it, = `queries`, which `pack` has written, of R rows · the keys at `k`, an address each: `keys`
/// of them, up to the next multiple of COUNT any others, and AHEAD more of what is needed next.
///
/// # Safety
/// The processor has the instruction set of `V`, the keys can be read, and the slices have these sizes.
#[inline(always)]
pub(super) unsafe fn scores<V: Across, S: Source<V>>(
    (queries, rows): (&[V::Scalar], usize),
    (k, keys): (&[*const u8], usize),
    d: usize,
    (scores, stride): (&mut [V::Scalar], usize),
) {
    let (together, heads, room) = (keys_of::<V>(), V::COUNT / keys_of::<V>(), room::<V>(d));
    let padded = keys.next_multiple_of(V::COUNT);
    debug_assert!(queries.len() == rows * room && scores.len() >= (rows - 1) * stride + padded);
    debug_assert!(k.len() >= padded + AHEAD && padded <= stride);
    for first in (0..padded).step_by(V::COUNT) {
        let mut r = 0;
        // SAFETY: r + heads <= rows, and a key is below `padded` <= stride; the caller vouches for the rest.
        unsafe {
            while heads > 1 && r + heads <= rows {
                let q = queries.as_ptr().add(r * room);
                for at in (first..first + V::COUNT).step_by(together) {
                    let (k, out) = (k.as_ptr().add(at), scores.as_mut_ptr().add(r * stride + at));
                    match V::COUNT {
                        16 => score_tile::<V, S, 4, 4>(q, k, d, out, stride),
                        8 => score_tile::<V, S, 4, 2>(q, k, d, out, stride),
                        _ => unreachable!("registers of one head at a time"),
                    }
                }
                r += heads;
            }
            while r < rows {
                let q = queries.as_ptr().add(r * room);
                let (k, out) = (k.as_ptr().add(first), scores.as_mut_ptr().add(r * stride + first));
                match V::COUNT {
                    16 => score_tile::<V, S, 16, 1>(q, k, d, out, stride),
                    8 => score_tile::<V, S, 8, 1>(q, k, d, out, stride),
                    4 => score_tile::<V, S, 4, 1>(q, k, d, out, stride),
                    _ => score_tile::<V, S, 2, 1>(q, k, d, out, stride),
                }
                r += 1;
            }
        }
    }
}

/// The scores of K keys and H rows, all K · H = COUNT sums in registers.
///
/// # Safety
/// The processor has the instruction set of `V`; the addresses of K keys and of AHEAD more at `k`; H rows at `q`, and K
/// numbers at `out` and at every `stride` after it, H times.
#[inline(always)]
unsafe fn score_tile<V: Across, S: Source<V>, const K: usize, const H: usize>(
    q: *const V::Scalar,
    k: *const *const u8,
    d: usize,
    out: *mut V::Scalar,
    stride: usize,
) {
    // SAFETY: c < d, n < K and h < H; the caller vouches for the sizes and the instruction set.
    unsafe {
        let mut sums = [[V::splat(num(0.0)); K]; H];
        let whole = d - d % V::COUNT;
        for group in (0..K).step_by(TOGETHER) {
            let mut lines = [std::ptr::null(); TOGETHER];
            let mut later = lines;
            for n in 0..TOGETHER.min(K) {
                lines[n] = *k.add(group + n);
                later[n] = *k.add(group + n + AHEAD);
            }
            for c in (0..whole).step_by(V::COUNT) {
                let mut keys = [V::splat(num(0.0)); TOGETHER];
                for n in 0..TOGETHER.min(K) {
                    keys[n] = S::load(lines[n].add(c * S::BITS / 8));
                    ask::<V, S>(later[n], c);
                }
                score_channels(q.add(c * H), keys, group, &mut sums);
            }
            if whole < d {
                let mut keys = [V::splat(num(0.0)); TOGETHER];
                for n in 0..TOGETHER.min(K) {
                    keys[n] = S::load_first(lines[n].add(whole * S::BITS / 8), d - whole);
                }
                score_channels(q.add(whole * H), keys, group, &mut sums);
            }
        }
        let all = elements(V::add_up(sums));
        for h in 0..H {
            for n in 0..K {
                *out.add(h * stride + n) = all[h * K + n];
            }
        }
    }
}

/// One register of channels of the keys from `group` on and of H rows, at `q`.
///
/// # Safety
/// The processor has the instruction set of `V`; H · COUNT numbers at `q`.
#[inline(always)]
unsafe fn score_channels<V: Lanes, const K: usize, const H: usize>(
    q: *const V::Scalar,
    keys: [V; TOGETHER],
    group: usize,
    sums: &mut [[V; K]; H],
) {
    for h in 0..H {
        // SAFETY: h < H; the caller vouches for the rest.
        let query = unsafe { V::load(q.add(h * V::COUNT)) };
        for n in 0..TOGETHER.min(K) {
            sums[h][group + n] = query.mul_add(keys[n], sums[h][group + n]);
        }
    }
}

/// Multiplies `slots` (R, stride), of which each row has `count` numbers, by `scales` (count).
///
/// # Safety
/// The processor has the instruction set of `V`, and the slices have these sizes.
#[inline(always)]
pub(super) fn scaled<T: crate::float::Float>(slots: &mut [T], stride: usize, scales: &[f32]) {
    for row in slots.chunks_exact_mut(stride) {
        for (x, &scale) in row.iter_mut().zip(scales) {
            *x *= T::from_f64(f64::from(scale));
        }
    }
}

/// As [`exponentials`](super::online::exponentials) of the tile. `scores` (R, stride), of which each row has `keys`
/// scores; up to a whole register they become 0.
///
/// # Safety
/// The processor has the instruction set of `V`, and the slices have these sizes; 0 < keys <= stride.
#[inline(always)]
pub(super) unsafe fn exponentials<V: Across>(
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
        row[keys..padded].fill(first); // changes neither maximum nor minimum
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
            let hides_here = minima.any_equal(hidden);
            hides |= hides_here;
            let mut totals = V::splat(num(0.0));
            for at in (0..padded).step_by(V::COUNT) {
                let x = V::load(slots.add(at));
                let mut e = exp(x.sub(step.shift));
                if hides_here {
                    e = x.select_equal(hidden, V::splat(num(-0.0)), e);
                }
                e.store(slots.add(at));
                if at + V::COUNT > keys {
                    for beyond in keys..padded {
                        *slots.add(beyond) = num(0.0);
                    }
                    e = V::load(slots.add(at));
                }
                totals = totals.add(e);
            }
            let mut sum = num(0.0);
            for x in elements(totals).into_iter().take(V::COUNT) {
                sum += x;
            }
            total[r] = total[r] * factors[r] + sum;
        }
    }
    hides
}

/// The elements of a register, and zeros.
///
/// # Safety
/// The processor has the instruction set of `V`.
#[inline(always)]
pub(super) unsafe fn elements<V: Lanes>(x: V) -> [V::Scalar; LONGEST] {
    const { assert!(V::COUNT <= LONGEST) };
    let mut elements = [num(0.0); LONGEST];
    // SAFETY: a register has no more than LONGEST elements; the caller vouches for the instruction set.
    unsafe { x.store(elements.as_mut_ptr()) };
    elements
}
