//! The `blocked` rung of `sdpa`: blocks of queries and keys that stay in the cache, and loops that compilers vectorise.
//!
//! What it changes, beside the [readable rung](mod@crate::sdpa):
//! - All queries of a KV head, those of G heads, are rows of one product, taken 64 at a time, and keys 64 at a time: a
//!   block of keys, of values and of scores (16 KiB each at D = 64 in f32) stay in the cache while all rows meet them.
//!   The softmax is corrected from block to block, as in [`flash`](mod@crate::flash).
//! - L rows lie side by side in a *line*. Their sums do not depend on each other, so that each runs in its order and
//!   the compiler still has L at once: in vector registers, without a single intrinsic. L is 8 in f32 and 4 in f64, so
//!   that N = 4 such sums, of four keys or four channels, leave half of the 16 registers of any x86-64 for what is
//!   multiplied. Fewer rows than that, as in decode, make a shorter line and more keys.
//! - Positions and lengths are intervals of keys: blocks that no row sees are not computed, and only keys outside a
//!   row's own are hidden. Values are taken one by one only where a slot is hidden and some value is not finite.
//!
//! Gained, times as fast as the readable rung on one thread of a Xeon with AVX-512, of which this code for any x86-64
//! uses 128 bits (`cargo run --release --example rungs`), in f32 (f64): 9 (6) at 128 x 128, D 64; 10 (7) at 512 x 512,
//! 15 (10) of those causal; 8 (5) with D 128; in decode 6 (4.5) with groups of 4, 3 (2.5) without; 6 (4) at 16 x 16.
//!
//! Letters: B batch, Hq query heads, Hkv key/value heads, G = Hq / Hkv, Tq and Tk query and key lengths, Bk keys of a
//! block, D head size, Dv head size of the values, L rows of a line.
//!
//! Source: Lam, Rothberg and Wolf, "The cache performance and optimizations of blocked algorithms", 1991.

use std::array;
use std::borrow::Cow;
use std::ops::Range;

use ndarray::{Array3, Array4, ArrayRef4, ArrayView2, ArrayView4, s};

use crate::checks::check_sdpa;
use crate::errors::{AttentionError, Result};
use crate::float::Float;
use crate::sdpa::{Sdpa, softcap};

/// Rows of a block.
const BLOCK_ROWS: usize = 64;

/// Keys of a block.
const BLOCK_KEYS: usize = 64;

/// A number of each row of a line.
type Lanes<T, const L: usize> = [T; L];

/// L rows, and what is known of them so far.
struct Line<T, const L: usize> {
    /// Head and position of each query
    rows: [(usize, usize); L],
    /// The keys that each sees by its position
    seen: [Range<usize>; L],
    queries: Vec<Lanes<T, L>>, // (D, L)
    scores: Vec<Lanes<T, L>>,  // (Bk, L)
    weights: Vec<Lanes<T, L>>, // (Bk, L)
    sums: Vec<Lanes<T, L>>,    // (Dv, L)
    /// The logit that joins the sum of each and has no value
    sinks: Lanes<T, L>,
    /// The largest score so far
    tops: Lanes<T, L>,
    /// The sum of the weights so far
    totals: Lanes<T, L>,
}

/// [`sdpa`](fn@crate::sdpa()) without its intermediates: output (B, Hq, Tq, Dv) and lse (B, Hq, Tq).
///
/// # Errors
/// `ShapeMismatch`, `InvalidConfig`; `Unsupported` for dropout.
///
/// ```
/// use ndarray::{Array4, array};
/// use rosetta_attention::{Sdpa, blocked};
/// let (q, k) = (Array4::<f64>::zeros((1, 1, 1, 1)), Array4::zeros((1, 1, 3, 1)));
/// let v = array![[[[1.0], [2.0], [6.0]]]];
/// let (output, _) = blocked(&q, &k, &v, &Sdpa::default())?;
/// assert_eq!(output, array![[[[3.0]]]]);
/// # Ok::<(), rosetta_attention::AttentionError>(())
/// ```
pub fn blocked<T: Float>(
    q: &ArrayRef4<T>,
    k: &ArrayRef4<T>,
    v: &ArrayRef4<T>,
    options: &Sdpa<'_, T>,
) -> Result<(Array4<T>, Array3<T>)> {
    check_sdpa("blocked", q.dim(), k.dim(), v.dim(), options)?;
    if options.dropout.is_some() {
        return Err(AttentionError::Unsupported("dropout".into()));
    }
    let rows = q.dim().1 / k.dim().1.max(1) * q.dim().2; // G · Tq
    Ok(match (rows, size_of::<T>()) {
        (..=1, _) => attend::<T, 1, 8>(q, k, v, options),
        (..=4, ..=4) => attend::<T, 4, 8>(q, k, v, options),
        (_, ..=4) => attend::<T, 8, 4>(q, k, v, options),
        _ => attend::<T, 4, 4>(q, k, v, options),
    })
}

