//! The Gaussian error linear unit: x times the probability that a standard normal number is below x.
//!
//! ```text
//! gelu(x) = x/2 · (1 + erf(x/√2))
//!         ≈ x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))
//! ```
//!
//! Source: Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016, section 2.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_PI};
use std::str::FromStr;

use ndarray::{Array, ArrayRef, Dimension};

use crate::errors::{AttentionError, Fault, Result};
use crate::float::Float;

/// Which of the two formulas is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Approximate {
    /// The definition, with the error function.
    #[default]
    None,
    /// The approximation by a hyperbolic tangent.
    Tanh,
}

impl FromStr for Approximate {
    type Err = AttentionError;

    /// From "none" or "tanh".
    fn from_str(name: &str) -> Result<Self> {
        match name {
            "none" => Ok(Self::None),
            "tanh" => Ok(Self::Tanh),
            other => {
                let fault = Fault::new("gelu", "approximate", "none or tanh", other);
                Err(AttentionError::InvalidConfig(fault))
            }
        }
    }
}

/// GELU of every element of `x`; same shape.
///
/// ```
/// use ndarray::array;
/// use rosetta_attention::{Approximate, gelu};
/// let x = array![0.0_f32, 10.0, -10.0];
/// assert_eq!(gelu(&x, Approximate::None), array![0.0, 10.0, -0.0]);
/// ```
pub fn gelu<T: Float, D: Dimension>(x: &ArrayRef<T, D>, approximate: Approximate) -> Array<T, D> {
    let (one, half) = (T::one(), T::from_f64(0.5));
    match approximate {
        Approximate::None => {
            // 1. exact: half of x, and as much again as the error function says
            x.mapv(|x| half * x * (one + erf(x * T::from_f64(FRAC_1_SQRT_2))))
        }
        Approximate::Tanh => {
            // 2. tanh: the error function replaced by a tangent of a cubic
            let (slope, cubic) = (T::from_f64(FRAC_2_PI.sqrt()), T::from_f64(0.044715));
            x.mapv(|x| half * x * (one + (slope * (x + cubic * x * x * x)).tanh()))
        }
    }
}

/// The error function, in float64 whatever the type.
fn erf<T: Float>(x: T) -> T {
    T::from_f64(libm::erf(x.to_f64().expect("a float has one")))
}

#[cfg(test)]
mod tests {
    use ndarray::{Array2, array};

    use super::*;

    #[test]
    fn known_values() {
        // x · Φ(x) with Φ(1) = 0.841344746068542949 and Φ(-3) = 0.00134989803163009453.
        let exact = gelu(&array![1.0, -3.0], Approximate::None);
        // An argument, a function, a sum and two products of numbers up to 1, and the decimals: 8 roundings at most.
        let room = 4.0 * f64::EPSILON;
        assert!((exact[0] - 0.841344746068543_f64).abs() <= room);
        assert!((exact[1] + 0.00404969409489028).abs() <= room);
        let near = gelu(&array![1.0], Approximate::Tanh);
        assert!((near[0] - 0.8411919906082768_f64).abs() <= room);
    }

    #[test]
    fn infinity_and_nan() {
        for approximate in [Approximate::None, Approximate::Tanh] {
            let x = array![f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 3e38];
            let y = gelu(&x, approximate);
            assert_eq!((y[0], y[3]), (f32::INFINITY, 3e38));
            assert!(y[1].is_nan() && y[2].is_nan()); // -inf · 0
            assert_eq!(gelu(&Array2::<f64>::zeros((0, 3)), approximate).dim(), (0, 3));
        }
    }

    #[test]
    fn names() {
        assert_eq!("tanh".parse::<Approximate>().unwrap(), Approximate::Tanh);
        assert_eq!("erf".parse::<Approximate>().unwrap_err().code(), "invalid_config");
    }
}
