//! Sparse attention: softmax attention in which only the visible pairs of a pattern are ever scored.
//!
//! ```text
//! output_i = Σ_{j in keys(i)} softmax_j(scale · q_i · k_j) v_j
//! ```
//!
//! The same numbers as [`sdpa`](fn@crate::sdpa()) with the pattern as its mask, for the work of the
//! visible pairs alone.
//!
//! Letters: B batch, Hq query heads, Hkv key/value heads, G = Hq / Hkv, Tq and Tk query and key
//! lengths, D head size, Dv head size of the values, n visible keys of a query.
//!
//! Sources: as for the [patterns](crate::sparse_patterns).

use ndarray::{Array1, Array3, Array4, ArrayRef4, s};

use crate::checks::check_sparse;
use crate::errors::Result;
use crate::float::Float;
use crate::sdpa::dot;
use crate::softmax::softmax_lse;
use crate::sparse_patterns::Pattern;

/// What one call gives.
#[derive(Debug, Clone)]
pub struct SparseSteps<T> {
    /// (B, Hq, Tq, Dv)
    pub output: Array4<T>,
    /// (B, Hq, Tq)
    pub lse: Array3<T>,
    /// (Tq): for how many keys a score was computed, per query and head.
    pub visited: Array1<i64>,
}

/// Attention of `q` (B, Hq, Tq, D) over the keys `k` (B, Hkv, Tk, D) and values `v` (B, Hkv, Tk, Dv)
/// that `pattern` shows it: (B, Hq, Tq, Dv).
///
/// Query head h reads KV head h / G. `scale`: `None` = 1/sqrt(D). `causal`: and j <= i. A query
/// without a visible key has output 0.
///
/// # Errors
/// `ShapeMismatch`, `InvalidConfig`.
///
/// ```
/// use ndarray::{Array4, array};
/// use rosetta_attention::{Pattern, sparse};
/// let (q, k) = (Array4::<f32>::zeros((1, 1, 3, 1)), Array4::zeros((1, 1, 3, 1)));
/// let v = array![[[[1.0], [2.0], [6.0]]]];
/// let output = sparse(&q, &k, &v, &Pattern::Window { left: 1, right: 0 }, None, false)?;
/// assert_eq!(output, array![[[[1.0], [1.5], [4.0]]]]);
/// # Ok::<(), rosetta_attention::AttentionError>(())
/// ```
pub fn sparse<T: Float>(
    q: &ArrayRef4<T>,
    k: &ArrayRef4<T>,
    v: &ArrayRef4<T>,
    pattern: &Pattern<'_>,
    scale: Option<f64>,
    causal: bool,
) -> Result<Array4<T>> {
    Ok(sparse_steps(q, k, v, pattern, scale, causal)?.output)
}

/// `sparse` with its log-sum-exp and its count of scores; same arguments and errors.
///
/// # Errors
/// `ShapeMismatch`, `InvalidConfig`.
pub fn sparse_steps<T: Float>(
    q: &ArrayRef4<T>,
    k: &ArrayRef4<T>,
    v: &ArrayRef4<T>,
    pattern: &Pattern<'_>,
    scale: Option<f64>,
    causal: bool,
) -> Result<SparseSteps<T>> {
    check_sparse("sparse", q.dim(), k.dim(), v.dim(), pattern, scale)?;
    let (batch, hq, tq, d) = q.dim();
    let (_, hkv, tk, dv) = v.dim();
    let group = hq / hkv.max(1); // G
    let scale = T::from_f64(scale.unwrap_or(1.0 / (d as f64).sqrt()));
    let mut output = Array4::zeros((batch, hq, tq, dv)); // (B, Hq, Tq, Dv)
    let mut lse = Array3::zeros((batch, hq, tq)); // (B, Hq, Tq)
    let mut visited = Array1::zeros(tq); // (Tq)

    for i in 0..tq {
        // 1. keys: those that the pattern lists; no other is looked at
        let mut keys = pattern.listed(i, tk); // (n)
        keys.retain(|&j| !causal || j <= i);
        visited[i] = keys.len() as i64;

        for (b, h) in ndarray::indices((batch, hq)) {
            // 2. scores: scale · q · k, the scale on q first
            let query = q.slice(s![b, h, i, ..]).mapv(|q| q * scale); // (D)
            let key = |&j: &usize| k.slice(s![b, h / group, j, ..]);
            let scores = keys.iter().map(|j| dot(query.view(), key(j))).collect::<Array1<T>>(); // (n)

            // 3. softmax: over the visible keys
            let (weights, total) = softmax_lse(&scores, None)?; // (n), ()
            lse[[b, h, i]] = total[()];

            // 4. weighted sum: a key whose score is -inf is hidden, too
            let mut sum = output.slice_mut(s![b, h, i, ..]); // (Dv)
            for ((&j, &weight), &score) in keys.iter().zip(&weights).zip(&scores) {
                if score != T::neg_infinity() {
                    sum.scaled_add(weight, &v.slice(s![b, h / group, j, ..])); // (Dv)
                }
            }
        }
    }
    Ok(SparseSteps { output, lse, visited })
}
