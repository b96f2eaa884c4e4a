//! RMS normalisation: a vector divided by its root mean square.
//!
//! ```text
//! output = x / sqrt(mean(x²) + eps) · weight
//! ```
//!
//! Letters: n size of the last axis.
//!
//! Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019, section 4.

use ndarray::{Array, ArrayRef, ArrayRef1, RemoveAxis};

use crate::checks::check_rms_norm;
use crate::errors::Result;
use crate::float::Float;

/// The RMS norm over the last axis of `x` (..., n), n >= 1; same shape.
///
/// `weight`: (n), `None` = ones. `eps`: >= 0, added to the mean square.
///
/// # Errors
/// `ShapeMismatch`, `InvalidConfig`.
///
/// ```
/// use ndarray::array;
/// use rosetta_attention::rms_norm;
/// // Mean square 4: the root is 2.
/// let output = rms_norm(&array![2.0, -2.0], Some(&array![1.0, 10.0]), 0.0)?;
/// assert_eq!(output, array![1.0, -10.0]);
/// # Ok::<(), rosetta_attention::AttentionError>(())
/// ```
pub fn rms_norm<T: Float, D: RemoveAxis>(
    x: &ArrayRef<T, D>,
    weight: Option<&ArrayRef1<T>>,
    eps: f64,
) -> Result<Array<T, D>> {
    check_rms_norm(x.shape(), weight.map(|weight| weight.shape()), eps)?;
    Ok(rms(x, weight, eps))
}

/// `rms_norm` for arguments that were checked.
pub(crate) fn rms<T: Float, D: RemoveAxis>(
    x: &ArrayRef<T, D>,
    weight: Option<&ArrayRef1<T>>,
    eps: f64,
) -> Array<T, D> {
    let mut output = x.to_owned(); // (..., n)
    for mut row in output.rows_mut() {
        // 1. mean square: over the last axis
        let mean_square = mean(row.iter().map(|&x| x * x));

        // 2. normalise: by its root
        let root = (mean_square + T::from_f64(eps)).sqrt();
        row.mapv_inplace(|x| x / root); // (n)

        // 3. scale: each channel by its weight
        if let Some(weight) = weight {
            *row *= weight; // (n)
        }
    }
    output
}

/// The mean of at least one number, summed in order.
pub(crate) fn mean<T: Float>(x: impl ExactSizeIterator<Item = T>) -> T {
    let n = T::from_f64(x.len() as f64);
    x.fold(T::zero(), |sum, x| sum + x) / n
}

#[cfg(test)]
mod tests {
    use ndarray::{Array3, array};

    use super::*;

    #[test]
    fn the_mean_is_not_taken_away() {
        let x = array![[3.0, 3.0], [0.0, 0.0]]; // layer norm would make both rows 0
        assert_eq!(rms_norm(&x, None, 0.0625).unwrap()[[1, 0]], 0.0);
        let output = rms_norm(&x, None, 7.0).unwrap(); // sqrt(9 + 7) = 4
        assert_eq!(output.row(0).to_vec(), [0.75, 0.75]);
    }

    #[test]
    fn rows_are_independent_and_sizes_may_be_empty() {
        let x = array![[1.0_f32, f32::NAN], [2.0, -2.0]];
        let output = rms_norm(&x, None, 0.0).unwrap();
        assert!(output.row(0).iter().all(|x| x.is_nan()));
        assert_eq!(output.row(1).to_vec(), [1.0, -1.0]);
        let empty = rms_norm(&Array3::<f64>::zeros((2, 0, 3)), None, 1e-5).unwrap();
        assert_eq!(empty.dim(), (2, 0, 3));
        assert_eq!(rms_norm(&array![[-3.0_f32]], None, 0.0).unwrap(), array![[-1.0]]);
    }

    #[test]
    fn faults() {
        let x = array![[1.0, 2.0]];
        let short = array![1.0];
        let code = |weight, eps| rms_norm(&x, weight, eps).unwrap_err().code();
        assert_eq!(code(Some(&*short), 0.0), "shape_mismatch");
        assert_eq!(code(None, -1.0), "invalid_config");
        assert_eq!(code(None, f64::NAN), "invalid_config");
        let error = rms_norm(&Array3::<f32>::zeros((1, 2, 0)), None, 0.0).unwrap_err();
        assert_eq!(
            error.to_string(),
            "rms_norm: x: expected a last axis of at least 1 element, got shape [1, 2, 0]"
        );
    }
}
