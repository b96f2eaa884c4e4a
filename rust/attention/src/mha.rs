//! Multi-head attention: four projections around scaled dot-product attention.
//!
//! ```text
//! output = concat_h(sdpa(X W_qᵀ, C W_kᵀ, C W_vᵀ)_h) W_oᵀ,   C = context, X itself for self-attention
//! ```
//!
//! On request queries and keys are RMS-normalised head by head, and turned by their positions.
//!
//! Letters: B batch, Tq and Tk query and key lengths, C model width, Cc width of the context, Hq
//! query heads, Hkv key/value heads, G = Hq / Hkv, D head size, Dv head size of the values, Cout width
//! of the output.
//!
//! Sources: Vaswani et al., "Attention Is All You Need", 2017, section 3.2.2; Ainslie et al.,
//! "GQA", 2023; Henry et al., "Query-Key Normalization for Transformers", 2020; Michel et al., "Are
//! Sixteen Heads Really Better than One?", 2019 (the head mask).

use ndarray::{
    Array3, Array4, ArrayRef1, ArrayRef2, ArrayRef3, ArrayRef4, Axis, CowArray, Ix1, Ix2, s,
};

use crate::cache::{Append, Cache};
use crate::cast::{Stored, narrow};
use crate::checks::{check_decode, check_mha};
use crate::errors::Result;
use crate::float::Float;
use crate::masks::Mask;
use crate::packing::{Packing, unpack};
use crate::rms_norm::rms;
use crate::rope::{Rope, placed, rotate, turns};
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
    /// (D): queries are RMS-normalised with these weights; `None` = they are not.
    pub q_norm: Option<CowArray<'a, T, Ix1>>,
    /// (D): keys likewise.
    pub k_norm: Option<CowArray<'a, T, Ix1>>,
    /// What those two norms add to the mean square; 1e-6 by default.
    pub qk_norm_eps: f64,
    /// Turns queries and keys by the same positions, so only without a context.
    pub rope: Option<Rope>,
    /// Hq
    pub num_heads: usize,
    /// Hkv; `None` = num_heads.
    pub num_kv_heads: Option<usize>,
}

/// The options of one call; the default is plain attention.
#[derive(Debug, Clone, Copy)]
pub struct MhaOptions<'a, T> {
    /// Those of the attention inside.
    pub attention: Sdpa<'a, T>,
    /// (B, T): where the positions of x stand for the rope; `None` = its offset and those after it.
    pub positions: Option<&'a ArrayRef2<i64>>,
    /// (Hq): false = the head contributes 0.
    pub head_mask: Option<&'a ArrayRef1<bool>>,
}

impl<T> Default for MhaOptions<'_, T> {
    fn default() -> Self {
        Self { attention: Sdpa::default(), positions: None, head_mask: None }
    }
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
    /// (B, Tq, Tk): the weights averaged over the heads.
    pub mean_weights: Array3<T>,
}

