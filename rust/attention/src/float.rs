//! The types that are computed in: f32 and f64.

use ndarray::NdFloat;

use crate::cast::Stored;
use crate::simd::Vectors;

/// A float that this crate computes in. Implemented for `f32` and `f64`, and for nothing else.
pub trait Float: NdFloat + Vectors + Stored<Compute = Self> {
    /// The nearest value of this type.
    fn from_f64(x: f64) -> Self;

    /// The larger of the two, NaN when either is: `f32::max` would drop the NaN.
    ///
    /// ```
    /// use rosetta_attention::Float;
    /// assert!(f32::NAN.maximum(1.0).is_nan() && 1.0_f32.maximum(f32::NAN).is_nan());
    /// ```
    fn maximum(self, other: Self) -> Self {
        if self > other || self.is_nan() { self } else { other }
    }
}

impl Float for f32 {
    fn from_f64(x: f64) -> Self {
        x as f32
    }
}

impl Float for f64 {
    fn from_f64(x: f64) -> Self {
        x
    }
}
