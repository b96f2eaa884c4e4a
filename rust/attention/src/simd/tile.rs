//! One tile of queries: what surrounds the kernels, in plain loops.
//!
//! R is the width of the tile, a multiple of the lanes; the queries past the last row are zeros,
//! and nothing is read from theirs. Everything is stored with the queries last.

use std::ops::Range;

use ndarray::{Array3, Array4, ArrayView4, s};

use super::attend::Call;
use crate::float::Float;
use crate::masks::{Mask, steps};
use crate::sdpa::softcap;

/// Keys of all rows that a loop over single slots takes at a time: 64 x 64 f32 are half of L1.
const SLOT_BLOCK: usize = 64;

/// The rows of a tile: all queries of the G heads of one KV head stand in one line, head by head.
#[derive(Debug, Clone)]
pub(super) struct Rows {
    /// Row of the batch.
    pub b: usize,
    /// Head and query of each row.
    pub at: Vec<(usize, usize)>,
}

/// Buffers, kept from tile to tile.
#[derive(Debug)]
pub(super) struct Tile<T> {
    /// R
    width: usize,
    /// (D, R), scaled
    pub queries: Vec<T>,
    /// (keys in range, R): scores, then exponentials
    pub scores: Vec<T>,
    /// (Dv, R)
    pub sums: Vec<T>,
    /// (R): the logit that joins the sum and has no value; -inf = none
    pub sinks: Vec<T>,
    /// (R): the largest score
    pub top: Vec<T>,
    /// (R): the sum of the exponentials
    pub total: Vec<T>,
}

impl<T: Float> Tile<T> {
    pub fn new() -> Self {
        let empty = Vec::new;
        Self {
            width: 0,
            queries: empty(),
            scores: empty(),
            sums: empty(),
            sinks: empty(),
            top: empty(),
            total: empty(),
        }
    }

    /// Loads the rows and makes room for `keys` keys.
    pub fn start(&mut self, call: &Call<'_, T>, rows: &Rows, width: usize, keys: usize) {
        self.width = width;
        let (d, dv) = (call.q.dim().3, call.v.dim().3);
        for (buffer, size) in [
            (&mut self.queries, d * width),
            (&mut self.sums, dv * width),
            (&mut self.top, width),
            (&mut self.total, width),
        ] {
            buffer.clear();
            buffer.resize(size, T::zero());
        }
        self.sinks.clear();
        self.sinks.resize(width, T::neg_infinity());
        self.scores.resize(keys * width, T::zero()); // every slot is written before it is read

        for (r, &(h, i)) in rows.at.iter().enumerate() {
            let query = call.q.slice(s![rows.b, h, i, ..]); // (D)
            for (lanes, &x) in self.queries.chunks_exact_mut(width).zip(query) {
                lanes[r] = x * call.scale;
            }
            if let Some(sinks) = call.options.sinks {
                self.sinks[r] = sinks[h];
            }
        }
    }

    /// Softcap of every score.
    pub fn soften(&mut self, c: T) {
        for score in &mut self.scores {
            *score = softcap(*score, c);
        }
    }

    /// Adds the bias (B, Hq, Tq, Tk). One of -inf hides its slot whatever the score is.
    pub fn add(&mut self, bias: ArrayView4<'_, T>, rows: &Rows, keys: &Range<usize>) {
        self.each_slot(bias, rows, keys, |score, bias| {
            *score = if bias == T::neg_infinity() { bias } else { *score + bias };
        });
    }

    /// Hides what `keep` (B, Hq, Tq, Tk) does not keep.
    pub fn keep(&mut self, keep: ArrayView4<'_, bool>, rows: &Rows, keys: &Range<usize>) {
        self.each_slot(keep, rows, keys, |score, keep| {
            if !keep {
                *score = T::neg_infinity();
            }
        });
    }

    /// Hides what is outside the interval of its own row.
    pub fn hide(&mut self, mask: &Mask<'_>, rows: &Rows, tk: usize, keys: &Range<usize>) {
        for (r, &(_, i)) in rows.at.iter().enumerate() {
            let own = interval(mask, rows.b, i, tk);
            let (start, end) =
                (own.start.clamp(keys.start, keys.end), own.end.clamp(keys.start, keys.end));
            for j in (keys.start..start).chain(end.max(start)..keys.end) {
                self.scores[(j - keys.start) * self.width + r] = T::neg_infinity();
            }
        }
    }

    /// Calls `change` with every slot of the rows and its entry in a table (B, Hq, Tq, Tk).
    fn each_slot<U: Copy>(
        &mut self,
        table: ArrayView4<'_, U>,
        rows: &Rows,
        keys: &Range<usize>,
        change: impl Fn(&mut T, U),
    ) {
        for (block, slots) in self.scores.chunks_mut(SLOT_BLOCK * self.width).enumerate() {
            let start = keys.start + block * SLOT_BLOCK;
            let end = keys.end.min(start + SLOT_BLOCK);
            for (r, &(h, i)) in rows.at.iter().enumerate() {
                let entries = table.slice(s![rows.b, h, i, start..end]);
                for (lanes, &entry) in slots.chunks_exact_mut(self.width).zip(entries) {
                    change(&mut lanes[r], entry);
                }
            }
        }
    }

    /// Normalises, and writes output (B, Hq, Tq, Dv) and lse (B, Hq, Tq) of the rows.
    pub fn finish(&self, rows: &Rows, output: &mut Array4<T>, lse: &mut Array3<T>) {
        for (r, &(h, i)) in rows.at.iter().enumerate() {
            let (top, total, sink) = (self.top[r], self.total[r], self.sinks[r]);
            let empty = top == T::neg_infinity() && total == T::zero();
            let top = top.maximum(sink);
            let shift = if top == T::neg_infinity() { T::zero() } else { top };
            let total = total + (sink - shift).exp();
            lse[[rows.b, h, i]] = top + if total == T::zero() { total } else { total.ln() };

            let divisor = if empty { T::one() } else { total }; // the sums of an empty row are 0
            let mut output = output.slice_mut(s![rows.b, h, i, ..]); // (Dv)
            for (x, lanes) in output.iter_mut().zip(self.sums.chunks_exact(self.width)) {
                *x = lanes[r] / divisor;
            }
        }
    }
}

/// The keys that query `i` sees by its position: causal, window and lengths together.
pub(super) fn interval(mask: &Mask<'_>, b: usize, i: usize, tk: usize) -> Range<usize> {
    let p = mask.position(b, i);
    let (left, right) = mask.window.unwrap_or_default();
    let mut start = 0;
    let mut end = tk as i64;
    if mask.causal {
        end = end.min(p.saturating_add(1));
    }
    if let Some(left) = left {
        start = p.saturating_sub(steps(left)).clamp(0, tk as i64);
    }
    if let Some(right) = right {
        end = end.min(p.saturating_add(steps(right)).saturating_add(1));
    }
    if let Some(lengths) = mask.kv_lengths {
        end = end.min(lengths[b]);
    }
    start as usize..end.max(start) as usize
}

/// The keys that some row of the tile sees.
pub(super) fn reach(mask: &Mask<'_>, rows: &Rows, tk: usize) -> Range<usize> {
    let intervals = rows.at.iter().map(|&(_, i)| interval(mask, rows.b, i, tk));
    intervals.filter(|own| !own.is_empty()).fold(0..0, |all, own| {
        if all.is_empty() { own } else { all.start.min(own.start)..all.end.max(own.end) }
    })
}
