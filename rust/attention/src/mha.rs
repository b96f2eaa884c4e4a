//! Multi-head attention: four projections around scaled dot-product attention.
//!
//! ```text
//! output = concat_h(sdpa(X W_qᵀ, C W_kᵀ, C W_vᵀ)_h) W_oᵀ,   C = context, X itself for self-attention
//! ```
//!
//! Letters: B batch, Tq and Tk query and key lengths, C model width, Cc width of the context, Hq
//! query heads, Hkv key/value heads, D head size, Dv head size of the values, Cout width of the
//! output.
//!
//! Source: Vaswani et al., "Attention Is All You Need", 2017, section 3.2.2; Ainslie et al.,
//! "GQA", 2023.

use ndarray::{Array3, Array4, ArrayRef1, ArrayRef2, ArrayRef3, ArrayRef4, CowArray, Ix1, Ix2};

use crate::checks::check_mha;
use crate::errors::Result;
use crate::float::Float;
use crate::sdpa::{Sdpa, sdpa_steps};

/// The weights of one layer, owned or borrowed. They are (out, in), y = x Wᵀ + b; heads are
/// consecutive blocks of rows.
#[derive(Debug, Clone)]
pub struct MultiHeadAttention<'a, T> {
    /// (Hq·D, C)
    pub w_q: CowArray<'a, T, Ix2>,
    /// (Hkv·D, Cc)
    pub w_k: CowArray<'a, T, Ix2>,
    /// (Hkv·Dv, Cc)
    pub w_v: CowArray<'a, T, Ix2>,
    /// (Cout, Hq·Dv)
    pub w_o: CowArray<'a, T, Ix2>,
    /// (Hq·D)
    pub b_q: Option<CowArray<'a, T, Ix1>>,
    /// (Hkv·D)
    pub b_k: Option<CowArray<'a, T, Ix1>>,
    /// (Hkv·Dv)
    pub b_v: Option<CowArray<'a, T, Ix1>>,
    /// (Cout)
    pub b_o: Option<CowArray<'a, T, Ix1>>,
    /// Hq
    pub num_heads: usize,
    /// Hkv; `None` = num_heads.
    pub num_kv_heads: Option<usize>,
}

/// The output of one call with the weights and log-sum-exp of its attention.
#[derive(Debug, Clone)]
pub struct MhaSteps<T> {
    /// (B, Tq, Cout)
    pub output: Array3<T>,
    /// (B, Hq, Tq, Tk)
    pub weights: Array4<T>,
    /// (B, Hq, Tq)
    pub lse: Array3<T>,
}

impl<'a, T: Float> MultiHeadAttention<'a, T> {
    /// A layer without biases, as many key/value heads as query heads.
    ///
    /// ```
    /// use ndarray::{Array2, array};
    /// use rosetta_attention::{MultiHeadAttention, Sdpa};
    /// let eye = || Array2::<f64>::eye(2);
    /// let layer = MultiHeadAttention::new(eye(), eye(), eye(), eye(), 2);
    /// let x = array![[[3.0, 5.0]]]; // a single position attends to itself
    /// assert_eq!(layer.forward(&x, None, &Sdpa::default())?, x);
    /// # Ok::<(), rosetta_attention::AttentionError>(())
    /// ```
    pub fn new(
        w_q: impl Into<CowArray<'a, T, Ix2>>,
        w_k: impl Into<CowArray<'a, T, Ix2>>,
        w_v: impl Into<CowArray<'a, T, Ix2>>,
        w_o: impl Into<CowArray<'a, T, Ix2>>,
        num_heads: usize,
    ) -> Self {
        Self {
            w_q: w_q.into(),
            w_k: w_k.into(),
            w_v: w_v.into(),
            w_o: w_o.into(),
            b_q: None,
            b_k: None,
            b_v: None,
            b_o: None,
            num_heads,
            num_kv_heads: None,
        }
    }

