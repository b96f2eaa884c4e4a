//! Scaled dot-product attention, as plain as the formula.
//!
//! ```text
//! output = softmax(mask(softcap(scale · Q Kᵀ) + bias)) · V
//! ```
//!
//! Letters: B batch, Hq query heads, Hkv key/value heads, G = Hq / Hkv query heads a KV head, Tq
//! and Tk query and key lengths, D head size, Dv head size of the values.
//!
//! A slot (one query, one key) is *hidden* when the mask hides it, its bias is -inf, or its score
//! after the bias is -inf. A hidden slot has weight exactly 0, and nothing of it reaches the
//! result: NaN in its K or V changes nothing.
//!
//! Sources: Vaswani et al., "Attention Is All You Need", 2017, section 3.2.1; Ainslie et al.,
//! "GQA", 2023 (groups); Gemma 2 report, 2024 (softcap); gpt-oss, 2025 (sinks). The order of the
//! steps is that of ONNX Attention, opset 25, and the dropout that of PyTorch's.

use ndarray::{Array3, Array4, ArrayRef1, ArrayRef4, ArrayRefD, ArrayView1, Axis, Zip, s};

use crate::checks::check_sdpa;
use crate::dropout::{Dropout, dropout};
use crate::errors::Result;
use crate::float::Float;
use crate::masks::{self, Mask};
use crate::softmax::softmax_lse;

/// The options of one call; the default is plain attention.
#[derive(Debug, Clone, Copy)]
pub struct Sdpa<'a, T> {
    /// Which key each query sees.
    pub mask: Mask<'a>,
    /// Added to the scores, right-aligned broadcastable to (B, Hq, Tq, Tk); -inf hides its slot.
    pub bias: Option<&'a ArrayRefD<T>>,
    /// `None` = 1/sqrt(D); an explicit 0 is 0.
    pub scale: Option<f64>,
    /// c > 0 bounds the scores to (-c, c) by c·tanh(s/c); `None` = off.
    pub softcap: Option<f64>,
    /// (Hq): a logit per head that joins the denominator of the softmax and carries no value.
    pub sinks: Option<&'a ArrayRef1<T>>,
    /// Of the weights, by their index in (B, Hq, Tq, Tk).
    pub dropout: Option<Dropout>,
}

impl<T> Default for Sdpa<'_, T> {
    fn default() -> Self {
        Self {
            mask: Mask::default(),
            bias: None,
            scale: None,
            softcap: None,
            sinks: None,
            dropout: None,
        }
    }
}

/// Every intermediate of one call. `scores`, `capped` and `biased` are before masking, `weights` before
/// dropout.
#[derive(Debug, Clone)]
pub struct Steps<T> {
    /// (B, Hq, Tq, Dv)
    pub output: Array4<T>,
    /// (B, Hq, Tq, Tk)
    pub weights: Array4<T>,
    /// (B, Hq, Tq)
    pub lse: Array3<T>,
    /// (B, Hq, Tq, Tk)
    pub scores: Array4<T>,
    /// (B, Hq, Tq, Tk)
    pub capped: Array4<T>,
    /// (B, Hq, Tq, Tk)
    pub biased: Array4<T>,
}

/// Attention of `q` (B, Hq, Tq, D) over `k` (B, Hkv, Tk, D) and `v` (B, Hkv, Tk, Dv):
/// (B, Hq, Tq, Dv).
///
/// Query head h reads KV head h / G. Tq, Tk and B may be 0.
///
/// # Errors
/// `ShapeMismatch`, `InvalidConfig`.
///
/// ```
/// use ndarray::{Array4, array};
/// use rosetta_attention::{Mask, Sdpa, sdpa};
/// // Queries of 0 weigh all keys that they see alike: the output is the mean of those values.
/// let (q, k) = (Array4::<f32>::zeros((1, 1, 3, 1)), Array4::zeros((1, 1, 3, 1)));
/// let v = array![[[[1.0], [2.0], [3.0]]]];
/// let causal = Sdpa { mask: Mask { causal: true, ..Mask::default() }, ..Sdpa::default() };
/// assert_eq!(sdpa(&q, &k, &v, &causal)?, array![[[[1.0], [1.5], [2.0]]]]);
/// # Ok::<(), rosetta_attention::AttentionError>(())
/// ```
pub fn sdpa<T: Float>(
    q: &ArrayRef4<T>,
    k: &ArrayRef4<T>,
    v: &ArrayRef4<T>,
    options: &Sdpa<'_, T>,
) -> Result<Array4<T>> {
    Ok(sdpa_steps(q, k, v, options)?.output)
}

