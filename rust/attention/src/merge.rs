//! Two partial results of attention over different keys, made one.
//!
//! ```text
//! output = (a w_a + b w_b) / (w_a + w_b),   lse = ln(w_a + w_b),   w = e^lse
//! ```
//!
//! Exact, whatever the parts: the weights of a part are relative to its own log-sum-exp.
//!
//! Letters: Dv head size of the values.
//!
//! Source: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018, section 3 (the
//! operator that joins two parts); Ye et al., "Cascade Inference", FlashInfer, 2024 (its use for outputs).

use ndarray::{Array, ArrayRef, ArrayView1, ArrayViewMut1, Dimension, RemoveAxis, Zip};

use crate::checks::check_merge;
use crate::errors::Result;
use crate::float::Float;

/// Outputs (…, Dv) and their log-sum-exp (…).
pub type OutputLse<T, D> = (Array<T, D>, Array<T, <D as Dimension>::Smaller>);

/// The result over the keys of both parts, from output (…, Dv) and log-sum-exp (…) of each.
///
/// # Errors
/// `ShapeMismatch`.
///
/// ```
/// use ndarray::array;
/// use rosetta_attention::merge;
/// let (one, two) = (array![0.0], array![2.0_f64.ln()]); // one key, and two of the same score
/// let (output, lse) = merge(&array![[9.0]], &one, &array![[3.0]], &two)?;
/// assert!((output[[0, 0]] - 5.0).abs() < 1e-15 && (lse[0] - 3.0_f64.ln()).abs() < 1e-15);
/// # Ok::<(), rosetta_attention::AttentionError>(())
/// ```
pub fn merge<T: Float, D: RemoveAxis>(
    a_output: &ArrayRef<T, D>,
    a_lse: &ArrayRef<T, D::Smaller>,
    b_output: &ArrayRef<T, D>,
    b_lse: &ArrayRef<T, D::Smaller>,
) -> Result<OutputLse<T, D>> {
    check_merge("merge", a_output.shape(), a_lse.shape(), b_output.shape(), b_lse.shape())?;
    let mut output = Array::zeros(a_output.raw_dim()); // (…, Dv)
    let mut lse = Array::zeros(a_lse.raw_dim()); // (…)
    Zip::from(a_output.rows())
        .and(a_lse)
        .and(b_output.rows())
        .and(b_lse)
        .and(output.rows_mut())
        .and(&mut lse)
        .for_each(|a, &a_lse, b, &b_lse, row, lse| *lse = merge_row((a, a_lse), (b, b_lse), row));
    Ok((output, lse))
}

/// One row: writes the output (Dv) and returns the log-sum-exp.
fn merge_row<T: Float>(
    (a, a_lse): (ArrayView1<'_, T>, T),
    (b, b_lse): (ArrayView1<'_, T>, T),
    mut output: ArrayViewMut1<'_, T>,
) -> T {
    // 1. maximum: by selection, a part without any key is not read
    let none = T::neg_infinity();
    if a_lse == none && b_lse == none {
        return none; // the output stays 0
    }
    for (part, part_lse, other_lse) in [(a, a_lse, b_lse), (b, b_lse, a_lse)] {
        if other_lse == none && part_lse.is_finite() {
            output.assign(&part);
            return part_lse;
        }
    }
    let top = a_lse.maximum(b_lse);

    // 2. weights: at most 1, so they cannot overflow
    let (w_a, w_b) = ((a_lse - top).exp(), (b_lse - top).exp());
    let total = w_a + w_b;

    // 3. output: the two in proportion to their weights
    Zip::from(&mut output).and(a).and(b).for_each(|y, &a, &b| {
        *y = a * (w_a / total) + b * (w_b / total);
    }); // (Dv)

    // 4. log-sum-exp: of both
    top + total.ln()
}

#[cfg(test)]
mod tests {
    use ndarray::{Array1, Array2, array};

    use super::*;

    const INF: f64 = f64::INFINITY;
    const NAN: f64 = f64::NAN;

    fn merged(a: (f64, f64), b: (f64, f64)) -> (f64, f64) {
        let (output, lse) =
            merge(&array![a.0], &ndarray::arr0(a.1), &array![b.0], &ndarray::arr0(b.1)).unwrap();
        (output[0], lse[()])
    }

    #[test]
    fn an_empty_part_is_not_read() {
        assert_eq!(merged((NAN, -INF), (0.1, 0.3)), (0.1, 0.3));
        assert_eq!(merged((0.1, 0.3), (INF, -INF)), (0.1, 0.3));
        assert_eq!(merged((NAN, -INF), (NAN, -INF)), (0.0, -INF));
    }

    #[test]
    fn no_weight_overflows() {
        assert_eq!(merged((1.0, 1e5), (9.0, -1e5)), (1.0, 1e5));
        assert_eq!(merged((1.0, -1e5), (3.0, -1e5)), (2.0, -1e5 + 2.0_f64.ln()));
        assert_eq!(merged((f64::MAX, 0.0), (f64::MAX, 0.0)).0, f64::MAX);
    }

    #[test]
    fn nan_and_inf_make_their_row_nan() {
        for bad in [NAN, INF] {
            for other in [0.0, -INF, INF, NAN] {
                for (output, lse) in
                    [merged((1.0, bad), (2.0, other)), merged((1.0, other), (2.0, bad))]
                {
                    assert!(output.is_nan() && lse.is_nan(), "{bad} {other}");
                }
            }
        }
    }

    #[test]
    fn sizes_and_faults() {
        let merged = |rows: usize, n: usize| {
            let (x, lse) = (Array2::<f32>::ones((rows, n)), Array1::ones(rows));
            merge(&x, &lse, &x, &lse).unwrap()
        };
        assert_eq!(merged(0, 3).0.dim(), (0, 3));
        assert_eq!(merged(3, 0).1, Array1::from_elem(3, 1.0 + 2.0_f32.ln()));
        let (x, lse) = (Array2::<f32>::ones((2, 3)), Array1::ones(2));
        let code = |other: &Array2<f32>, other_lse: &Array1<f32>| {
            merge(&x, &lse, other, other_lse).unwrap_err().code()
        };
        assert_eq!(code(&Array2::ones((2, 4)), &lse), "shape_mismatch");
        assert_eq!(code(&x, &Array1::ones(3)), "shape_mismatch");
    }
}
