//! One tile of queries: its rows, its buffers, and what surrounds the kernels, in plain loops.

use std::ops::Range;

use ndarray::{ArrayRef1, ArrayView4, s};

use super::attend::Call;
use super::buffer::Buffer;
use crate::float::Float;
use crate::masks::Mask;
use crate::sdpa::{Sdpa, softcap};

/// Keys that are scored, exponentiated and weighed before the next ones. Blocks start at multiples of it, whatever
/// the rows see, so that the order of a row's sums depends on nothing else. 256 x 64 f32 scores are 64 KiB, in L2.
pub(super) const KEY_BLOCK: usize = 256;

/// Keys of all rows that a loop over single slots takes at a time: 64 x 64 f32 are half of L1.
const SLOT_BLOCK: usize = 64;

/// The rows of a tile: all queries of the G heads of one KV head stand in one line, head by head.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rows {
    /// Row of the batch.
    pub b: usize,
    /// The first query head of the group.
    pub head: usize,
    /// Tq
    pub tq: usize,
    /// Where the tile starts in that line.
    pub first: usize,
    /// How many rows it has.
    pub count: usize,
}

impl Rows {
    /// Row of the tile, head and query.
    fn each(self) -> impl Iterator<Item = (usize, usize, usize)> {
        let mut at = (self.head + self.first / self.tq, self.first % self.tq);
        (0..self.count).map(move |r| {
            let (h, i) = at;
            at = if i + 1 < self.tq { (h, i + 1) } else { (h + 1, 0) };
            (r, h, i)
        })
    }
}

/// The slots of a cache that a query sees by its position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    /// From the first to the last.
    pub own: Range<usize>,
    /// Those of them that it does not see: in a rotating cache, between what stays and the window.
    pub but: Range<usize>,
}

/// Where the slot of key j and row r stands: at j · key + r · row.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Layout {
    pub key: usize,
    pub row: usize,
}

/// Buffers, kept from tile to tile. R is the number of rows, rounded up as the kernels need it.
#[derive(Debug, Default)]
pub(super) struct Tile<T> {
    layout: Layout,
    /// (R): the keys that a row sees by its position; empty where all see all
    intervals: Vec<Range<usize>>,
    /// (R), or none: what of them it does not see all the same
    gaps: Vec<Range<usize>>,
    /// The keys that all rows see by their positions.
    common: Range<usize>,
    /// Scaled: (D, R) or (R, D)
    pub queries: Buffer<T>,
    /// Of one block of keys, in the layout: scores, then exponentials
    pub scores: Buffer<T>,
    /// (Dv, R) or (R, Dv)
    pub sums: Buffer<T>,
    /// A few keys or values, in the order that a kernel wants
    pub turned: Buffer<T>,
    /// (R): the logit that joins the sum and has no value; -inf = none
    pub sinks: Buffer<T>,
    /// (R): the largest score so far
    pub top: Buffer<T>,
    /// (R): the sum of the exponentials so far
    pub total: Buffer<T>,
    /// (R): what the sums are multiplied by when `top` has grown
    pub factors: Buffer<T>,
}

/// How many numbers a tile needs.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sizes {
    pub rows: usize,
    pub queries: usize,
    pub sums: usize,
    pub turned: usize,
}

impl<T: Float> Tile<T> {
    /// Finds the keys that some row of the tile sees.
    pub fn reach(&mut self, mask: &Mask<'_>, rows: Rows, tk: usize) -> Range<usize> {
        self.intervals.clear();
        self.gaps.clear();
        if !mask.causal && mask.window.is_none() && mask.kv_lengths.is_none() {
            self.common = 0..tk;
            return 0..tk;
        }
        self.intervals.extend(rows.each().map(|(_, _, i)| mask.interval(rows.b, i, tk)));
        self.span(tk)
    }

    /// `reach` where query i sees the keys of `seen(i)`.
    pub fn reach_of(
        &mut self,
        rows: Rows,
        tk: usize,
        seen: &dyn Fn(usize) -> Seen,
    ) -> Range<usize> {
        self.intervals.clear();
        self.gaps.clear();
        for (_, _, i) in rows.each() {
            let Seen { own, but } = seen(i);
            self.intervals.push(own);
            self.gaps.push(but);
        }
        self.span(tk)
    }