/// `blocked` for arguments that were checked, with L rows in a line, and N keys or channels at a time.
fn attend<T: Float, const L: usize, const N: usize>(
    q: &ArrayRef4<T>,
    k: &ArrayRef4<T>,
    v: &ArrayRef4<T>,
    options: &Sdpa<'_, T>,
) -> (Array4<T>, Array3<T>) {
    let ((batch, hq, tq, d), (_, hkv, tk, dv)) = (q.dim(), v.dim());
    let group = hq / hkv.max(1); // G
    let (scale, hidden) = (options.scale_of(d), T::neg_infinity());
    let shape = (batch, hq, tq, tk); // (B, Hq, Tq, Tk)
    let keep = options.mask.keep.map(|keep| keep.broadcast(shape).expect("checked"));
    let bias = options.bias.map(|bias| bias.broadcast(shape).expect("checked"));
    let mut output = Array4::zeros((batch, hq, tq, dv)); // (B, Hq, Tq, Dv)
    let mut lse = Array3::zeros((batch, hq, tq)); // (B, Hq, Tq)

    for (b, kv, first) in blocks_of((batch, hkv, group * tq)) {
        let (k, v) = (k.slice(s![b, kv, .., ..]), v.slice(s![b, kv, .., ..])); // (Tk, D), (Tk, Dv)

        // 1. rows: the queries of a group one after the other, head by head, L side by side, scaled once
        let row = |r: usize| (kv * group + r / tq, r % tq); // its head, its position
        let last = (group * tq).min(first + BLOCK_ROWS) - 1;
        let lines = (first..=last).step_by(L).map(|first| {
            let rows = array::from_fn(|lane| row(last.min(first + lane))); // a line with room repeats the last
            let query = |c| rows.map(|(h, i)| q[[b, h, i, c]] * scale);
            Line {
                rows,
                seen: rows.map(|(_, i)| options.mask.interval(b, i, tk)),
                queries: (0..d).map(query).collect(), // (D, L)
                scores: vec![],
                weights: vec![],
                sums: vec![[T::zero(); L]; dv], // (Dv, L)
                sinks: rows.map(|(h, _)| options.sinks.map_or(T::neg_infinity(), |sinks| sinks[h])),
                tops: [T::neg_infinity(); L],
                totals: [T::zero(); L],
            }
        });
        let mut lines: Vec<_> = lines.collect(); // of 64 rows

        for start in (0..tk).step_by(BLOCK_KEYS) {
            let keys = start..tk.min(start + BLOCK_KEYS);
            if !lines.iter().any(|line| line.sees(&keys)) {
                continue;
            }
            let k = numbers(k.slice_move(s![keys.clone(), ..])); // (Bk, D)
            let v = numbers(v.slice_move(s![keys.clone(), ..])); // (Bk, Dv)
            let finite = v.iter().fold(true, |all, x| all & x.is_finite()); // no early end: in vectors
            for line in lines.iter_mut().filter(|line| line.sees(&keys)) {
                // 2. scores: of N keys and L rows at a time
                line.score::<N>(&k, keys.len()); // (Bk, L)

                // 3. mask: softcap, bias and mask together, where there are any; -inf is hidden
                if let Some(c) = options.softcap.map(T::from_f64) {
                    line.scores.as_flattened_mut().iter_mut().for_each(|s| *s = softcap(*s, c));
                }
                line.alter(bias, b, &keys, |s, x| if x == hidden { x } else { s + x });
                line.alter(keep, b, &keys, |s, keep| if keep { s } else { hidden });
                line.hide_unseen(&keys);

                // 4. softmax: relative to the largest score so far, and so is what was summed before
                line.exponentiate(); // (Bk, L)

                // 5. weighted sum: of N channels and L rows at a time
                if finite || !line.hides() {
                    line.weigh::<N>(&v, dv); // (Dv, L)
                } else {
                    line.weigh_visible(&v, dv); // (Dv, L)
                }
            }
        }

        // 6. output: divided by the sum, to which the sink belongs; a row without any key has output 0
        for (r, (line, lane)) in (first..=last).zip(lanes_of(&lines)) {
            let (divisor, log) = line.finish(lane);
            let (h, i) = row(r);
            for (c, sums) in line.sums.iter().enumerate() {
                output[[b, h, i, c]] = sums[lane] / divisor;
            }
            lse[[b, h, i]] = log;
        }
    }
    (output, lse)
}

