//! A transformer block: self-attention, perhaps cross-attention, and a feed-forward layer, each with a
//! residual connection around it.
//!
//! ```text
//! pre-norm    x <- x + f(norm(x))
//! post-norm   x <- norm(x + f(x))          for every layer f in turn
//! ```
//!
//! Letters: B batch, T length, C model width, Tk and Cc length and width of the context.
//!
//! Sources: Vaswani et al., "Attention Is All You Need", 2017, section 3.1 (post-norm); Xiong et al., "On
//! Layer Normalization in the Transformer Architecture", 2020 (pre-norm).

use std::str::FromStr;

use ndarray::{Array, Array3, ArrayRef, ArrayRef1, ArrayRef3, CowArray, Ix1, RemoveAxis};

use crate::checks::{check_block, check_norm_kind};
use crate::errors::{AttentionError, Fault, Result};
use crate::feed_forward::FeedForward;
use crate::float::Float;
use crate::layer_norm::layer_norm;
use crate::masks::Mask;
use crate::mha::{MhaOptions, MultiHeadAttention};
use crate::rms_norm::rms_norm;
use crate::sdpa::Sdpa;

/// Which norm is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NormKind {
    /// The one that takes the mean away.
    #[default]
    Layer,
    /// The one that does not.
    Rms,
}

impl FromStr for NormKind {
    type Err = AttentionError;

    /// From "layer" or "rms".
    fn from_str(name: &str) -> Result<Self> {
        match name {
            "layer" => Ok(Self::Layer),
            "rms" => Ok(Self::Rms),
            other => {
                let fault = Fault::new("norm", "kind", "layer or rms", other);
                Err(AttentionError::InvalidConfig(fault))
            }
        }
    }
}

/// A norm and its weights.
#[derive(Debug, Clone)]
pub struct Norm<'a, T> {
    /// (C); `None` = ones.
    pub weight: Option<CowArray<'a, T, Ix1>>,
    /// (C), of a layer norm alone; `None` = zeros.
    pub bias: Option<CowArray<'a, T, Ix1>>,
    /// Which one.
    pub kind: NormKind,
    /// What it adds to the variance or mean square; 1e-5 by default.
    pub eps: f64,
}

impl<T> Default for Norm<'_, T> {
    fn default() -> Self {
        Self { weight: None, bias: None, kind: NormKind::Layer, eps: 1e-5 }
    }
}

impl<T: Float> Norm<'_, T> {
    /// `x` (..., C) normalised over its last axis; same shape.
    ///
    /// # Errors
    /// `ShapeMismatch`, `InvalidConfig`.
    pub fn forward<D: RemoveAxis>(&self, x: &ArrayRef<T, D>) -> Result<Array<T, D>> {
        check_norm_kind("norm", self)?;
        match self.kind {
            NormKind::Layer => {
                layer_norm(x, self.weight.as_deref(), self.bias.as_deref(), self.eps)
            }
            NormKind::Rms => rms_norm(x, self.weight.as_deref(), self.eps),
        }
    }
}

/// The layers of a block, and a norm for each in the order in which they run.
#[derive(Debug, Clone)]
pub struct Block<'a, T> {
    /// Self-attention.
    pub attention: MultiHeadAttention<'a, T>,
    /// The last layer.
    pub feed_forward: FeedForward<'a, T>,
    /// Of the self-attention.
    pub norm_1: Norm<'a, T>,
    /// Of the cross-attention if there is one, else of the feed-forward layer.
    pub norm_2: Norm<'a, T>,
    /// Attention over a context; `None` = the block has none.
    pub cross: Option<MultiHeadAttention<'a, T>>,
    /// Of the feed-forward layer, with cross-attention and only then.
    pub norm_3: Option<Norm<'a, T>>,
    /// Whether a norm comes before its layer, instead of after the sum.
    pub norm_first: bool,
}

/// The options of one call; the default hides nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct BlockOptions<'a> {
    /// In self-attention no position sees a later one.
    pub causal: bool,
    /// (B): how many positions of each row exist.
    pub kv_lengths: Option<&'a ArrayRef1<i64>>,
    /// (B): how many positions of each row of the context exist.
    pub context_lengths: Option<&'a ArrayRef1<i64>>,
}

impl<'a, T: Float> Block<'a, T> {
    /// A pre-norm block without cross-attention.
    pub fn new(
        attention: MultiHeadAttention<'a, T>,
        feed_forward: FeedForward<'a, T>,
        norm_1: Norm<'a, T>,
        norm_2: Norm<'a, T>,
    ) -> Self {
        Self {
            attention,
            feed_forward,
            norm_1,
            norm_2,
            cross: None,
            norm_3: None,
            norm_first: true,
        }
    }

    /// `x` (B, T, C) through the block, with a `context` (B, Tk, Cc) for its cross-attention; same shape as x.
    ///
    /// # Errors
    /// `ShapeMismatch`, `InvalidConfig`.
    ///
    /// ```
    /// use ndarray::{Array2, array};
    /// use rosetta_attention::{Block, BlockOptions, FeedForward, MultiHeadAttention, Norm};
    /// // Layers of 0 add nothing to the residual.
    /// let zeros = || Array2::<f32>::zeros((2, 2));
    /// let attention = MultiHeadAttention::new(zeros(), zeros(), zeros(), zeros(), 1);
    /// let feed_forward = FeedForward::new(zeros(), zeros());
    /// let block = Block::new(attention, feed_forward, Norm::default(), Norm::default());
    /// let x = array![[[1.0, 5.0]]];
    /// assert_eq!(block.forward(&x, None, &BlockOptions::default())?, x);
    /// # Ok::<(), rosetta_attention::AttentionError>(())
    /// ```
    pub fn forward(
        &self,
        x: &ArrayRef3<T>,
        context: Option<&ArrayRef3<T>>,
        options: &BlockOptions<'_>,
    ) -> Result<Array3<T>> {
        check_block("block", x.dim(), context.is_some(), self, options)?;

        // 1. self-attention: each position over those that it sees
        let mask =
            Mask { causal: options.causal, kv_lengths: options.kv_lengths, ..Mask::default() };
        let layer = |x: &ArrayRef3<T>| self.attention.forward(x, None, &masked(mask));
        let mut x = self.around(&self.norm_1, layer, x)?; // (B, T, C)
        let mut last = &self.norm_2;

        // 2. cross-attention: each position over the context
        if let (Some(cross), Some(norm_3)) = (&self.cross, &self.norm_3) {
            let mask = Mask { kv_lengths: options.context_lengths, ..Mask::default() };
            let layer = |x: &ArrayRef3<T>| cross.forward(x, context, &masked(mask));
            x = self.around(&self.norm_2, layer, &x)?; // (B, T, C)
            last = norm_3;
        }

        // 3. feed-forward: each position on its own
        self.around(last, |x: &ArrayRef3<T>| self.feed_forward.forward(x), &x) // (B, T, C)
    }

    /// A layer with its norm and its residual connection.
    fn around(
        &self,
        norm: &Norm<'_, T>,
        layer: impl FnOnce(&ArrayRef3<T>) -> Result<Array3<T>>,
        x: &ArrayRef3<T>,
    ) -> Result<Array3<T>> {
        if self.norm_first {
            Ok(layer(&*norm.forward(x)?)? + x)
        } else {
            norm.forward(&*(layer(x)? + x))
        }
    }
}

/// Attention with a mask and nothing else.
fn masked<'a, T: Float>(mask: Mask<'a>) -> MhaOptions<'a, T> {
    MhaOptions { attention: Sdpa { mask, ..Sdpa::default() }, ..MhaOptions::default() }
}
