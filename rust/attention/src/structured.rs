//! Structured self-attention: a few learned queries sum up a sequence, each looking elsewhere.
//!
//! ```text
//! A = softmax(W_2 tanh(W_1 Hᵀ)),   output = A H,   penalty = |A Aᵀ - I|² (sum of the squares)
//! ```
//!
//! Letters: B batch, T length, C width of the sequence, A width of the hidden layer, R rows of the
//! summary.
//!
//! Source: Lin et al., "A Structured Self-Attentive Sentence Embedding", 2017, section 2.

use ndarray::{Array1, Array2, Array3, ArrayRef1, ArrayRef2, ArrayRef3, s};

use crate::checks::check_structured;
use crate::errors::Result;
use crate::float::Float;
use crate::mha::linear;
use crate::softmax::softmax_lse;

/// Every result of one call.
#[derive(Debug, Clone)]
pub struct StructuredSteps<T> {
    /// (B, R, C)
    pub output: Array3<T>,
    /// (B, R, T)
    pub weights: Array3<T>,
    /// (B): 0 when the rows of the weights are single and different positions.
    pub penalty: Array1<T>,
}

/// The summary (B, R, C) of `h` (B, T, C) with weights `w_1` (A, C) and `w_2` (R, A).
///
/// `kv_lengths`: (B), how many positions of each row exist; `None` = all.
///
/// # Errors
/// `ShapeMismatch`, `InvalidConfig`.
///
/// ```
/// use ndarray::{Array2, array};
/// use rosetta_attention::structured;
/// // Weights of 0 look everywhere alike: the summary is the mean.
/// let h = array![[[1.0, 4.0], [3.0, 8.0]]];
/// let output = structured(&h, &Array2::zeros((5, 2)), &Array2::zeros((1, 5)), None)?;
/// assert_eq!(output, array![[[2.0, 6.0]]]);
/// # Ok::<(), rosetta_attention::AttentionError>(())
/// ```
pub fn structured<T: Float>(
    h: &ArrayRef3<T>,
    w_1: &ArrayRef2<T>,
    w_2: &ArrayRef2<T>,
    kv_lengths: Option<&ArrayRef1<i64>>,
) -> Result<Array3<T>> {
    Ok(structured_steps(h, w_1, w_2, kv_lengths)?.output)
}

/// `structured` with its weights and their penalty; same arguments and errors.
///
/// # Errors
/// `ShapeMismatch`, `InvalidConfig`.
pub fn structured_steps<T: Float>(
    h: &ArrayRef3<T>,
    w_1: &ArrayRef2<T>,
    w_2: &ArrayRef2<T>,
    kv_lengths: Option<&ArrayRef1<i64>>,
) -> Result<StructuredSteps<T>> {
    check_structured("structured", h.dim(), w_1.dim(), w_2.dim(), kv_lengths)?;
    let ((batch, len, width), rows) = (h.dim(), w_2.nrows());
    let length = |b: usize| kv_lengths.map_or(len, |lengths| lengths[b] as usize);

    // 1. hidden: each position on its own
    let hidden = linear(h, w_1, None).mapv(T::tanh); // (B, T, A)

    // 2. scores: of every row of the summary; what does not exist is hidden by selection
    let mut scores = linear(&hidden, w_2, None).permuted_axes([0, 2, 1]); // (B, R, T)
    for (b, mut scores) in scores.outer_iter_mut().enumerate() {
        scores.slice_mut(s![.., length(b)..]).fill(T::neg_infinity());
    }

    // 3. softmax: over the positions
    let (weights, _) = softmax_lse(&scores, None)?; // (B, R, T)

    // 4. weighted sum: of the positions that exist
    let mut output = Array3::zeros((batch, rows, width)); // (B, R, C)
    for ((b, r, t), &weight) in weights.indexed_iter() {
        if scores[[b, r, t]] != T::neg_infinity() {
            output.slice_mut(s![b, r, ..]).scaled_add(weight, &h.slice(s![b, t, ..])); // (C)
        }
    }

    // 5. penalty: how far the rows are from looking at one place each, and at different ones
    let squares = weights.outer_iter().map(|rows| {
        let overlap = rows.dot(&rows.t()) - Array2::eye(rows.nrows()); // (R, R)
        overlap.iter().fold(T::zero(), |sum, &x| sum + x * x)
    });
    let penalty = squares.collect(); // (B)
    Ok(StructuredSteps { output, penalty, weights })
}

#[cfg(test)]
mod tests {
    use ndarray::array;

    use super::*;

    /// Scores of +-1e3 at will: tanh saturates, and the rows of W_2 choose.
    fn looking_apart() -> (Array3<f64>, Array2<f64>, Array2<f64>) {
        (
            array![[[1.0, 0.0], [0.0, 1.0]]],
            array![[1e3, 0.0], [0.0, 1e3]],
            array![[1e3, 0.0], [0.0, 1e3]],
        )
    }

    #[test]
    fn rows_that_look_apart_cost_nothing() {
        let (h, w_1, w_2) = looking_apart();
        let steps = structured_steps(&h, &w_1, &w_2, None).unwrap();
        assert_eq!(steps.weights, h);
        assert_eq!((steps.output, steps.penalty), (h, array![0.0]));
        let same = array![[1e3, 0.0], [1e3, 0.0]];
        let steps = structured_steps(&looking_apart().0, &w_1, &same, None).unwrap();
        assert_eq!(steps.penalty, array![2.0]); // both rows at one place: A Aᵀ - I has two ones
    }

    #[test]
    fn what_does_not_exist_is_not_read() {
        let (mut h, w_1, w_2) = looking_apart();
        h.slice_mut(s![0, 1, ..]).fill(f64::NAN);
        let steps = structured_steps(&h, &w_1, &w_2, Some(&array![1])).unwrap();
        assert_eq!(steps.weights, array![[[1.0, 0.0], [1.0, 0.0]]]);
        assert_eq!(steps.output, array![[[1.0, 0.0], [1.0, 0.0]]]);
        let steps = structured_steps(&h, &w_1, &w_2, Some(&array![0])).unwrap();
        assert_eq!((steps.output, steps.penalty), (Array3::zeros((1, 2, 2)), array![2.0]));
    }

    #[test]
    fn empty_sizes_and_faults() {
        let (w_1, w_2) = (Array2::<f32>::zeros((3, 2)), Array2::zeros((4, 3)));
        for (batch, len) in [(0, 2), (2, 0)] {
            let steps =
                structured_steps(&Array3::zeros((batch, len, 2)), &w_1, &w_2, None).unwrap();
            assert_eq!(steps.output, Array3::<f32>::zeros((batch, 4, 2)));
            assert_eq!((steps.weights.dim(), steps.penalty.len()), ((batch, 4, len), batch));
        }
        let h = Array3::zeros((1, 2, 2));
        let code = |w_1: &Array2<f32>, w_2: &Array2<f32>, lengths: &[i64]| {
            let lengths = Array1::from(lengths.to_vec());
            structured(&h, w_1, w_2, Some(&lengths)).unwrap_err().code()
        };
        assert_eq!(code(&w_2, &w_2, &[2]), "shape_mismatch");
        assert_eq!(code(&w_1, &w_1, &[2]), "shape_mismatch");
        assert_eq!(code(&w_1, &w_2, &[3]), "invalid_config");
        assert_eq!(code(&w_1, &w_2, &[1, 1]), "shape_mismatch");
    }
}
