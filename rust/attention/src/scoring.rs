//! How well a query fits a key: the four classic forms, each before the same softmax.
//!
//! ```text
//! dot       q · k                 general    (q W) · k
//! scaled    (q / sqrt(D)) · k     additive   w_v · tanh(W_q q + W_k k)
//! ```
//!
//! Letters: B batch, Tq and Tk query and key lengths, Dq and Dk sizes of a query and a key, Dv of a
//! value, A of the hidden layer.
//!
//! Sources: Bahdanau et al., "Neural Machine Translation by Jointly Learning to Align and Translate", 2014,
//! appendix A.1.2 (additive); Luong et al., "Effective Approaches to Attention-based Neural Machine
//! Translation", 2015, section 3.1 (dot, general); Vaswani et al., 2017, section 3.2.1 (scaled).

use ndarray::{Array3, ArrayRef1, ArrayRef2, ArrayRef3, s};

use crate::checks::check_scoring;
use crate::errors::Result;
use crate::float::Float;
use crate::mha::linear;
use crate::sdpa::dot;
use crate::softmax::softmax_lse;

/// The form of the score, with its weights, which are (out, in).
#[derive(Debug, Clone, Copy)]
pub enum Scoring<'a, T> {
    /// A hidden layer of both, and a number from it.
    Additive {
        /// (A, Dq)
        w_q: &'a ArrayRef2<T>,
        /// (A, Dk)
        w_k: &'a ArrayRef2<T>,
        /// (A)
        w_v: &'a ArrayRef1<T>,
    },
    /// The dot product; Dq = Dk.
    Dot,
    /// The dot product after a linear map.
    General {
        /// (Dq, Dk)
        w: &'a ArrayRef2<T>,
    },
    /// The dot product over the square root of D = Dq = Dk.
    Scaled,
}

/// Every intermediate of one call.
#[derive(Debug, Clone)]
pub struct ScoringSteps<T> {
    /// (B, Tq, Dv)
    pub output: Array3<T>,
    /// (B, Tq, Tk)
    pub weights: Array3<T>,
    /// (B, Tq, Tk), before masking.
    pub scores: Array3<T>,
}

/// Attention of `q` (B, Tq, Dq) over `k` (B, Tk, Dk) and `v` (B, Tk, Dv) by a form of score: (B, Tq, Dv).
///
/// `kv_lengths`: (B), how many keys of each row exist; `None` = all.
///
/// # Errors
/// `ShapeMismatch`, `InvalidConfig`.
///
/// ```
/// use ndarray::array;
/// use rosetta_attention::{Scoring, scoring};
/// let (q, k) = (array![[[1.0]]], array![[[0.0], [2.0_f64.ln()]]]);
/// let output = scoring(Scoring::Dot, &q, &k, &array![[[3.0], [6.0]]], None)?;
/// assert!((output[[0, 0, 0]] - 5.0).abs() < 1e-12);
/// # Ok::<(), rosetta_attention::AttentionError>(())
/// ```
pub fn scoring<T: Float>(
    form: Scoring<'_, T>,
    q: &ArrayRef3<T>,
    k: &ArrayRef3<T>,
    v: &ArrayRef3<T>,
    kv_lengths: Option<&ArrayRef1<i64>>,
) -> Result<Array3<T>> {
    Ok(scoring_steps(form, q, k, v, kv_lengths)?.output)
}

/// [`scoring`](fn@scoring) with its intermediates; same arguments and errors.
///
/// # Errors
/// `ShapeMismatch`, `InvalidConfig`.
pub fn scoring_steps<T: Float>(
    form: Scoring<'_, T>,
    q: &ArrayRef3<T>,
    k: &ArrayRef3<T>,
    v: &ArrayRef3<T>,
    kv_lengths: Option<&ArrayRef1<i64>>,
) -> Result<ScoringSteps<T>> {
    check_scoring("scoring", &form, (q.dim(), k.dim(), v.dim()), kv_lengths)?;
    let (batch, tq, d) = q.dim();
    let (_, tk, dv) = v.dim();

    // 1. scores: of every query with every key, by the form
    let scores = match form {
        Scoring::Dot => products(q, k),
        Scoring::Scaled => products(&q.mapv(|x| x * T::from_f64(1.0 / (d as f64).sqrt())), k),
        Scoring::General { w } => products(&linear(q, &w.t(), None), k), // q W: (B, Tq, Dk)
        Scoring::Additive { w_q, w_k, w_v } => {
            let (q, k) = (linear(q, w_q, None), linear(k, w_k, None)); // (B, Tq, A), (B, Tk, A)
            Array3::from_shape_fn((batch, tq, tk), |(b, i, j)| {
                let hidden = &q.slice(s![b, i, ..]) + &k.slice(s![b, j, ..]); // (A)
                dot(w_v.view(), hidden.mapv(T::tanh).view())
            })
        }
    }; // (B, Tq, Tk)

    // 2. mask: keys beyond the end of their row are hidden
    let mut logits = scores.clone(); // (B, Tq, Tk)
    for (mut row, &length) in logits.outer_iter_mut().zip(kv_lengths.into_iter().flatten()) {
        row.slice_mut(s![.., length as usize..]).fill(T::neg_infinity());
    }

    // 3. softmax: over the keys
    let (weights, _) = softmax_lse(&logits, None)?; // (B, Tq, Tk)

    // 4. weighted sum: over the values of the visible keys
    let mut output = Array3::zeros((batch, tq, dv)); // (B, Tq, Dv)
    for ((b, i, j), &weight) in weights.indexed_iter() {
        if logits[[b, i, j]] != T::neg_infinity() {
            output.slice_mut(s![b, i, ..]).scaled_add(weight, &v.slice(s![b, j, ..]));
        }
    }
    Ok(ScoringSteps { output, weights, scores })
}