impl<'a, T: Float> MultiHeadAttention<'a, T> {
    /// A layer without biases, norms and rope, as many key/value heads as query heads.
    ///
    /// ```
    /// use ndarray::{Array2, array};
    /// use rosetta_attention::{MhaOptions, MultiHeadAttention};
    /// let eye = || Array2::<f64>::eye(2);
    /// let layer = MultiHeadAttention::new(eye(), eye(), eye(), eye(), 2);
    /// let x = array![[[3.0, 5.0]]]; // a single position attends to itself
    /// assert_eq!(layer.forward(&x, None, &MhaOptions::default())?, x);
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
            q_norm: None,
            k_norm: None,
            qk_norm_eps: 1e-6,
            rope: None,
            num_heads,
            num_kv_heads: None,
        }
    }

    /// A layer whose projections of x, and perhaps their biases, come in one piece: `w_qkv`
    /// ((Hq + 2·Hkv)·D, C), `b_qkv` ((Hq + 2·Hkv)·D).
    ///
    /// # Errors
    /// `ShapeMismatch`, `InvalidConfig`.
    pub fn packed(
        w_qkv: &ArrayRef2<T>,
        b_qkv: Option<&ArrayRef1<T>>,
        w_o: impl Into<CowArray<'a, T, Ix2>>,
        num_heads: usize,
        num_kv_heads: usize,
        packing: Packing,
    ) -> Result<Self> {
        let [w_q, w_k, w_v] = unpack("w_qkv", w_qkv, num_heads, num_kv_heads, packing)?;
        let mut layer = Self::new(w_q, w_k, w_v, w_o, num_heads);
        layer.num_kv_heads = Some(num_kv_heads);
        if let Some(b_qkv) = b_qkv {
            let biases = unpack("b_qkv", b_qkv, num_heads, num_kv_heads, packing)?;
            [layer.b_q, layer.b_k, layer.b_v] = biases.map(|b| Some(b.into()));
        }
        Ok(layer)
    }

    /// How many numbers the layer has learned.
    pub fn num_parameters(&self) -> usize {
        let matrices = [&self.w_q, &self.w_k, &self.w_v, &self.w_o];
        let vectors = [&self.b_q, &self.b_k, &self.b_v, &self.b_o, &self.q_norm, &self.k_norm];
        matrices.iter().map(|w| w.len()).sum::<usize>()
            + vectors.iter().map(|b| b.as_ref().map_or(0, |b| b.len())).sum::<usize>()
    }

    /// Attention of `x` (B, Tq, C) over `context` (B, Tk, Cc), itself when absent: (B, Tq, Cout).
    ///
    /// # Errors
    /// `ShapeMismatch`, `InvalidConfig`.
    pub fn forward(
        &self,
        x: &ArrayRef3<T>,
        context: Option<&ArrayRef3<T>>,
        options: &MhaOptions<'_, T>,
    ) -> Result<Array3<T>> {
        Ok(self.steps(x, context, options)?.output)
    }

    /// Queries (B, Hq, Tq, D) of `x`, keys (B, Hkv, Tk, D) and values (B, Hkv, Tk, Dv) of `context`.
    fn project(&self, x: &ArrayRef3<T>, context: &ArrayRef3<T>) -> [Array4<T>; 3] {
        let num_kv_heads = self.num_kv_heads.unwrap_or(self.num_heads);

        // 1. project: rows of x to queries, rows of the context to keys and values
        let q = linear(x, &self.w_q, self.b_q.as_deref()); // (B, Tq, Hq·D)
        let k = linear(context, &self.w_k, self.b_k.as_deref()); // (B, Tk, Hkv·D)
        let v = linear(context, &self.w_v, self.b_v.as_deref()); // (B, Tk, Hkv·Dv)

        // 2. split heads: consecutive blocks of channels, then heads before positions
        let mut q = split_heads(q, self.num_heads); // (B, Hq, Tq, D)
        let mut k = split_heads(k, num_kv_heads); // (B, Hkv, Tk, D)
        let v = split_heads(v, num_kv_heads); // (B, Hkv, Tk, Dv)

        // 3. normalise: each head's queries and keys, so that no score grows without bound
        for (heads, norm) in [(&mut q, &self.q_norm), (&mut k, &self.k_norm)] {
            if let Some(weight) = norm {
                *heads = rms(heads, Some(weight), self.qk_norm_eps);
            }
        }
        [q, k, v]
    }

    /// The call with its intermediates; same arguments and errors.
    ///
    /// # Errors
    /// `ShapeMismatch`, `InvalidConfig`.
    pub fn steps(
        &self,
        x: &ArrayRef3<T>,
        context: Option<&ArrayRef3<T>>,
        options: &MhaOptions<'_, T>,
    ) -> Result<MhaSteps<T>> {
        check_mha("mha", x.dim(), context.map(|context| context.dim()), self, options)?;
        let context = context.unwrap_or(x);
        let [mut q, mut k, v] = self.project(x, context);

        // 4. rotate: queries and keys alike, by their positions
        if let Some(rope) = &self.rope {
            let (batch, _, len, d) = q.dim();
            let positions = placed(batch, len, rope.offset, options.positions); // (B, T)
            let (cos, sin) = turns(rope, d, &positions); // (B, T, R/2) each
            q = rotate(&q, &cos, &sin, rope.interleaved); // (B, Hq, T, D)
            k = rotate(&k, &cos, &sin, rope.interleaved); // (B, Hkv, T, D)
        }

        // 5. attention: every head on its own
        let mut heads = sdpa_steps(&q, &k, &v, &options.attention)?; // output (B, Hq, Tq, Dv)
        let num_heads = T::from_f64(self.num_heads as f64);
        let mean_weights = heads.weights.sum_axis(Axis(1)) / num_heads; // (B, Tq, Tk)

        // 6. prune: by selection, so that a head of NaN can be taken out
        if let Some(head_mask) = options.head_mask {
            for (h, _) in head_mask.iter().enumerate().filter(|(_, kept)| !**kept) {
                heads.output.slice_mut(s![.., h, .., ..]).fill(T::zero());
            }
        }

        // 7. merge heads: positions before heads again, heads side by side
        let merged = merge_heads(&heads.output); // (B, Tq, Hq·Dv)

        // 8. output projection: mixes the heads
        let output = linear(&merged, &self.w_o, self.b_o.as_deref()); // (B, Tq, Cout)
        Ok(MhaSteps { output, weights: heads.weights, lse: heads.lse, mean_weights })
    }

    /// The next tokens of each row, `x` (B, T, C), a single one or a whole prompt: (B, T, Cout).
    ///
    /// Their keys and values are appended to the cache, and they attend causally to all that it then holds.
    /// A layer with a rope needs a cache with the same, which rotates keys and queries.
    ///
    /// # Errors
    /// `ShapeMismatch`, `InvalidConfig`, `CapacityExceeded`; then the cache is as it was.
    pub fn decode<S: Stored<Compute = T>>(
        &self,
        x: &ArrayRef3<T>,
        cache: &mut dyn Cache<S>,
        options: &Sdpa<'_, T>,
    ) -> Result<Array3<T>> {
        check_mha("decode", x.dim(), None, self, &MhaOptions::default())?;
        let [q, k, v] = self.project(x, x);
        check_decode("decode", (k.dim(), v.dim()), self.rope.as_ref(), cache)?;
        let mask = Mask { causal: true, ..options.mask };
        let (k, v) = (narrow::<S, _>(k), narrow::<S, _>(v));
        let options = Sdpa { mask, ..*options };
        let heads = cache.append_attend_steps((&k, &v), &Append::default(), &q, &options)?;
        Ok(linear(&merge_heads(&heads.output), &self.w_o, self.b_o.as_deref()))
    }
}