    /// The keys that some row sees, and those that all of them do.
    fn span(&mut self, tk: usize) -> Range<usize> {
        let (mut reach, mut common) = (0..0, 0..tk);
        for own in &self.intervals {
            common = common.start.max(own.start)..common.end.min(own.end);
            if !own.is_empty() {
                reach = if reach.is_empty() {
                    own.clone()
                } else {
                    reach.start.min(own.start)..reach.end.max(own.end)
                };
            }
        }
        let gapless = self.gaps.iter().all(Range::is_empty);
        self.common = if gapless { common } else { 0..0 };
        reach
    }

    /// What its large buffers take.
    pub fn bytes(&self) -> usize {
        [&self.queries, &self.scores, &self.sums, &self.turned].map(Buffer::bytes).iter().sum()
    }

    /// How many of these keys, from the first on, some of the first `rows` rows see by their positions: none of them
    /// sees any of the others.
    pub fn seen(&self, keys: &Range<usize>, rows: usize) -> usize {
        if keys.end <= self.common.end {
            return keys.len();
        }
        let ends =
            self.intervals.iter().take(rows).filter(|own| !own.is_empty()).map(|own| own.end);
        ends.max().unwrap_or(0).clamp(keys.start, keys.end) - keys.start
    }

    /// Makes room; nothing is known of any key yet.
    pub fn start(&mut self, sinks: Option<&ArrayRef1<T>>, rows: Rows, sizes: Sizes) {
        self.queries.resize(sizes.queries);
        self.turned.resize(sizes.turned);
        for (buffer, size, value) in [
            (&mut self.sums, sizes.sums, T::zero()),
            (&mut self.total, sizes.rows, T::zero()),
            (&mut self.factors, sizes.rows, T::one()),
            (&mut self.top, sizes.rows, T::neg_infinity()),
            (&mut self.sinks, sizes.rows, T::neg_infinity()),
        ] {
            buffer.become_all(size, value);
        }
        if let Some(sinks) = sinks {
            rows.each().for_each(|(r, h, _)| self.sinks[r] = sinks[h]);
        }
    }

    /// Makes room for the scores of a block, `size` numbers that the kernel writes before they are read.
    pub fn room(&mut self, layout: Layout, size: usize) {
        self.layout = layout;
        self.scores.resize(size);
    }

    /// Softcap, bias and masks of the scores of these keys. Returns whether there are any.
    pub fn alter(&mut self, call: &Call<'_, T>, rows: Rows, keys: &Range<usize>) -> bool {
        let ((batch, hq, tq, _), tk) = (call.q.dim(), call.k.dim().2);
        self.alter_slots(call.options, (batch, hq, tq, tk), rows, keys)
    }

    /// `alter`, with the sizes (B, Hq, Tq, Tk) of tables of slots.
    pub fn alter_slots(
        &mut self,
        options: &Sdpa<'_, T>,
        table: (usize, usize, usize, usize),
        rows: Rows,
        keys: &Range<usize>,
    ) -> bool {
        if let Some(c) = options.softcap {
            let c = T::from_f64(c);
            for score in self.scores.iter_mut() {
                *score = softcap(*score, c);
            }
        }
        if let Some(bias) = options.bias {
            let bias = bias.broadcast(table).expect("checked");
            self.each_slot(bias, rows, keys, |score, bias| {
                // One of -inf hides its slot whatever the score is.
                *score = if bias == T::neg_infinity() { bias } else { *score + bias };
            });
        }
        if let Some(keep) = options.mask.keep {
            let keep = keep.broadcast(table).expect("checked");
            self.each_slot(keep, rows, keys, |score, keep| {
                if !keep {
                    *score = T::neg_infinity();
                }
            });
        }
        let hides = keys.start < self.common.start || keys.end > self.common.end;
        if hides {
            self.hide(keys);
            self.hide_gaps(keys);
        }
        hides || options.softcap.is_some() || options.bias.is_some() || options.mask.keep.is_some()
    }

