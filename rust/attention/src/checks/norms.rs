//! Norms and gates.

use super::{InvalidConfig, ShapeMismatch, require, require_shape};
use crate::errors::Result;

/// x (…, n) with weight and bias (n).
pub(crate) fn check_layer_norm(
    x: &[usize],
    weight: Option<&[usize]>,
    bias: Option<&[usize]>,
    eps: f64,
) -> Result<()> {
    check_norm("layer_norm", x, [("weight", weight), ("bias", bias)], eps)
}

/// x (…, n) with a weight (n).
pub(crate) fn check_rms_norm(x: &[usize], weight: Option<&[usize]>, eps: f64) -> Result<()> {
    check_norm("rms_norm", x, [("weight", weight)], eps)
}

fn check_norm<const N: usize>(
    name: &'static str,
    x: &[usize],
    parameters: [(&'static str, Option<&[usize]>); N],
    eps: f64,
) -> Result<()> {
    let width = x.last().copied().unwrap_or(0); // n
    let expected = "a last axis of at least 1 element";
    require(width >= 1, ShapeMismatch, name, "x", expected, format_args!("shape {x:?}"))?;
    for (argument, shape) in parameters {
        shape.map_or(Ok(()), |shape| require_shape(name, argument, shape, &[width]))?;
    }
    require_eps(name, "eps", eps)
}

/// What a norm adds to its mean square.
pub(super) fn require_eps(name: &'static str, argument: &'static str, eps: f64) -> Result<()> {
    let good = eps.is_finite() && eps >= 0.0;
    require(good, InvalidConfig, name, argument, "a finite number >= 0", eps)
}

/// Two arrays of one shape.
pub(crate) fn check_swiglu(a: &[usize], b: &[usize], alpha: f64) -> Result<()> {
    require_shape("swiglu", "b", b, a)?;
    require(alpha.is_finite(), InvalidConfig, "swiglu", "alpha", "a finite number", alpha)
}
