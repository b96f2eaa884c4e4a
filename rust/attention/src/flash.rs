//! The `flash` rung of `sdpa`: one pass over the keys, tile by tile, with a softmax that is corrected on the way.
//!
//! What it changes, beside the [readable rung](mod@crate::sdpa): no table of size Tq x Tk is ever made. A query
//! keeps the largest score so far, the sum of its exponentials, and its unfinished output; when a tile of keys
//! brings a larger score, the other two are scaled down to it. The memory is that of a tile.
//!
//! Letters: B batch, Hq query heads, G = Hq / Hkv, Tq and Tk query and key lengths, Bq and Bk sizes of a
//! tile, D head size, Dv head size of the values.
//!
//! Sources: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018, section 3; Dao et
//! al., "FlashAttention", 2022, algorithm 1, and Dao, "FlashAttention-2", 2023, algorithm 1.

use std::ops::Range;

use ndarray::{Array1, Array2, Array3, Array4, ArrayRef4, s};

use crate::checks::{check_sdpa, check_tiles};
use crate::errors::Result;
use crate::float::Float;
use crate::masks::sees;
use crate::sdpa::{Sdpa, dot, softcap};

/// How many queries and keys are taken at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tiles {
    /// Bq, at least 1.
    pub block_q: usize,
    /// Bk, at least 1.
    pub block_k: usize,
}

impl Default for Tiles {
    fn default() -> Self {
        Self { block_q: 64, block_k: 64 }
    }
}

/// [`sdpa`](fn@crate::sdpa()) without its intermediates: output (B, Hq, Tq, Dv) and lse (B, Hq, Tq).
///
/// # Errors
/// `ShapeMismatch`, `InvalidConfig`.
///
/// ```
/// use ndarray::{Array4, array};
/// use rosetta_attention::{Sdpa, Tiles, flash};
/// let (q, k) = (Array4::<f64>::zeros((1, 1, 1, 1)), Array4::zeros((1, 1, 3, 1)));
/// let v = array![[[[1.0], [2.0], [6.0]]]];
/// let (output, _) = flash(&q, &k, &v, &Sdpa::default(), Tiles { block_q: 1, block_k: 2 })?;
/// assert_eq!(output, array![[[[3.0]]]]);
/// # Ok::<(), rosetta_attention::AttentionError>(())
/// ```
pub fn flash<T: Float>(
    q: &ArrayRef4<T>,
    k: &ArrayRef4<T>,
    v: &ArrayRef4<T>,
    options: &Sdpa<'_, T>,
    tiles: Tiles,
) -> Result<(Array4<T>, Array3<T>)> {
    check_sdpa("flash", q.dim(), k.dim(), v.dim(), options)?;
    check_tiles("flash", tiles)?;
    Ok(attend(q, k, v, options, tiles, 0..k.dim().2))
}