    /// Hides what is outside the interval of its own row.
    fn hide(&mut self, keys: &Range<usize>) {
        let rises = |end: fn(&Range<usize>) -> usize| self.intervals.is_sorted_by_key(end);
        if self.layout.row == 1 && rises(|own| own.start) && rises(|own| own.end) {
            return self.hide_ends(keys);
        }
        for (r, own) in self.intervals.iter().enumerate() {
            let start = own.start.clamp(keys.start, keys.end);
            let end = own.end.clamp(start, keys.end);
            for j in (keys.start..start).chain(end..keys.end) {
                let slot = (j - keys.start) * self.layout.key + r * self.layout.row;
                self.scores[slot] = T::neg_infinity();
            }
        }
    }

    /// Hides what a row does not see within its interval.
    fn hide_gaps(&mut self, keys: &Range<usize>) {
        for (r, gap) in self.gaps.iter().enumerate() {
            for j in gap.start.max(keys.start)..gap.end.min(keys.end) {
                let slot = (j - keys.start) * self.layout.key + r * self.layout.row;
                self.scores[slot] = T::neg_infinity();
            }
        }
    }

    /// `hide` where the rows are next to each other, and none starts or ends before the one before it: of each key the
    /// rows that have ended are the first ones, and those that have not started the last.
    fn hide_ends(&mut self, keys: &Range<usize>) {
        let (own, mut ended, mut started) = (&self.intervals, 0, 0);
        for (j, line) in keys.clone().zip(self.scores.chunks_exact_mut(self.layout.key)) {
            while ended < own.len() && own[ended].end <= j {
                ended += 1;
            }
            while started < own.len() && own[started].start <= j {
                started += 1;
            }
            line[..ended].fill(T::neg_infinity());
            line[started..own.len()].fill(T::neg_infinity());
        }
    }

    /// Calls `change` with every slot of the rows and its entry in a table (B, Hq, Tq, Tk).
    fn each_slot<U: Copy>(
        &mut self,
        table: ArrayView4<'_, U>,
        rows: Rows,
        keys: &Range<usize>,
        change: impl Fn(&mut T, U),
    ) {
        for start in keys.clone().step_by(SLOT_BLOCK) {
            let end = keys.end.min(start + SLOT_BLOCK);
            for (r, h, i) in rows.each() {
                let entries = table.slice(s![rows.b, h, i, start..end]);
                let first = (start - keys.start) * self.layout.key + r * self.layout.row;
                let slots = self.scores[first..].iter_mut().step_by(self.layout.key);
                for (slot, &entry) in slots.zip(entries) {
                    change(slot, entry);
                }
            }
        }
    }

    /// Divides `output` (rows, Dv) by the sums of the exponentials, and writes `lse` (rows).
    pub fn finish(&mut self, output: &mut [T], lse: &mut [T]) {
        self.divisors(lse);
        let dv = output.len() / lse.len();
        for (r, &divisor) in self.factors[..lse.len()].iter().enumerate() {
            for x in &mut output[r * dv..(r + 1) * dv] {
                *x /= divisor;
            }
        }
    }

    /// Writes `lse` (rows), and what the weighted sums must be divided by to `factors`.
    pub fn divisors(&mut self, lse: &mut [T]) {
        for (r, lse) in lse.iter_mut().enumerate() {
            let (top, total, sink) = (self.top[r], self.total[r], self.sinks[r]);
            let empty = top == T::neg_infinity() && total == T::zero();
            let top = top.maximum(sink);
            let shift = if top == T::neg_infinity() { T::zero() } else { top };
            // exp(-inf - shift) is 0, whatever is shifted by.
            let beside = if sink == T::neg_infinity() { T::zero() } else { (sink - shift).exp() };
            let total = total + beside;
            *lse = top + if total == T::zero() { total } else { total.ln() };
            self.factors[r] = if empty { T::one() } else { total }; // the sums of an empty row are 0
        }
    }
}

/// The blocks of keys that make up a range.
pub(super) fn blocks(reach: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let first = reach.start - reach.start % KEY_BLOCK;
    (first..reach.end)
        .step_by(KEY_BLOCK)
        .map(move |start| start.max(reach.start)..reach.end.min(start + KEY_BLOCK))
}
