//! Layer normalisation: a vector moved to mean 0 and scaled to variance 1.
//!
//! ```text
//! output = (x - mean) / sqrt(variance + eps) · weight + bias
//! ```
//!
//! Letters: n size of the last axis; the variance is over n, not n - 1.
//!
//! Source: Ba et al., "Layer Normalization", 2016, section 3.

use ndarray::{Array, ArrayRef, ArrayRef1, Axis, Dimension, RemoveAxis, Zip};

use crate::checks::check_layer_norm;
use crate::errors::Result;
use crate::float::Float;
use crate::rms_norm::mean;

/// The output of one call with what its rows were moved and scaled by.
#[derive(Debug, Clone)]
pub struct LayerNormSteps<T, D: Dimension> {
    /// (..., n)
    pub output: Array<T, D>,
    /// (...)
    pub mean: Array<T, D::Smaller>,
    /// 1 / sqrt(variance + eps): (...)
    pub inv_std: Array<T, D::Smaller>,
}

/// The layer norm over the last axis of `x` (..., n), n >= 1; same shape.
///
/// `weight`, `bias`: (n), `None` = ones and zeros. `eps`: >= 0, added to the variance.
///
/// # Errors
/// `ShapeMismatch`, `InvalidConfig`.
///
/// ```
/// use ndarray::array;
/// use rosetta_attention::layer_norm;
/// // Mean 3, variance 4.
/// let output = layer_norm(&array![1.0, 5.0], None, Some(&array![0.0, 9.0]), 0.0)?;
/// assert_eq!(output, array![-1.0, 10.0]);
/// # Ok::<(), rosetta_attention::AttentionError>(())
/// ```
pub fn layer_norm<T: Float, D: RemoveAxis>(
    x: &ArrayRef<T, D>,
    weight: Option<&ArrayRef1<T>>,
    bias: Option<&ArrayRef1<T>>,
    eps: f64,
) -> Result<Array<T, D>> {
    Ok(layer_norm_steps(x, weight, bias, eps)?.output)
}

/// `layer_norm` with its intermediates; same arguments and errors.
///
/// # Errors
/// `ShapeMismatch`, `InvalidConfig`.
pub fn layer_norm_steps<T: Float, D: RemoveAxis>(
    x: &ArrayRef<T, D>,
    weight: Option<&ArrayRef1<T>>,
    bias: Option<&ArrayRef1<T>>,
    eps: f64,
) -> Result<LayerNormSteps<T, D>> {
    check_layer_norm(x.shape(), weight.map(|w| w.shape()), bias.map(|b| b.shape()), eps)?;
    let mut output = x.to_owned(); // (..., n)
    let mut means = Array::zeros(x.raw_dim().remove_axis(Axis(x.ndim() - 1))); // (...)
    let mut inv_stds = Array::zeros(means.raw_dim()); // (...)
    Zip::from(output.rows_mut()).and(&mut means).and(&mut inv_stds).for_each(
        |mut row, row_mean, inv_std| {
            // 1. mean: over the last axis
            *row_mean = mean(row.iter().copied());

            // 2. variance: of what is left, so that a large mean cancels nothing
            row -= *row_mean; // (n)
            let variance = mean(row.iter().map(|&x| x * x));

            // 3. normalise: by its root
            *inv_std = (variance + T::from_f64(eps)).sqrt().recip();
            row *= *inv_std; // (n)

            // 4. scale and shift: each channel by its weight and bias
            if let Some(weight) = weight {
                *row *= weight; // (n)
            }
            if let Some(bias) = bias {
                *row += bias; // (n)
            }
        },
    );
    Ok(LayerNormSteps { output, mean: means, inv_std: inv_stds })
}

#[cfg(test)]
mod tests {
    use ndarray::{Array2, array};

    use super::*;

    #[test]
    fn variance_is_over_n() {
        let steps = layer_norm_steps(&array![[1.0, 5.0], [7.0, 7.0]], None, None, 4.0).unwrap();
        assert_eq!(steps.mean, array![3.0, 7.0]);
        assert_eq!(steps.inv_std, array![1.0 / 8.0_f64.sqrt(), 0.5]);
        assert_eq!(steps.output.row(1).to_vec(), [0.0, 0.0]);
    }

    #[test]
    fn a_large_mean_cancels_nothing() {
        let output = layer_norm(&array![1e6_f32, 1e6 + 1.0], None, None, 0.0).unwrap();
        assert_eq!(output, array![-1.0, 1.0]); // mean(x²) - mean(x)² is 0 here
    }

    #[test]
    fn sizes_of_zero_and_one() {
        let one = layer_norm(&array![[5.0], [f64::NAN]], None, Some(&array![2.0]), 1e-5).unwrap();
        assert_eq!(one[[0, 0]], 2.0);
        assert!(one[[1, 0]].is_nan());
        let steps = layer_norm_steps(&Array2::<f32>::zeros((0, 3)), None, None, 1e-5).unwrap();
        assert_eq!((steps.output.dim(), steps.mean.dim(), steps.inv_std.dim()), ((0, 3), 0, 0));
        let single = layer_norm_steps(&array![1.0, 5.0], None, None, 0.0).unwrap();
        assert_eq!(single.mean[()], 3.0);
    }

    #[test]
    fn faults() {
        let (x, short) = (array![[1.0, 2.0]], array![1.0]);
        let code = |weight, bias, eps| layer_norm(&x, weight, bias, eps).unwrap_err().code();
        assert_eq!(code(Some(&*short), None, 0.0), "shape_mismatch");
        assert_eq!(code(None, Some(&*short), 0.0), "shape_mismatch");
        assert_eq!(code(None, None, f64::INFINITY), "invalid_config");
        let none = layer_norm(&Array2::<f64>::zeros((3, 0)), None, None, 0.0);
        assert_eq!(none.unwrap_err().code(), "shape_mismatch");
    }
}
