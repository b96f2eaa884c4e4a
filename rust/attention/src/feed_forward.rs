//! The feed-forward layer of a transformer block: two projections with an activation between them.
//!
//! ```text
//! output = W_2 act(W_1 x + b_1) + b_2,   for SwiGLU W_2 swiglu(W_1 x + b_1, W_3 x + b_3) + b_2
//! ```
//!
//! Letters: B batch, T length, C model width, F width of the hidden layer.
//!
//! Sources: Vaswani et al., "Attention Is All You Need", 2017, section 3.3; Shazeer, "GLU Variants Improve
//! Transformer", 2020 (SwiGLU).

use std::str::FromStr;

use ndarray::{Array3, ArrayRef3, CowArray, Ix1, Ix2};

use crate::checks::check_feed_forward;
use crate::errors::{AttentionError, Fault, Result};
use crate::float::Float;
use crate::gelu::{Approximate, gelu};
use crate::mha::linear;
use crate::swiglu::swiglu;

/// What stands between the two projections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Activation {
    /// With the error function.
    #[default]
    Gelu,
    /// With a hyperbolic tangent in its place.
    GeluTanh,
    /// The positive part.
    Relu,
    /// A gate, which takes a third projection.
    Swiglu,
}

impl FromStr for Activation {
    type Err = AttentionError;

    /// From "gelu", "gelu_tanh", "relu" or "swiglu".
    fn from_str(name: &str) -> Result<Self> {
        match name {
            "gelu" => Ok(Self::Gelu),
            "gelu_tanh" => Ok(Self::GeluTanh),
            "relu" => Ok(Self::Relu),
            "swiglu" => Ok(Self::Swiglu),
            other => {
                let expected = "gelu, gelu_tanh, relu or swiglu";
                let fault = Fault::new("feed_forward", "activation", expected, other);
                Err(AttentionError::InvalidConfig(fault))
            }
        }
    }
}

/// The weights of one layer, owned or borrowed, (out, in).
#[derive(Debug, Clone)]
pub struct FeedForward<'a, T> {
    /// (F, C)
    pub w_1: CowArray<'a, T, Ix2>,
    /// (C, F)
    pub w_2: CowArray<'a, T, Ix2>,
    /// (F)
    pub b_1: Option<CowArray<'a, T, Ix1>>,
    /// (C)
    pub b_2: Option<CowArray<'a, T, Ix1>>,
    /// (F, C), with SwiGLU and only then.
    pub w_3: Option<CowArray<'a, T, Ix2>>,
    /// (F)
    pub b_3: Option<CowArray<'a, T, Ix1>>,
    /// What stands between.
    pub activation: Activation,
}

impl<'a, T: Float> FeedForward<'a, T> {
    /// A layer with GELU and without biases.
    ///
    /// ```
    /// use ndarray::{Array2, array};
    /// use rosetta_attention::{Activation, FeedForward};
    /// let mut layer = FeedForward::new(array![[1.0], [-1.0]], array![[1.0, 1.0]]);
    /// layer.activation = Activation::Relu; // max(x, 0) + max(-x, 0)
    /// assert_eq!(layer.forward(&array![[[-3.0]]])?, array![[[3.0]]]);
    /// # Ok::<(), rosetta_attention::AttentionError>(())
    /// ```
    pub fn new(w_1: impl Into<CowArray<'a, T, Ix2>>, w_2: impl Into<CowArray<'a, T, Ix2>>) -> Self {
        Self {
            w_1: w_1.into(),
            w_2: w_2.into(),
            b_1: None,
            b_2: None,
            w_3: None,
            b_3: None,
            activation: Activation::Gelu,
        }
    }

