//! T5's relative position bias: a learned number for each head and range of distances.
//!
//! ```text
//! output = scores + table[bucket(j - p), h],   p = i + q_offset
//! ```
//!
//! Short distances have a bucket each, longer ones share them, the wider the farther; beyond
//! `max_distance` all share the last.
//!
//! Letters: B batch, H heads, Tq and Tk query and key lengths.
//!
//! Source: Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text
//! Transformer", 2019, section 2.1.

use ndarray::{Array2, Array4, ArrayRef2, ArrayRef4};

use crate::checks::check_relative_bias;
use crate::errors::Result;
use crate::float::Float;
use crate::masks::distance;

/// How distances become buckets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RelativeBias {
    /// Position of query 0.
    pub q_offset: i64,
    /// Whether keys after the query have buckets of their own, half of all; else they are at distance 0.
    pub bidirectional: bool,
    /// From where on all distances are in the last bucket.
    pub max_distance: i64,
}

impl Default for RelativeBias {
    fn default() -> Self {
        Self { q_offset: 0, bidirectional: true, max_distance: 128 }
    }
}

/// The output of one call and the buckets that it looked up.
#[derive(Debug, Clone)]
pub struct RelativeBiasSteps<T> {
    /// (B, H, Tq, Tk)
    pub output: Array4<T>,
    /// (Tq, Tk)
    pub buckets: Array2<i64>,
}

/// `scores` (B, H, Tq, Tk) with the biases of `table` (buckets, H); same shape.
///
/// # Errors
/// `ShapeMismatch`, `InvalidConfig`.
///
/// ```
/// use ndarray::{Array4, array};
/// use rosetta_attention::{RelativeBias, relative_bias};
/// let causal = RelativeBias { bidirectional: false, q_offset: 2, max_distance: 4 };
/// let table = array![[0.5], [3.0]]; // its own position and those after it, then the rest
/// let output = relative_bias(&Array4::<f32>::zeros((1, 1, 1, 4)), &table, &causal)?;
/// assert_eq!(output, array![[[[3.0, 3.0, 0.5, 0.5]]]]);
/// # Ok::<(), rosetta_attention::AttentionError>(())
/// ```
pub fn relative_bias<T: Float>(
    scores: &ArrayRef4<T>,
    table: &ArrayRef2<T>,
    options: &RelativeBias,
) -> Result<Array4<T>> {
    Ok(relative_bias_steps(scores, table, options)?.output)
}

/// [`relative_bias`](fn@relative_bias) with its buckets; same arguments and errors.
///
/// # Errors
/// `ShapeMismatch`, `InvalidConfig`.
pub fn relative_bias_steps<T: Float>(
    scores: &ArrayRef4<T>,
    table: &ArrayRef2<T>,
    options: &RelativeBias,
) -> Result<RelativeBiasSteps<T>> {
    check_relative_bias("relative_bias", scores.dim(), table.dim(), options)?;
    let (_, _, tq, tk) = scores.dim();

    // 1. distances: of each key from each query, negative before it
    let distances = Array2::from_shape_fn((tq, tk), |(i, j)| -distance(options.q_offset, i, j)); // (Tq, Tk)

    // 2. buckets: linear at first, then logarithmic
    let buckets = distances.mapv(|r| options.bucket(r, table.nrows() as i64)); // (Tq, Tk)

    // 3. add: each head its own column of the table, the same in every row of the batch
    let mut output = scores.to_owned(); // (B, H, Tq, Tk)
    for ((_, h, i, j), score) in output.indexed_iter_mut() {
        *score += table[[buckets[[i, j]] as usize, h]];
    }
    Ok(RelativeBiasSteps { output, buckets })
}

impl RelativeBias {
    /// The bucket of a key that stands `r` after its query, of `all` buckets.
    fn bucket(&self, r: i64, all: i64) -> i64 {
        let (n, first, d) = match self.bidirectional {
            true => (all / 2, if r > 0 { all / 2 } else { 0 }, r.saturating_abs()),
            false => (all, 0, r.saturating_neg().max(0)),
        };
        let exact = n / 2; // e
        if d < exact {
            return first + d;
        }
        let share = (d as f64 / exact as f64).ln() / (self.max_distance as f64 / exact as f64).ln();
        let beyond = (share * (n - exact) as f64 + 1e-9).floor() as i64; // whole quotients stay whole
        first + (exact.saturating_add(beyond)).min(n - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_buckets() {
        // 32 buckets, 128: exact up to 7, then 8, 8·16^(1/8), …, for both sides.
        let options = RelativeBias::default();
        let both = |r| options.bucket(r, 32);
        assert_eq!(
            [0, -1, -7, -8, -11, -12, -127, -128, -9999].map(both),
            [0, 1, 7, 8, 8, 9, 15, 15, 15]
        );
        assert_eq!([1, 7, 8, 128].map(both), [17, 23, 24, 31]);
        let before = RelativeBias { bidirectional: false, ..options };
        let one = |r| before.bucket(r, 32);
        assert_eq!([5, 0, -15, -16, -127, -128].map(one), [0, 0, 15, 16, 31, 31]);
        // d/e = 4, max/e = 16: exactly half of the logarithmic buckets
        let whole = RelativeBias { max_distance: 64, ..before };
        assert_eq!(whole.bucket(-16, 8), 6);
        assert_eq!([i64::MIN, i64::MAX].map(both), [15, 31]);
    }

    #[test]
    fn sizes_and_faults() {
        for dim in [(0, 2, 3, 4), (2, 0, 3, 4), (2, 2, 0, 4), (2, 2, 3, 0)] {
            let table = Array2::<f64>::ones((4, dim.1));
            let scores = Array4::zeros(dim);
            let output = relative_bias(&scores, &table, &RelativeBias::default()).unwrap();
            assert_eq!(output, Array4::<f64>::ones(dim));
        }
        let scores = Array4::<f32>::zeros((1, 2, 3, 3));
        let code = |table: (usize, usize), options: &RelativeBias| {
            relative_bias(&scores, &Array2::zeros(table), options).unwrap_err().code()
        };
        let (both, before) =
            (RelativeBias::default(), RelativeBias { bidirectional: false, ..Default::default() });
        assert_eq!(code((8, 3), &both), "shape_mismatch");
        assert_eq!(code((5, 2), &both), "shape_mismatch");
        assert_eq!(code((2, 2), &both), "shape_mismatch");
        assert_eq!(code((1, 2), &before), "shape_mismatch");
        assert_eq!(code((8, 2), &RelativeBias { max_distance: 2, ..both }), "invalid_config");
        assert_eq!(code((8, 2), &RelativeBias { max_distance: 4, ..before }), "invalid_config");
    }
}