/// y = x Wᵀ + b: (B, T, in) to (B, T, out).
pub(crate) fn linear<T: Float>(
    x: &ArrayRef3<T>,
    w: &ArrayRef2<T>,
    b: Option<&ArrayRef1<T>>,
) -> Array3<T> {
    let (batch, len, width) = x.dim();
    let rows = x.to_shape((batch * len, width)).expect("same size"); // (B·T, in)
    let mut y = rows.dot(&w.t()); // (B·T, out)
    if let Some(b) = b {
        *y += b;
    }
    y.into_shape_clone((batch, len, w.nrows())).expect("same size")
}

/// (B, T, H·n) to (B, H, T, n).
pub(crate) fn split_heads<T: Float>(x: Array3<T>, num_heads: usize) -> Array4<T> {
    let (batch, len, width) = x.dim();
    let x = x.into_shape_clone((batch, len, num_heads, width / num_heads)).expect("same size");
    x.permuted_axes([0, 2, 1, 3])
}

/// (B, H, T, n) to (B, T, H·n).
pub(crate) fn merge_heads<T: Float>(x: &ArrayRef4<T>) -> Array3<T> {
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
        assert_eq!(merged, array![[[1.0, 2.0, 5.0, 6.0], [3.0, 4.0, 7.0, 8.0]]]); // HeadReshape
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
        let steps = layer.steps(&x, Some(&context), &MhaOptions::default()).unwrap();
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
            let output = layer.forward(&x, Some(&context), &MhaOptions::default()).unwrap();
            assert_eq!(output, Array3::from_elem((batch, tq, 2), if tk == 0 { 0.0 } else { 1.0 }));
        }
    }

    #[test]
    fn faults() {
        let eye = || Array2::<f32>::eye(4);
        let good = MultiHeadAttention::new(eye(), eye(), eye(), eye(), 2);
        let x = Array3::zeros((1, 2, 4));
        let code = |layer: MultiHeadAttention<'_, f32>| {
            layer.forward(&x, None, &MhaOptions::default()).unwrap_err().code()
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
        let error = good.forward(&x, Some(&other), &MhaOptions::default()).unwrap_err();
        assert_eq!(error.to_string(), "mha: context: expected batch 1 as in x, got 2");
    }
}