    /// Each position of `x` (B, T, C) on its own; same shape.
    ///
    /// # Errors
    /// `ShapeMismatch`, `InvalidConfig`.
    pub fn forward(&self, x: &ArrayRef3<T>) -> Result<Array3<T>> {
        check_feed_forward("feed_forward", x.dim().2, self)?;

        // 1. expand: to the width of the hidden layer, where the gate of SwiGLU is a second one
        let hidden = linear(x, &self.w_1, self.b_1.as_deref()); // (B, T, F)
        let gated = self.w_3.as_ref().map(|w_3| linear(x, w_3, self.b_3.as_deref())); // (B, T, F)

        // 2. activate: element by element
        let active = match (self.activation, gated) {
            (Activation::Gelu, _) => gelu(&hidden, Approximate::None),
            (Activation::GeluTanh, _) => gelu(&hidden, Approximate::Tanh),
            (Activation::Swiglu, Some(gated)) => swiglu(&hidden, &gated, 1.0)?,
            (Activation::Relu | Activation::Swiglu, _) => hidden.mapv(|x| x.maximum(T::zero())),
        }; // (B, T, F)

        // 3. contract: back to the width of the model
        Ok(linear(&active, &self.w_2, self.b_2.as_deref())) // (B, T, C)
    }
}

#[cfg(test)]
mod tests {
    use ndarray::{Array2, array};

    use super::*;

    fn layer(activation: Activation) -> FeedForward<'static, f64> {
        let mut layer = FeedForward::new(array![[2.0], [-1.0], [0.0]], Array2::ones((1, 3)));
        layer.activation = activation;
        layer.b_1 = Some(array![0.0, 0.0, 1.0].into());
        layer.b_2 = Some(array![10.0].into());
        layer
    }

    #[test]
    fn activations() {
        let x = array![[[1.0]]]; // hidden 2, -1, 1
        let value = |layer: FeedForward<'_, f64>| layer.forward(&x).unwrap()[[0, 0, 0]];
        assert_eq!(value(layer(Activation::Relu)), 13.0);
        let one = |x: f64, approximate| gelu(&array![x], approximate)[0];
        let of = |approximate| {
            one(2.0, approximate) + one(-1.0, approximate) + one(1.0, approximate) + 10.0
        };
        assert_ne!(of(Approximate::None), of(Approximate::Tanh));
        assert_eq!(value(layer(Activation::Gelu)), of(Approximate::None));
        assert_eq!(value(layer(Activation::GeluTanh)), of(Approximate::Tanh));
        let mut gated = layer(Activation::Swiglu);
        gated.w_3 = Some(array![[3.0], [3.0], [0.0]].into());
        gated.b_3 = Some(array![0.0, 0.0, 3.0].into());
        let gates = swiglu(&array![2.0, -1.0, 1.0], &array![3.0, 3.0, 3.0], 1.0).unwrap();
        assert_eq!(value(gated), gates[0] + gates[1] + gates[2] + 10.0);
    }

    #[test]
    fn relu_keeps_nan() {
        let output = layer(Activation::Relu).forward(&array![[[f64::NAN], [1.0]]]).unwrap();
        assert!(output[[0, 0, 0]].is_nan() && output[[0, 1, 0]] == 13.0);
    }

    #[test]
    fn empty_sizes_and_faults() {
        assert_eq!(
            layer(Activation::Gelu).forward(&Array3::zeros((2, 0, 1))).unwrap().dim(),
            (2, 0, 1)
        );
        let code = |change: fn(&mut FeedForward<'_, f64>)| {
            let mut layer = layer(Activation::Gelu);
            change(&mut layer);
            layer.forward(&array![[[1.0]]]).unwrap_err().code()
        };
        assert_eq!(code(|layer| layer.activation = Activation::Swiglu), "invalid_config");
        assert_eq!(code(|layer| layer.w_3 = Some(layer.w_1.clone())), "invalid_config");
        assert_eq!(code(|layer| layer.b_3 = Some(array![0.0].into())), "invalid_config");
        assert_eq!(code(|layer| layer.w_1 = array![[1.0, 1.0]].into()), "shape_mismatch");
        assert_eq!(code(|layer| layer.w_2 = array![[1.0, 1.0]].into()), "shape_mismatch");
        assert_eq!(code(|layer| layer.b_2 = Some(array![0.0, 0.0].into())), "shape_mismatch");
        assert_eq!("silu".parse::<Activation>().unwrap_err().code(), "invalid_config");
        assert_eq!("gelu_tanh".parse::<Activation>().unwrap(), Activation::GeluTanh);
    }
}
