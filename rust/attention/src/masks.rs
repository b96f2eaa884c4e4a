//! Which query may see which key.
//!
//! A [`Mask`] holds conditions, and a slot is visible when all of them allow it. They are about
//! *positions*: query i stands at position p = i + q_offset, key j at position j.
//!
//! ```text
//! causal       j <= p
//! window       p - left <= j <= p + right
//! kv_lengths   j < kv_lengths[b]
//! keep         keep[b, h, i, j]
//! ```
//!
//! Letters: B batch, Hq query heads, Tq and Tk query and key lengths.

use std::ops::Range;

use ndarray::{Array4, ArrayRef1, ArrayRefD, ArrayView4};

use crate::allocation::Purpose;
use crate::checks::check_mask;
use crate::errors::Result;

/// How many keys a query sees to the left and to the right of itself; `None` = open on that side.
pub type Window = (Option<usize>, Option<usize>);

/// The conditions of one call; the default hides nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Mask<'a> {
    /// true = attend, right-aligned broadcastable to (B, Hq, Tq, Tk); so rank 3 is (Hq, Tq, Tk).
    pub keep: Option<&'a ArrayRefD<bool>>,
    /// No query sees a key that stands after it.
    pub causal: bool,
    /// How many keys on each side of itself a query sees; 0 is 0.
    pub window: Option<Window>,
    /// (B): how many keys of each row exist.
    pub kv_lengths: Option<&'a ArrayRef1<i64>>,
    /// Position of query 0. `None` = 0; a cache aligns the last query with the last position of
    /// its row instead.
    pub q_offset: Option<Offset<'a>>,
}

/// Position of query 0.
#[derive(Debug, Clone, Copy)]
pub enum Offset<'a> {
    /// The same in every row of the batch.
    One(i64),
    /// (B): one for each row.
    PerRow(&'a ArrayRef1<i64>),
}

impl Mask<'_> {
    /// Position of query `i` of row `b`. Saturates, so that no offset of a caller can wrap around.
    pub(crate) fn position(&self, b: usize, i: usize) -> i64 {
        self.q_offset.map_or(0, |offset| offset.of_row(b)).saturating_add(i as i64)
    }

    /// The keys that query `i` of row `b` sees by its position: causal, window and lengths together.
    pub(crate) fn interval(&self, b: usize, i: usize, tk: usize) -> Range<usize> {
        let p = self.position(b, i);
        let (left, right) = self.window.unwrap_or_default();
        let mut start = 0;
        let mut end = tk as i64;
        if self.causal {
            end = end.min(p.saturating_add(1));
        }
        if let Some(left) = left {
            start = p.saturating_sub(steps(left)).clamp(0, tk as i64);
        }
        if let Some(right) = right {
            end = end.min(p.saturating_add(steps(right)).saturating_add(1));
        }
        if let Some(lengths) = self.kv_lengths {
            end = end.min(lengths[b]);
        }
        start as usize..end.max(start) as usize
    }
}

impl Offset<'_> {
    /// That of row `b`.
    pub(crate) fn of_row(self, b: usize) -> i64 {
        match self {
            Offset::One(offset) => offset,
            Offset::PerRow(offsets) => offsets[b],
        }
    }
}

/// The mask as a table (B, Hq, Tq, Tk), true = attend.
///
/// # Errors
/// `ShapeMismatch`, `InvalidConfig`.
///
/// ```
/// use ndarray::array;
/// use rosetta_attention::{Mask, visible};
/// let causal = Mask { causal: true, ..Mask::default() };
/// let table = visible(&causal, (1, 1, 2, 2))?;
/// assert_eq!(table, array![[[[true, false], [true, true]]]]);
/// # Ok::<(), rosetta_attention::AttentionError>(())
/// ```
pub fn visible(mask: &Mask<'_>, shape: (usize, usize, usize, usize)) -> Result<Array4<bool>> {
    check_mask("visible", mask, shape)?;
    let mut table = Purpose::option("visible", "shape").array(shape, false)?; // (B, Hq, Tq, Tk)
    let keep = mask.keep.map(|keep| keep.broadcast(shape).expect("checked"));
    table.indexed_iter_mut().for_each(|(slot, visible)| *visible = sees(mask, keep, slot));
    Ok(table)
}

/// `visible` for arguments that were checked, beside which there are scores of the same shape.
pub(crate) fn table(mask: &Mask<'_>, shape: (usize, usize, usize, usize)) -> Array4<bool> {
    let keep = mask.keep.map(|keep| keep.broadcast(shape).expect("checked"));
    Array4::from_shape_fn(shape, |slot| sees(mask, keep, slot)) // (B, Hq, Tq, Tk)
}

/// Whether a slot (b, h, i, j) is visible; `keep` is that of the mask, as (B, Hq, Tq, Tk).
pub(crate) fn sees(
    mask: &Mask<'_>,
    keep: Option<ArrayView4<'_, bool>>,
    slot: (usize, usize, usize, usize),
) -> bool {
    // 1. positions: of this query and of this key
    let (b, _, i, key) = slot;
    allows(mask, keep, slot, mask.position(b, i), key as i64)
}