impl<T: Float, const L: usize> Line<T, L> {
    /// Whether a row of the line sees one of the keys by its position.
    fn sees(&self, keys: &Range<usize>) -> bool {
        self.seen.iter().any(|seen| seen.start.max(keys.start) < seen.end.min(keys.end))
    }

    /// The scores of these keys, `k` (Bk, D).
    fn score<const N: usize>(&mut self, k: &[T], keys: usize) {
        self.scores.resize(keys, [T::zero(); L]);
        let (tiles, rest) = self.scores.as_chunks_mut::<N>();
        let d = self.queries.len();
        let (k, last) = k.split_at(tiles.len() * N * d);
        for (scores, k) in tiles.iter_mut().zip(k.chunks_exact(N * d)) {
            *scores = dots(&self.queries, k);
        }
        for (scores, k) in rest.iter_mut().zip(last.chunks_exact(d)) {
            [*scores] = dots(&self.queries, k);
        }
    }

    /// Changes the scores of these keys by their entries in a table (B, Hq, Tq, Tk), if there is one.
    fn alter<U: Copy>(
        &mut self,
        table: Option<ArrayView4<'_, U>>,
        b: usize,
        keys: &Range<usize>,
        change: impl Fn(T, U) -> T,
    ) {
        let Some(table) = table else { return };
        for (lane, &(h, i)) in self.rows.iter().enumerate() {
            let entries = table.slice(s![b, h, i, keys.clone()]); // (Bk)
            for (scores, &entry) in self.scores.iter_mut().zip(entries) {
                scores[lane] = change(scores[lane], entry);
            }
        }
    }

    /// Hides the keys that a row does not see by its position.
    fn hide_unseen(&mut self, keys: &Range<usize>) {
        for (lane, seen) in self.seen.iter().enumerate() {
            let start = seen.start.clamp(keys.start, keys.end);
            let end = seen.end.clamp(start, keys.end);
            for j in (keys.start..start).chain(end..keys.end) {
                self.scores[j - keys.start][lane] = T::neg_infinity();
            }
        }
    }

    /// Whether a slot is hidden.
    fn hides(&self) -> bool {
        self.scores.as_flattened().contains(&T::neg_infinity())
    }

    /// The weights of these keys, and what they change in the sums of the keys before.
    fn exponentiate(&mut self) {
        let before = zip(self.sinks, self.tops, T::maximum);
        for &scores in &self.scores {
            self.tops = zip(self.tops, scores, T::maximum);
        }
        let now = zip(self.sinks, self.tops, T::maximum);
        let shifts = now.map(|top| if top == T::neg_infinity() { T::zero() } else { top }); // -inf - -inf is NaN
        let factors = zip(before, shifts, |before, now| {
            if before == now { T::one() } else { (before - now).exp() } // inf - inf is NaN as well
        });
        if factors != [T::one(); L] {
            self.totals = zip(self.totals, factors, T::mul);
            self.sums.iter_mut().for_each(|sums| *sums = zip(*sums, factors, T::mul));
        }
        self.weights.clear();
        for &scores in &self.scores {
            let weights = zip(scores, shifts, |score, shift| (score - shift).exp());
            self.totals = zip(self.totals, weights, T::add);
            self.weights.push(weights);
        }
    }