    /// Attention of `x` (B, Tq, C) over `context` (B, Tk, Cc), itself when absent: (B, Tq, Cout).
    ///
    /// # Errors
    /// `ShapeMismatch`, `InvalidConfig`.
    pub fn forward(
        &self,
        x: &ArrayRef3<T>,
        context: Option<&ArrayRef3<T>>,
        options: &Sdpa<'_, T>,
    ) -> Result<Array3<T>> {
        Ok(self.steps(x, context, options)?.output)
    }

    /// The call with its intermediates; same arguments and errors.
    ///
    /// # Errors
    /// `ShapeMismatch`, `InvalidConfig`.
    pub fn steps(
        &self,
        x: &ArrayRef3<T>,
        context: Option<&ArrayRef3<T>>,
        options: &Sdpa<'_, T>,
    ) -> Result<MhaSteps<T>> {
        let context = context.unwrap_or(x);
        check_mha("mha", x.dim(), context.dim(), self)?;
        let num_kv_heads = self.num_kv_heads.unwrap_or(self.num_heads);

        // 1. project: rows of x to queries, rows of the context to keys and values
        let q = linear(x, &self.w_q, self.b_q.as_deref()); // (B, Tq, Hq·D)
        let k = linear(context, &self.w_k, self.b_k.as_deref()); // (B, Tk, Hkv·D)
        let v = linear(context, &self.w_v, self.b_v.as_deref()); // (B, Tk, Hkv·Dv)

        // 2. split heads: consecutive blocks of channels, then heads before positions
        let q = split_heads(q, self.num_heads); // (B, Hq, Tq, D)
        let k = split_heads(k, num_kv_heads); // (B, Hkv, Tk, D)
        let v = split_heads(v, num_kv_heads); // (B, Hkv, Tk, Dv)

        // 3. attention: every head on its own
        let heads = sdpa_steps(&q, &k, &v, options)?; // output (B, Hq, Tq, Dv)

        // 4. merge heads: positions before heads again, heads side by side
        let merged = merge_heads(&heads.output); // (B, Tq, Hq·Dv)

        // 5. output projection: mixes the heads
        let output = linear(&merged, &self.w_o, self.b_o.as_deref()); // (B, Tq, Cout)
        Ok(MhaSteps { output, weights: heads.weights, lse: heads.lse })
    }
}

/// y = x Wᵀ + b: (B, T, in) to (B, T, out).
fn linear<T: Float>(x: &ArrayRef3<T>, w: &ArrayRef2<T>, b: Option<&ArrayRef1<T>>) -> Array3<T> {
    let (batch, len, width) = x.dim();
    let rows = x.to_shape((batch * len, width)).expect("same size"); // (B·T, in)
    let mut y = rows.dot(&w.t()); // (B·T, out)
    if let Some(b) = b {
        *y += b;
    }
    y.into_shape_clone((batch, len, w.nrows())).expect("same size")
}

/// (B, T, H·n) to (B, H, T, n).
fn split_heads<T: Float>(x: Array3<T>, num_heads: usize) -> Array4<T> {
    let (batch, len, width) = x.dim();
    let x = x.into_shape_clone((batch, len, num_heads, width / num_heads)).expect("same size");
    x.permuted_axes([0, 2, 1, 3])
}

/// (B, H, T, n) to (B, T, H·n).
fn merge_heads<T: Float>(x: &ArrayRef4<T>) -> Array3<T> {
    let (batch, heads, len, n) = x.dim();
    let x = x.view().permuted_axes([0, 2, 1, 3]);
    x.to_shape((batch, len, heads * n)).expect("same size").into_owned()
}

#[cfg(test)]
mod tests {
    use ndarray::{Array2, array};

    use super::*;

    #[test]
    fn heads_are_blocks_of_channels() {
        let x = array![[[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]]]; // (B, H, T, n)
        let merged = merge_heads(&x);
        assert_eq!(merged, array![[[1.0, 2.0, 5.0, 6.0], [3.0, 4.0, 7.0, 8.0]]]); // B48
        assert_eq!(split_heads(merged, 2), x);
    }

