//! Softmax over the last axis, with its log-sum-exp.
//!
//! ```text
//! weights_j = exp(x_j - lse),   lse = log sum_j exp(x_j)
//! ```
//!
//! A slot of -inf is *hidden*: its weight is exactly 0. A row with nothing but hidden slots has
//! weights 0 and lse -inf, never NaN: an empty sum is 0, and only then does a later merge of
//! partial results ignore the row. NaN and +inf make their row NaN.
//!
//! Source: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018, section 2
//! ("safe softmax").

use ndarray::{
    Array, ArrayRef, ArrayRefD, ArrayView1, ArrayViewMut1, Axis, Dimension, RemoveAxis, Zip, arr0,
};

use crate::checks::check_softmax;
use crate::errors::Result;
use crate::float::Float;

/// Softmax over the last axis of `x` (..., n), n >= 0; same shape.
///
/// # Errors
/// `ShapeMismatch` for rank 0.
///
/// ```
/// let weights = rosetta_attention::softmax(&ndarray::array![0.0, 2.0_f64.ln()])?;
/// assert!((weights[1] - 2.0 / 3.0).abs() < 1e-15);
/// # Ok::<(), rosetta_attention::AttentionError>(())
/// ```
pub fn softmax<T: Float, D: RemoveAxis>(x: &ArrayRef<T, D>) -> Result<Array<T, D>> {
    Ok(softmax_lse(x, None)?.0)
}

/// Weights (..., n) and log-sum-exp (...).
pub type WeightsLse<T, D> = (Array<T, D>, Array<T, <D as Dimension>::Smaller>);

/// Softmax and log-sum-exp of the last axis: weights (..., n) and lse (...), natural logarithm.
///
/// `sink`, broadcastable to (...), is a logit that joins the sum of its row and has no slot.
///
/// # Errors
/// `ShapeMismatch` for rank 0 and for a sink that does not broadcast.
pub fn softmax_lse<T: Float, D: RemoveAxis>(
    x: &ArrayRef<T, D>,
    sink: Option<&ArrayRefD<T>>,
) -> Result<WeightsLse<T, D>> {
    check_softmax(x.shape(), sink.map(|sink| sink.shape()))?;
    let none = arr0(T::neg_infinity()).into_dyn(); // exp(-inf) = 0 adds nothing to a sum
    let sink = sink.unwrap_or(&none);

    let mut weights = Array::zeros(x.raw_dim()); // (..., n)
    let mut lse = Array::zeros(x.raw_dim().remove_axis(Axis(x.ndim() - 1))); // (...)
    let sink = sink.broadcast(lse.raw_dim()).expect("checked"); // (...)
    Zip::from(x.rows()).and(weights.rows_mut()).and(&mut lse).and(sink).for_each(
        |x, weights, lse, &sink| {
            *lse = softmax_row(x, sink, weights);
        },
    );
    Ok((weights, lse))
}

/// One row: writes the weights (n) and returns the log-sum-exp.
fn softmax_row<T: Float>(x: ArrayView1<'_, T>, sink: T, mut weights: ArrayViewMut1<'_, T>) -> T {
    // 1. maximum: the sink takes part; a row with nothing in it is shifted by 0, since -inf - -inf is NaN
    let top = x.iter().fold(sink, |top, &x| top.maximum(x));
    let shift = if top == T::neg_infinity() { T::zero() } else { top };

    // 2. exponentials: at most 1, so they cannot overflow
    weights.assign(&x);
    weights.mapv_inplace(|x| (x - shift).exp()); // (n)

    // 3. sum: at least 1, except in a row with nothing in it; in order, so that hidden slots change no bit
    let total = weights.iter().fold(T::zero(), |total, &e| total + e) + (sink - shift).exp();
    let total = if total == T::zero() { T::one() } else { total };

    // 4. normalise: by selection, so that a hidden slot is 0 even in a row of NaN
    Zip::from(&mut weights).and(x).for_each(|weight, &x| {
        *weight = if x == T::neg_infinity() { T::zero() } else { *weight / total };
    });

    // 5. log-sum-exp: -inf for a row with nothing in it
    top + total.ln()
}

#[cfg(test)]
mod tests {
    use ndarray::{Array2, Array3, array};

    use super::*;

    const INF: f64 = f64::INFINITY;

    #[test]
    fn two_slots() {
        let (weights, lse) = softmax_lse(&array![0.0, 2.0_f64.ln()], None).unwrap();
        let room = 4.0 * f64::EPSILON; // 8 roundings of numbers up to 1: two ln, exp, two sums, a quotient
        assert!((weights[0] - 1.0 / 3.0).abs() <= room);
        assert!((lse[()] - 3.0_f64.ln()).abs() <= room);
    }

    #[test]
    fn hidden_slots_weigh_nothing() {
        let x = array![[-INF, -INF], [-INF, 7.0], [-INF, f64::NAN], [-INF, INF]];
        let (weights, lse) = softmax_lse(&x, None).unwrap();
        assert_eq!(weights.column(0).to_vec(), [0.0; 4]);
        assert_eq!(weights.slice(ndarray::s![..2, 1]).to_vec(), [0.0, 1.0]);
        assert_eq!((lse[0], lse[1]), (-INF, 7.0));
        assert!(
            weights[[2, 1]].is_nan()
                && weights[[3, 1]].is_nan()
                && lse[2].is_nan()
                && lse[3].is_nan()
        );
    }

    #[test]
    fn huge_logits_neither_overflow_nor_vanish() {
        for top in [-1e5_f64, 1e5] {
            let weights = softmax(&array![top, top + 2.0_f64.ln()]).unwrap();
            // top + ln 2 is off by 2^-37, the weight by 2/9 of that, its slope; Overflow: 0/0 with a maximum from 0 on.
            assert!((weights[1] - 2.0 / 3.0).abs() <= 0.25 * 2.0_f64.powi(-37));
        }
    }

    #[test]
    fn a_sink_joins_the_sum() {
        let sink = array![0.0, 5.0].into_dyn();
        let x = array![[0.0, 0.0], [-INF, -INF]];
        let (weights, lse) = softmax_lse(&x, Some(&sink)).unwrap();
        let room = 4.0 * f64::EPSILON; // as for two slots
        assert!((weights[[0, 1]] - 1.0 / 3.0).abs() <= room);
        assert!((lse[0] - 3.0_f64.ln()).abs() <= room);
        assert_eq!((weights[[1, 0]], lse[1]), (0.0, 5.0));
    }

    #[test]
    fn empty_sizes() {
        let (weights, lse) = softmax_lse(&Array2::<f32>::zeros((3, 0)), None).unwrap();
        assert_eq!((weights.dim(), lse.to_vec()), ((3, 0), vec![f32::NEG_INFINITY; 3]));
        let (weights, lse) = softmax_lse(&Array3::<f32>::zeros((0, 2, 4)), None).unwrap();
        assert_eq!((weights.dim(), lse.dim()), ((0, 2, 4), (0, 2)));
    }

    #[test]
    fn faults() {
        let code = softmax(&arr0(1.0_f32).into_dyn()).unwrap_err().code();
        assert_eq!(code, "shape_mismatch");
        let sink = array![0.0, 0.0, 0.0].into_dyn();
        let error = softmax_lse(&Array2::<f64>::zeros((2, 2)), Some(&sink)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "softmax: sink: expected a shape that broadcasts to [2], got [3]"
        );
    }
}