    /// Adds the values `v` (Bk, Dv) by their weights.
    fn weigh<const N: usize>(&mut self, v: &[T], dv: usize) {
        let (tiles, rest) = self.sums.as_chunks_mut::<N>();
        let whole = tiles.len() * N;
        for (c, sums) in (0..whole).step_by(N).zip(tiles) {
            add_products(sums, &self.weights, &v[c..], dv);
        }
        for (c, sums) in (whole..dv).zip(rest) {
            add_products(array::from_mut(sums), &self.weights, &v[c..], dv);
        }
    }

    /// The same without those that are hidden: their weight is 0, but 0 · NaN is not.
    fn weigh_visible(&mut self, v: &[T], dv: usize) {
        for ((scores, weights), v) in self.scores.iter().zip(&self.weights).zip(v.chunks_exact(dv))
        {
            for lane in (0..L).filter(|&lane| scores[lane] != T::neg_infinity()) {
                for (sums, &value) in self.sums.iter_mut().zip(v) {
                    sums[lane] += weights[lane] * value;
                }
            }
        }
    }

    /// What the sums of a row are divided by, and its log-sum-exp.
    fn finish(&self, lane: usize) -> (T, T) {
        let (top, sink) = (self.tops[lane], self.sinks[lane]);
        if top == T::neg_infinity() {
            return (T::one(), sink); // no key, so that the sums are 0
        }
        let shift = top.maximum(sink);
        let total = self.totals[lane] + (sink - shift).exp();
        (total, shift + total.ln())
    }
}

/// The products of the queries of a line (D, L) with N keys `k` (N, D): (N, L), all sums in registers.
fn dots<T: Float, const L: usize, const N: usize>(
    queries: &[Lanes<T, L>],
    k: &[T],
) -> [Lanes<T, L>; N] {
    let d = queries.len();
    let keys: [&[T]; N] = array::from_fn(|n| &k[n * d..(n + 1) * d]);
    let mut sums = [[T::zero(); L]; N];
    for (c, query) in queries.iter().enumerate() {
        for (sums, key) in sums.iter_mut().zip(keys) {
            *sums = zip(*sums, *query, |sum, x| sum + x * key[c]);
        }
    }
    sums
}

/// Adds to N channels of the sums of a line the values that stand `dv` apart in `v`, times the weights (Bk, L).
fn add_products<T: Float, const L: usize, const N: usize>(
    sums: &mut [Lanes<T, L>; N],
    weights: &[Lanes<T, L>],
    v: &[T],
    dv: usize,
) {
    let mut own = *sums; // which the compiler keeps in registers, unlike what it was lent
    for (&weights, v) in weights.iter().zip(v.chunks(dv)) {
        let values = v.first_chunk::<N>().expect("N channels");
        for (sums, &value) in own.iter_mut().zip(values) {
            *sums = zip(*sums, weights, |sum, weight| sum + weight * value);
        }
    }
    *sums = own;
}

/// The numbers of a block, copied only where they do not lie one after the other.
fn numbers<T: Float>(x: ArrayView2<'_, T>) -> Cow<'_, [T]> {
    x.to_slice().map_or_else(|| Cow::Owned(x.iter().copied().collect()), Cow::Borrowed)
}

/// A function of the numbers of each row.
fn zip<T: Copy, const L: usize>(
    a: Lanes<T, L>,
    b: Lanes<T, L>,
    f: impl Fn(T, T) -> T,
) -> Lanes<T, L> {
    array::from_fn(|lane| f(a[lane], b[lane]))
}

/// Each KV head of each row of the batch with the first row of each block.
fn blocks_of(
    (batch, hkv, rows): (usize, usize, usize),
) -> impl Iterator<Item = (usize, usize, usize)> {
    let heads = (0..batch).flat_map(move |b| (0..hkv).map(move |kv| (b, kv)));
    let firsts = move || (0..rows).step_by(BLOCK_ROWS);
    heads.flat_map(move |(b, kv)| firsts().map(move |first| (b, kv, first)))
}

/// Every row of some lines: its line, and its place there.
fn lanes_of<T, const L: usize>(lines: &[Line<T, L>]) -> impl Iterator<Item = (&Line<T, L>, usize)> {
    lines.iter().flat_map(|line| (0..L).map(move |lane| (line, lane)))
}