/// `sees` where the query stands at position `p`, and the key at position `j`, whatever its slot is.
pub(crate) fn allows(
    mask: &Mask<'_>,
    keep: Option<ArrayView4<'_, bool>>,
    slot: (usize, usize, usize, usize),
    p: i64,
    j: i64,
) -> bool {
    // 2. causal: nothing after the query
    let not_after = !mask.causal || j <= p;

    // 3. window: nothing too far to the left or to the right
    let (left, right) = mask.window.unwrap_or_default();
    let near = left.is_none_or(|left| p.saturating_sub(steps(left)) <= j)
        && right.is_none_or(|right| j <= p.saturating_add(steps(right)));

    // 4. lengths: nothing beyond the end of the row
    let exists = mask.kv_lengths.is_none_or(|lengths| (slot.3 as i64) < lengths[slot.0]);

    // 5. keep: nothing that the caller excludes
    let kept = keep.is_none_or(|keep| keep[slot]);

    not_after && near && exists && kept
}

/// How far query `i`, at position i + q_offset, stands after key `j`. Saturates.
pub(crate) fn distance(q_offset: i64, i: usize, j: usize) -> i64 {
    q_offset.saturating_add(i as i64).saturating_sub(j as i64).max(-i64::MAX)
}

/// A window's side as a distance between positions.
pub(crate) fn steps(side: usize) -> i64 {
    i64::try_from(side).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use ndarray::{Array1, ArrayD, array};

    use super::*;

    /// The keys that each query of one row and one head sees.
    fn seen(mask: &Mask<'_>, tq: usize, tk: usize) -> Vec<Vec<usize>> {
        let table = visible(mask, (1, 1, tq, tk)).unwrap();
        (0..tq).map(|i| (0..tk).filter(|&j| table[[0, 0, i, j]]).collect()).collect()
    }

    #[test]
    fn causal_is_top_left_unless_told_otherwise() {
        let causal = Mask { causal: true, ..Mask::default() };
        assert_eq!(seen(&causal, 2, 4), [vec![0], vec![0, 1]]); // CausalAlignment
        let shifted = Mask { q_offset: Some(Offset::One(2)), ..causal };
        assert_eq!(seen(&shifted, 2, 4), [vec![0, 1, 2], vec![0, 1, 2, 3]]);
        let before = Mask { q_offset: Some(Offset::One(-2)), ..causal };
        assert_eq!(seen(&before, 4, 2), [vec![], vec![], vec![0], vec![0, 1]]); // FullyMaskedRow
    }

    #[test]
    fn window_counts_the_keys_beside_the_query() {
        let window = Mask { window: Some((Some(1), Some(0))), ..Mask::default() };
        assert_eq!(seen(&window, 4, 4), [vec![0], vec![0, 1], vec![1, 2], vec![2, 3]]); // WindowOffByOne
        let own = Mask { window: Some((Some(0), Some(0))), ..Mask::default() };
        assert_eq!(seen(&own, 2, 3), [vec![0], vec![1]]);
        let right = Mask { window: Some((None, Some(1))), ..Mask::default() };
        assert_eq!(seen(&right, 2, 4), [vec![0, 1], vec![0, 1, 2]]);
        let widest = Mask { window: Some((Some(usize::MAX), Some(usize::MAX))), ..Mask::default() };
        assert_eq!(seen(&widest, 1, 2), [vec![0, 1]]);
    }

    #[test]
    fn rows_have_lengths_and_offsets_of_their_own() {
        let (lengths, offsets) = (array![1_i64, 3], array![0_i64, 2]);
        let mask = Mask {
            causal: true,
            kv_lengths: Some(&lengths),
            q_offset: Some(Offset::PerRow(&offsets)),
            ..Mask::default()
        };
        let table = visible(&mask, (2, 1, 1, 3)).unwrap();
        assert_eq!(table, array![[[[true, false, false]]], [[[true, true, true]]]]);
    }

    #[test]
    fn rank_three_starts_at_the_heads() {
        let keep = array![[[true, false]], [[false, true]]].into_dyn(); // (Hq, Tq, Tk)
        let mask = Mask { keep: Some(&keep), ..Mask::default() };
        let table = visible(&mask, (2, 2, 1, 2)).unwrap();
        assert_eq!(table.index_axis(ndarray::Axis(0), 1), array![[[true, false]], [[false, true]]]);
    }

    #[test]
    fn faults() {
        let code = |mask: &Mask<'_>| visible(mask, (2, 1, 1, 3)).unwrap_err().code();
        let keep = ArrayD::from_elem(vec![2, 1], true);
        assert_eq!(code(&Mask { keep: Some(&keep), ..Mask::default() }), "shape_mismatch");
        let keep = ArrayD::from_elem(vec![1; 5], true);
        assert_eq!(code(&Mask { keep: Some(&keep), ..Mask::default() }), "shape_mismatch");
        let short: Array1<i64> = array![1];
        assert_eq!(code(&Mask { kv_lengths: Some(&short), ..Mask::default() }), "shape_mismatch");
        let offset = Some(Offset::PerRow(&short));
        assert_eq!(code(&Mask { q_offset: offset, ..Mask::default() }), "shape_mismatch");
        let beyond = visible(&Mask::default(), (1, 1, 1 << 25, 1 << 25)).unwrap_err();
        assert_eq!(beyond.code(), "invalid_config");
        for outside in [-1, 4] {
            let lengths = array![0, outside];
            let mask = Mask { kv_lengths: Some(&lengths), ..Mask::default() };
            assert_eq!(code(&mask), "invalid_config");
        }
    }
}