/// `flash` over the keys of a range, for arguments that were checked.
pub(crate) fn attend<T: Float>(
    q: &ArrayRef4<T>,
    k: &ArrayRef4<T>,
    v: &ArrayRef4<T>,
    options: &Sdpa<'_, T>,
    tiles: Tiles,
    keys: Range<usize>,
) -> (Array4<T>, Array3<T>) {
    let (batch, hq, tq, d) = q.dim();
    let (_, hkv, _, dv) = v.dim();
    let group = hq / hkv.max(1); // G
    let scale = options.scale_of(d);
    let shape = (batch, hq, tq, k.dim().2); // (B, Hq, Tq, Tk)
    let keep = options.mask.keep.map(|keep| keep.broadcast(shape).expect("checked"));
    let bias = options.bias.map(|bias| bias.broadcast(shape).expect("checked"));
    let mut output = Array4::zeros((batch, hq, tq, dv)); // (B, Hq, Tq, Dv)
    let mut lse = Array3::zeros((batch, hq, tq)); // (B, Hq, Tq)

    for (b, h, first) in tiles_of((batch, hq, tq), tiles.block_q) {
        // 1. query tile: scaled once; of the keys nothing is known yet, only the sink, which has no value
        let rows = first..tq.min(first.saturating_add(tiles.block_q));
        let queries = q.slice(s![b, h, rows.clone(), ..]).mapv(|x| x * scale); // (Bq, D)
        let sink = options.sinks.map_or(T::neg_infinity(), |sinks| sinks[h]);
        let mut tops = Array1::from_elem(rows.len(), sink); // (Bq)
        let mut totals = tops.mapv(|sink| (sink - shift_of(sink)).exp()); // (Bq)
        let mut sums = Array2::<T>::zeros((rows.len(), dv)); // (Bq, Dv)

        // 2. key tile: every query of the tile meets it before the next one is read
        for start in keys.clone().step_by(tiles.block_k) {
            let columns = start..keys.end.min(start.saturating_add(tiles.block_k));
            for (row, i) in rows.clone().enumerate() {
                // 3. scores: as in sdpa, of the keys that this query sees; -inf is hidden
                let scores = Array1::from_iter(columns.clone().map(|j| {
                    let slot = (b, h, i, j);
                    let bias = bias.map_or(T::zero(), |bias| bias[slot]);
                    if bias == T::neg_infinity() || !sees(&options.mask, keep, slot) {
                        return T::neg_infinity();
                    }
                    let score = dot(queries.row(row), k.slice(s![b, h / group, j, ..]));
                    options.softcap.map_or(score, |c| softcap(score, T::from_f64(c))) + bias
                })); // (Bk)

                // 4. maximum: of all keys so far
                let top = scores.iter().fold(tops[row], |top, &score| top.maximum(score));

                // 5. rescale: what was summed so far is relative to a smaller one
                let shift = shift_of(top);
                let factor = (tops[row] - shift).exp();
                tops[row] = top;
                totals[row] *= factor;
                sums.row_mut(row).mapv_inplace(|sum| sum * factor); // (Dv)

                // 6. accumulate: the sum of all weights, and the values by those that dropout leaves
                let index = (((b * hq + h) * tq + i) * shape.3 + start) as u64; // of the first slot
                let kept = options.dropout.map(|dropout| dropout.keep(index, columns.len())); // (Bk)
                for (column, &score) in scores.indexed_iter() {
                    if score != T::neg_infinity() {
                        let mut weight = (score - shift).exp();
                        totals[row] += weight;
                        if let (Some(dropout), Some(kept)) = (&options.dropout, &kept) {
                            weight = dropout.scale(weight, kept[column]);
                        }
                        let value = v.slice(s![b, h / group, start + column, ..]); // (Dv)
                        sums.row_mut(row).scaled_add(weight, &value);
                    }
                }
            }
        }

        // 7. finish: divide by the sum; a row without any key has output 0 and lse -inf
        for (row, i) in rows.enumerate() {
            let total = if totals[row] == T::zero() { T::one() } else { totals[row] };
            let finished = sums.row(row).mapv(|sum| sum / total); // (Dv)
            output.slice_mut(s![b, h, i, ..]).assign(&finished);
            lse[[b, h, i]] = tops[row] + total.ln();
        }
    }
    (output, lse)
}

/// What exponentials are relative to: the maximum, or 0 while there is none, since -inf - -inf is NaN.
fn shift_of<T: Float>(top: T) -> T {
    if top == T::neg_infinity() { T::zero() } else { top }
}

/// Each head of each row of the batch with the first query of each tile.
fn tiles_of(
    (batch, hq, tq): (usize, usize, usize),
    block_q: usize,
) -> impl Iterator<Item = (usize, usize, usize)> {
    let heads = (0..batch).flat_map(move |b| (0..hq).map(move |h| (b, h)));
    heads.flat_map(move |(b, h)| (0..tq).step_by(block_q).map(move |first| (b, h, first)))
}