    #[test]
    fn projection_is_out_in() {
        let (w, b) = (array![[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], array![10.0, 20.0]); // (out 2, in 3)
        assert_eq!(linear(&array![[[1.0, 0.0, 1.0]]], &w, Some(&b)), array![[[14.0, 30.0]]]);
    }

    #[test]
    fn groups_context_and_value_size() {
        // Queries of 0 weigh the two context rows alike, in both heads of the one group.
        let mut layer = MultiHeadAttention::new(
            Array2::<f64>::zeros((4, 3)),               // Hq 2, D 2, C 3
            Array2::ones((2, 2)),                       // Hkv 1, Cc 2
            array![[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], // Dv 3
            Array2::eye(6),
            2,
        );
        layer.num_kv_heads = Some(1);
        let (x, context) = (Array3::ones((1, 1, 3)), array![[[1.0, 2.0], [3.0, 6.0]]]);
        let steps = layer.steps(&x, Some(&context), &Sdpa::default()).unwrap();
        assert_eq!(steps.output, array![[[2.0, 4.0, 6.0, 2.0, 4.0, 6.0]]]);
        assert_eq!(steps.weights, Array4::from_elem((1, 2, 1, 2), 0.5));
        assert_eq!(steps.lse.dim(), (1, 2, 1));
    }

    #[test]
    fn empty_sizes() {
        let layer = MultiHeadAttention::new(
            Array2::<f32>::eye(2),
            Array2::eye(2),
            Array2::eye(2),
            Array2::eye(2),
            2,
        );
        for (batch, tq, tk) in [(0, 3, 3), (2, 0, 3), (2, 3, 0)] {
            let (x, context) = (Array3::ones((batch, tq, 2)), Array3::ones((batch, tk, 2)));
            let output = layer.forward(&x, Some(&context), &Sdpa::default()).unwrap();
            assert_eq!(output, Array3::from_elem((batch, tq, 2), if tk == 0 { 0.0 } else { 1.0 }));
        }
    }

    #[test]
    fn faults() {
        let eye = || Array2::<f32>::eye(4);
        let good = MultiHeadAttention::new(eye(), eye(), eye(), eye(), 2);
        let x = Array3::zeros((1, 2, 4));
        let code = |layer: MultiHeadAttention<'_, f32>| {
            layer.forward(&x, None, &Sdpa::default()).unwrap_err().code()
        };
        assert_eq!(code(MultiHeadAttention { num_heads: 0, ..good.clone() }), "invalid_config");
        assert_eq!(
            code(MultiHeadAttention { num_kv_heads: Some(0), ..good.clone() }),
            "invalid_config"
        );
        assert_eq!(
            code(MultiHeadAttention { num_heads: 4, num_kv_heads: Some(3), ..good.clone() }),
            "invalid_config"
        );
        assert_eq!(code(MultiHeadAttention { num_heads: 3, ..good.clone() }), "shape_mismatch");
        let wide = || CowArray::from(Array2::zeros((4, 5)));
        assert_eq!(code(MultiHeadAttention { w_q: wide(), ..good.clone() }), "shape_mismatch");
        assert_eq!(code(MultiHeadAttention { w_o: wide(), ..good.clone() }), "shape_mismatch");
        let tall = || CowArray::from(Array2::zeros((6, 4)));
        assert_eq!(code(MultiHeadAttention { w_k: tall(), ..good.clone() }), "shape_mismatch");
        let b = Some(CowArray::from(array![0.0, 0.0, 0.0]));
        assert_eq!(code(MultiHeadAttention { b_v: b, ..good.clone() }), "shape_mismatch");
        let other = Array3::zeros((2, 2, 4));
        let error = good.forward(&x, Some(&other), &Sdpa::default()).unwrap_err();
        assert_eq!(error.to_string(), "mha: context: expected batch 1 as in x, got 2");
    }
}