/// The dot product of every query (B, Tq, D) with every key (B, Tk, D): (B, Tq, Tk).
fn products<T: Float>(q: &ArrayRef3<T>, k: &ArrayRef3<T>) -> Array3<T> {
    let (batch, tq, _) = q.dim();
    Array3::from_shape_fn((batch, tq, k.dim().1), |(b, i, j)| {
        dot(q.slice(s![b, i, ..]), k.slice(s![b, j, ..]))
    })
}

#[cfg(test)]
mod tests {
    use ndarray::array;

    use super::*;

    fn scores(form: Scoring<'_, f64>, q: Array3<f64>, k: Array3<f64>) -> Vec<f64> {
        let v = Array3::zeros((1, k.dim().1, 1));
        scoring_steps(form, &q, &k, &v, None).unwrap().scores.into_raw_vec_and_offset().0
    }

    #[test]
    fn forms() {
        let (q, k) = (array![[[1.0, 2.0, 3.0, 4.0]]], array![[[1.0, 0.0, -1.0, 2.0]]]);
        assert_eq!(scores(Scoring::Dot, q.clone(), k.clone()), [6.0]);
        assert_eq!(scores(Scoring::Scaled, q, k), [3.0]);
        let w = array![[1.0, 10.0, 100.0], [2.0, 20.0, 200.0]]; // (Dq 2, Dk 3)
        let (q, k) = (array![[[1.0, -1.0]]], array![[[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]]);
        assert_eq!(scores(Scoring::General { w: &w }, q.clone(), k.clone()), [-11.0, -100.0]);
        let (w_q, w_k) = (array![[1.0, 0.0], [0.0, 1.0]], array![[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]);
        let form = Scoring::Additive { w_q: &w_q, w_k: &w_k, w_v: &array![1.0, 2.0] };
        let want = [2.0_f64.tanh() - 2.0 * 1.0_f64.tanh(), 1.0_f64.tanh()];
        for (got, want) in scores(form, q, k).into_iter().zip(want) {
            assert!((got - want).abs() < 1e-15);
        }
    }

    #[test]
    fn hidden_keys_are_not_read() {
        let nan = f32::NAN;
        let (q, k) = (array![[[0.0_f32]], [[0.0]]], array![[[1.0], [nan]], [[nan], [nan]]]);
        let lengths = array![1, 0];
        let steps = scoring_steps(Scoring::Dot, &q, &k, &k, Some(&lengths)).unwrap();
        assert_eq!(steps.output, array![[[1.0]], [[0.0]]]);
        assert_eq!(steps.weights, array![[[1.0, 0.0]], [[0.0, 0.0]]]);
    }

    #[test]
    fn sizes_and_faults() {
        for (batch, tq, tk, dv) in [(0, 2, 3, 4), (2, 0, 3, 4), (2, 2, 0, 4), (2, 2, 3, 0)] {
            let (q, k) = (Array3::<f32>::ones((batch, tq, 5)), Array3::ones((batch, tk, 5)));
            let output =
                scoring(Scoring::Scaled, &q, &k, &Array3::ones((batch, tk, dv)), None).unwrap();
            assert_eq!(output.dim(), (batch, tq, dv));
        }
        let x = Array3::<f32>::zeros((1, 2, 3));
        let narrow = Array3::zeros((1, 2, 4));
        let code = |form, k: &Array3<f32>, v: &Array3<f32>, lengths: Option<&ArrayRef1<i64>>| {
            scoring(form, &x, k, v, lengths).unwrap_err().code()
        };
        assert_eq!(code(Scoring::Dot, &narrow, &x, None), "shape_mismatch");
        assert_eq!(code(Scoring::Dot, &x, &Array3::zeros((1, 3, 3)), None), "shape_mismatch");
        assert_eq!(code(Scoring::Scaled, &Array3::zeros((2, 2, 3)), &x, None), "shape_mismatch");
        let w = ndarray::Array2::zeros((3, 3));
        assert_eq!(code(Scoring::General { w: &w }, &narrow, &x, None), "shape_mismatch");
        let w_k = ndarray::Array2::zeros((3, 0));
        let form = Scoring::General { w: &w_k };
        assert_eq!(code(form, &Array3::zeros((1, 2, 0)), &x, None), "shape_mismatch");
        let form = Scoring::Additive { w_q: &w, w_k: &w, w_v: &array![0.0] };
        assert_eq!(code(form, &x, &x, None), "shape_mismatch");
        assert_eq!(code(Scoring::Dot, &x, &x, Some(&array![3])), "invalid_config");
    }
}
