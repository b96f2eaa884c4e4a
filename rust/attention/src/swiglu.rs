//! The gated linear unit with a swish gate.
//!
//! ```text
//! swiglu(a, b) = a · sigmoid(alpha · a) · b,   sigmoid(x) = 1 / (1 + e^-x)
//! ```
//!
//! Source: Shazeer, "GLU Variants Improve Transformer", 2020, section 2.

use ndarray::{Array, ArrayRef, Dimension, Zip};

use crate::checks::check_swiglu;
use crate::errors::Result;
use crate::float::Float;

/// SwiGLU of `a` (the gate) and `b`, element by element; same shape.
///
/// # Errors
/// `ShapeMismatch` when the shapes differ, `InvalidConfig` for an alpha that is not finite.
///
/// ```
/// use ndarray::array;
/// use rosetta_attention::swiglu;
/// let output = swiglu(&array![0.0, 2.0], &array![5.0, 3.0], 0.0)?; // sigmoid(0) = 1/2
/// assert_eq!(output, array![0.0, 3.0]);
/// # Ok::<(), rosetta_attention::AttentionError>(())
/// ```
pub fn swiglu<T: Float, D: Dimension>(
    a: &ArrayRef<T, D>,
    b: &ArrayRef<T, D>,
    alpha: f64,
) -> Result<Array<T, D>> {
    check_swiglu(a.shape(), b.shape(), alpha)?;
    let alpha = T::from_f64(alpha);

    // 1. gate: how much of a passes
    let gate = a.mapv(|a| a / (T::one() + (-alpha * a).exp())); // a's shape

    // 2. multiply: the gated a times b
    Ok(Zip::from(&gate).and(b).map_collect(|&gate, &b| gate * b)) // a's shape
}

#[cfg(test)]
mod tests {
    use ndarray::{Array2, array};

    use super::*;

    #[test]
    fn alpha_steepens_the_gate() {
        let gate = |alpha| swiglu(&array![1.0_f64], &array![1.0], alpha).unwrap()[0];
        let room = 3.0 * f64::EPSILON; // exp, a sum, a quotient, two products, and the decimals: numbers up to 1
        assert!((gate(1.0) - 0.731_058_578_630_004_9).abs() <= room);
        assert!((gate(-1.0) - 0.268_941_421_369_995_1).abs() <= room);
        let ends = swiglu(&array![1e4_f32, -1e4], &array![2.0, 2.0], 1.0).unwrap();
        assert_eq!(ends, array![2e4, -0.0]); // e^1e4 overflows, and rightly so
    }

    #[test]
    fn sizes_and_faults() {
        let x = Array2::<f32>::zeros((0, 3));
        assert_eq!(swiglu(&x, &x, 1.0).unwrap().dim(), (0, 3));
        let code = |b: Array2<f32>, alpha| swiglu(&x, &b, alpha).unwrap_err().code();
        assert_eq!(code(Array2::zeros((1, 3)), 1.0), "shape_mismatch");
        assert_eq!(code(x.clone(), f64::NAN), "invalid_config");
    }
}
