//! New positions written into a cache of a fixed length, each row at its own index.
//!
//! ```text
//! output[b, …, (index_b + t) mod L, :] = update[b, …, t, :]      (mod L only in a circular cache)
//! ```
//!
//! Letters: B batch, L length of the cache, T new positions, n size of the last axis.
//!
//! Source: ONNX TensorScatter, opset 24.

use ndarray::{Array, ArrayRef, ArrayRef1, Axis, Dimension, Slice};

use crate::checks::check_cache_write;
use crate::errors::Result;

/// A copy of `cache` (B, …, L, n) with `update` (B, …, T, n) at `write_indices` (B), `None` = 0.
///
/// `circular`: an index is taken modulo L, and an update that reaches the end goes on at the start.
///
/// # Errors
/// `ShapeMismatch`, `InvalidConfig` for a negative index, `CapacityExceeded` for an update that does not fit.
///
/// ```
/// use ndarray::array;
/// use rosetta_attention::cache_write;
/// let (cache, update) = (array![[[1], [2], [3]]], array![[[8], [9]]]); // L 3, T 2
/// assert_eq!(cache_write(&cache, &update, Some(&array![1]), false)?, array![[[1], [8], [9]]]);
/// assert_eq!(cache_write(&cache, &update, Some(&array![2]), true)?, array![[[9], [2], [8]]]);
/// # Ok::<(), rosetta_attention::AttentionError>(())
/// ```
pub fn cache_write<S: Clone, D: Dimension>(
    cache: &ArrayRef<S, D>,
    update: &ArrayRef<S, D>,
    write_indices: Option<&ArrayRef1<i64>>,
    circular: bool,
) -> Result<Array<S, D>> {
    check_cache_write(cache.shape(), update.shape(), write_indices, circular)?;
    let along = cache.ndim() - 2; // the axis of positions
    let (length, new) = (cache.len_of(Axis(along)), update.len_of(Axis(along))); // L, T
    let mut output = cache.to_owned(); // (B, …, L, n)
    for b in 0..cache.len_of(Axis(0)) {
        for t in 0..new {
            // 1. positions: on from the index of the row, in a circular cache round its end
            let position = write_indices.map_or(0, |indices| indices[b] as usize);
            let position = if circular { (position % length + t) % length } else { position + t };

            // 2. write: one position of one row
            let one = |at| {
                move |axis: usize| match axis {
                    0 => Slice::from(b..b + 1),
                    axis if axis == along => Slice::from(at..at + 1),
                    _ => Slice::from(..),
                }
            };
            let (from, to) = (one(t), one(position));
            let update = update.slice_each_axis(|axis| from(axis.axis.index())); // (1, …, 1, n)
            output.slice_each_axis_mut(|axis| to(axis.axis.index())).assign(&update);
        }
    }
    Ok(output)
}

#[cfg(test)]
mod tests {
    use ndarray::{Array3, Array4, array, s};

    use super::*;

    #[test]
    fn rows_have_indices_of_their_own() {
        let cache = Array4::<f32>::zeros((2, 3, 4, 5));
        let update = Array4::ones((2, 3, 2, 5));
        let output = cache_write(&cache, &update, Some(&array![0, 2]), false).unwrap();
        assert!(output.slice(s![0, .., ..2, ..]).iter().all(|&x| x == 1.0));
        assert!(output.slice(s![1, .., 2.., ..]).iter().all(|&x| x == 1.0));
        assert_eq!(output.sum(), update.sum());
        assert_eq!(
            cache_write(&cache, &update, None, false).unwrap().slice(s![1, 0, .., 0]).to_vec(),
            [1.0, 1.0, 0.0, 0.0]
        );
    }

    #[test]
    fn a_circular_index_may_lie_beyond_the_end() {
        let (cache, update) = (array![[[1], [2], [3]]], array![[[7], [8], [9]]]);
        let output = cache_write(&cache, &update, Some(&array![i64::MAX]), true).unwrap();
        assert_eq!(i64::MAX % 3, 1);
        assert_eq!(output, array![[[9], [7], [8]]]);
    }

    #[test]
    fn nothing_to_write() {
        let (cache, none) = (Array3::<f64>::ones((2, 3, 1)), Array3::zeros((2, 0, 1)));
        assert_eq!(cache_write(&cache, &none, Some(&array![3, 0]), false).unwrap(), cache);
        let empty = Array3::<f64>::ones((2, 0, 1));
        assert_eq!(cache_write(&empty, &none, Some(&array![5, 0]), true).unwrap(), empty);
    }

    #[test]
    fn faults() {
        let cache = Array3::<f32>::zeros((2, 3, 1));
        let code = |update: Array3<f32>, indices: Option<ndarray::Array1<i64>>, circular| {
            cache_write(&cache, &update, indices.as_deref(), circular).unwrap_err().code()
        };
        let two = || Array3::zeros((2, 2, 1));
        assert_eq!(code(two(), Some(array![0, 2]), false), "capacity_exceeded");
        assert_eq!(code(two(), Some(array![0, i64::MAX]), false), "capacity_exceeded");
        assert_eq!(code(Array3::zeros((2, 4, 1)), None, true), "capacity_exceeded");
        assert_eq!(code(two(), Some(array![0, -1]), true), "invalid_config");
        assert_eq!(code(two(), Some(array![0]), false), "shape_mismatch");
        assert_eq!(code(Array3::zeros((2, 2, 2)), None, false), "shape_mismatch");
        let flat = ndarray::Array2::<f32>::zeros((2, 2));
        assert_eq!(cache_write(&flat, &flat, None, false).unwrap_err().code(), "shape_mismatch");
    }
}
