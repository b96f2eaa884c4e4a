//! Multi-head latent attention without expanded keys and values: the heads attend to the latent vectors.
//!
//! ```text
//! q_n · (W_uk,h c) = (W_uk,hᵀ q_n) · c,   Σ w_j W_uv,h c_j = W_uv,h Σ w_j c_j
//! ```
//!
//! What it changes, beside the [plain rung](crate::mla): the two projections of every key and value are
//! absorbed into the queries and the output, so that attention reads R + Dr numbers a token instead of
//! H·(Dn + Dr + Dv): multi-query attention, with one key for all heads and the latent as its value.
//!
//! Letters: B batch, T length, H heads, R latent size, Dn plain and Dr rotary part of a head, Dv head size of
//! the values, Cout width of the output.
//!
//! Source: DeepSeek-AI, "DeepSeek-V2", 2024, section 2.1.2 and appendix C.

use ndarray::{Array3, Array4, ArrayRef2, ArrayRef3, ArrayRef4, Axis, concatenate, s};

use crate::checks::check_mla;
use crate::errors::Result;
use crate::float::Float;
use crate::mha::{linear, merge_heads};
use crate::mla::{MlaOptions, MlaSteps, MultiHeadLatentAttention};
use crate::sdpa::sdpa_steps;

impl<T: Float> MultiHeadLatentAttention<'_, T> {
    /// [`steps`](Self::steps) without expanded keys and values; same arguments, results and errors.
    ///
    /// # Errors
    /// `ShapeMismatch`, `InvalidConfig`.
    pub fn absorbed(&self, x: &ArrayRef3<T>, options: &MlaOptions<'_>) -> Result<MlaSteps<T>> {
        check_mla("mla", x.dim(), self, options)?;

        // 1. queries: each head has a part that knows its position and one that does not
        let (q_n, q_r) = self.queries(x); // (B, H, T, Dn), (B, H, T, Dr)

        // 2. latent: key and value of all heads at once
        let latent = self.latent(x); // (B, T, R)

        // 3. rotate: the rotary queries, and the one rotary key that all heads share
        let q_r = self.turned(&q_r); // (B, H, T, Dr)
        let k_r = self.rotary_key(x); // (B, 1, T, Dr)

        // 4. absorb: the projection of the keys into the queries
        let w_uk = blocks(&self.w_uk, self.num_heads); // (H, Dn, R)
        let q_n = by_head(&q_n, &w_uk); // (B, H, T, R)
        let q = concatenate![Axis(3), q_n, q_r]; // (B, H, T, R + Dr)

        // 5. attention: over one key and one value a token
        let c = latent.view().insert_axis(Axis(1)); // (B, 1, T, R)
        let k = concatenate![Axis(3), c, k_r]; // (B, 1, T, R + Dr)
        let heads = sdpa_steps(&q, &k, &c, &self.attention(options))?; // output (B, H, T, R)

        // 6. lift: the weighted latents to the heads' values
        let w_uv = blocks(&self.w_uv, self.num_heads).permuted_axes([0, 2, 1]); // (H, R, Dv)
        let lifted = by_head(&heads.output, &w_uv); // (B, H, T, Dv)

        // 7. output projection: mixes the heads
        let output = linear(&merge_heads(&lifted), &self.w_o, None); // (B, T, Cout)
        let rope_key = k_r.remove_axis(Axis(1)); // (B, T, Dr)
        Ok(MlaSteps { output, weights: heads.weights, lse: heads.lse, latent, rope_key })
    }
}

/// A weight (H·n, R) as the matrices of its heads: (H, n, R).
fn blocks<T: Float>(w: &ArrayRef2<T>, num_heads: usize) -> Array3<T> {
    let shape = (num_heads, w.nrows() / num_heads, w.ncols());
    w.to_shape(shape).expect("checked").into_owned()
}

/// Every head times a matrix of its own: (B, H, T, n) and (H, n, m) to (B, H, T, m).
fn by_head<T: Float>(x: &ArrayRef4<T>, w: &ArrayRef3<T>) -> Array4<T> {
    let (batch, heads, len, _) = x.dim();
    let mut y = Array4::zeros((batch, heads, len, w.dim().2));
    for (b, h) in ndarray::indices((batch, heads)) {
        let product = x.slice(s![b, h, .., ..]).dot(&w.slice(s![h, .., ..])); // (T, m)
        y.slice_mut(s![b, h, .., ..]).assign(&product);
    }
    y
}