/// [`sdpa`](fn@sdpa) with all its intermediates; same arguments and errors.
///
/// # Errors
/// `ShapeMismatch`, `InvalidConfig`.
pub fn sdpa_steps<T: Float>(
    q: &ArrayRef4<T>,
    k: &ArrayRef4<T>,
    v: &ArrayRef4<T>,
    options: &Sdpa<'_, T>,
) -> Result<Steps<T>> {
    check_sdpa("sdpa", q.dim(), k.dim(), v.dim(), options)?;
    let (batch, hq, tq, d) = q.dim();
    let (_, hkv, tk, dv) = v.dim();
    let group = hq / hkv.max(1); // G
    let scale = options.scale_of(d);

    // 1. scores: scale · Q Kᵀ; the scale goes onto q first, so that a sum that fits when scaled cannot overflow
    let q = q.mapv(|x| x * scale); // (B, Hq, Tq, D)
    let scores = Array4::from_shape_fn((batch, hq, tq, tk), |(b, h, i, j)| {
        dot(q.slice(s![b, h, i, ..]), k.slice(s![b, h / group, j, ..]))
    }); // (B, Hq, Tq, Tk)

    // 2. softcap: c · tanh(s / c), before the mask, which it would otherwise make finite
    let capped = match options.softcap.map(T::from_f64) {
        None => scores.clone(),
        Some(c) => scores.mapv(|s| softcap(s, c)),
    }; // (B, Hq, Tq, Tk)

    // 3. bias: added as it is
    let bias = options.bias.map(|bias| bias.broadcast(scores.dim()).expect("checked"));
    let biased = match bias {
        None => capped.clone(),
        Some(bias) => &capped + &bias,
    }; // (B, Hq, Tq, Tk)

    // 4. mask: by selection, never by adding a large number
    let mut shown = masks::table(&options.mask, scores.dim()); // (B, Hq, Tq, Tk)
    if let Some(bias) = bias {
        shown.zip_mut_with(&bias, |shown, &bias| *shown &= bias != T::neg_infinity());
    }
    let logits = Zip::from(&biased)
        .and(&shown)
        .map_collect(|&x, &shown| if shown { x } else { T::neg_infinity() }); // (B, Hq, Tq, Tk)

    // 5. softmax: over the keys; the sinks join the sum
    let sinks = options.sinks.map(|sinks| sinks.view().insert_axis(Axis(1)).into_dyn()); // (Hq, 1)
    let (weights, lse) = softmax_lse(&logits, sinks.as_deref())?; // (B, Hq, Tq, Tk), (B, Hq, Tq)

    // 6. dropout: some weights become 0, the others larger; a row of NaN stays one
    let mut kept = weights.clone(); // (B, Hq, Tq, Tk)
    if let Some(options) = &options.dropout {
        let dropped = dropout(&weights, options, 0)?;
        kept.zip_mut_with(&dropped, |w, &d| *w = if w.is_nan() { *w } else { d });
    }

    // 7. weighted sum: over the values of the visible keys
    let mut output = Array4::zeros((batch, hq, tq, dv)); // (B, Hq, Tq, Dv)
    for ((b, h, i, j), &weight) in kept.indexed_iter() {
        if logits[[b, h, i, j]] != T::neg_infinity() {
            let value = v.slice(s![b, h / group, j, ..]); // (Dv)
            output.slice_mut(s![b, h, i, ..]).scaled_add(weight, &value);
        }
    }
    Ok(Steps { output, weights, lse, scores, capped, biased })
}

impl<T: Float> Sdpa<'_, T> {
    /// The scale in the compute type, for a head size of `d`.
    pub(crate) fn scale_of(&self, d: usize) -> T {
        T::from_f64(self.scale.unwrap_or(1.0 / (d as f64).sqrt()))
    }
}

/// Bounds a score to (-c, c).
pub(crate) fn softcap<T: Float>(s: T, c: T) -> T {
    c * (s / c).tanh()
}

/// Σ a·b in order, so that the strides of the two change no bit of the result.
pub(crate) fn dot<T: Float>(a: ArrayView1<'_, T>, b: ArrayView1<'_, T>) -> T {
    a.iter().zip(b).fold(T::zero(), |sum, (&a, &b)| sum + a * b)
}
