//! Multi-head latent attention (MLA): keys and values of all heads come from one small vector a token.
//!
//! ```text
//! c = rms(W_dkv x),   k_r = rope(W_kr x)                 all that a cache would have to hold
//! q_h = [q_n, rope(q_r)],   k_h = [W_uk,h c, k_r],   v_h = W_uv,h c
//! output = concat_h(sdpa(q, k, v)_h) W_oᵀ
//! ```
//!
//! This rung expands keys and values; the [absorbed](crate::mla_absorbed) one attends to c itself.
//!
//! Letters: B batch, T length, C model width, H heads, Rq latent size of the queries, R latent size of keys
//! and values, Dn plain and Dr rotary part of a head, Dv head size of the values, Cout width of the output.
//!
//! Source: DeepSeek-AI, "DeepSeek-V2", 2024, section 2.1.

use ndarray::{
    Array3, Array4, ArrayRef1, ArrayRef3, ArrayRef4, Axis, CowArray, Ix1, Ix2, concatenate, s,
};

use crate::checks::check_mla;
use crate::errors::Result;
use crate::float::Float;
use crate::masks::Mask;
use crate::mha::{linear, merge_heads, split_heads};
use crate::rms_norm::rms;
use crate::rope::{Rope, placed, rotate, turns};
use crate::sdpa::{Sdpa, sdpa_steps};

/// The weights of one layer, owned or borrowed. They are (out, in), y = x Wᵀ; heads are consecutive blocks
/// of rows.
#[derive(Debug, Clone)]
pub struct MultiHeadLatentAttention<'a, T> {
    /// (H·(Dn + Dr), C), or (H·(Dn + Dr), Rq) with `w_dq`: the plain rows of a head, then its rotary ones.
    pub w_q: CowArray<'a, T, Ix2>,
    /// (R, C)
    pub w_dkv: CowArray<'a, T, Ix2>,
    /// (Dr, C)
    pub w_kr: CowArray<'a, T, Ix2>,
    /// (H·Dn, R)
    pub w_uk: CowArray<'a, T, Ix2>,
    /// (H·Dv, R)
    pub w_uv: CowArray<'a, T, Ix2>,
    /// (Cout, H·Dv)
    pub w_o: CowArray<'a, T, Ix2>,
    /// H
    pub num_heads: usize,
    /// (Rq, C): queries come from a latent vector as well; `None` = from x.
    pub w_dq: Option<CowArray<'a, T, Ix2>>,
    /// (Rq): the latent queries are RMS-normalised with these weights; `None` = they are not.
    pub q_norm: Option<CowArray<'a, T, Ix1>>,
    /// (R): the latent keys and values likewise.
    pub kv_norm: Option<CowArray<'a, T, Ix1>>,
    /// What those two norms add to the mean square; 1e-6 by default.
    pub eps: f64,
    /// Turns the rotary parts.
    pub rope: Rope,
}

/// The options of one call; the default hides nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct MlaOptions<'a> {
    /// No query sees a key that stands after it.
    pub causal: bool,
    /// (B): how many keys of each row exist.
    pub kv_lengths: Option<&'a ArrayRef1<i64>>,
    /// `None` = 1/sqrt(Dn + Dr); an explicit 0 is 0.
    pub scale: Option<f64>,
}

/// The output of one call with its attention and what a cache would hold.
#[derive(Debug, Clone)]
pub struct MlaSteps<T> {
    /// (B, T, Cout)
    pub output: Array3<T>,
    /// (B, H, T, T)
    pub weights: Array4<T>,
    /// (B, H, T)
    pub lse: Array3<T>,
    /// c: (B, T, R)
    pub latent: Array3<T>,
    /// k_r: (B, T, Dr)
    pub rope_key: Array3<T>,
}

impl<'a, T: Float> MultiHeadLatentAttention<'a, T> {
    /// A layer without latent queries and norms.
    pub fn new(
        w_q: impl Into<CowArray<'a, T, Ix2>>,
        w_dkv: impl Into<CowArray<'a, T, Ix2>>,
        w_kr: impl Into<CowArray<'a, T, Ix2>>,
        w_uk: impl Into<CowArray<'a, T, Ix2>>,
        w_uv: impl Into<CowArray<'a, T, Ix2>>,
        w_o: impl Into<CowArray<'a, T, Ix2>>,
        num_heads: usize,
    ) -> Self {
        Self {
            w_q: w_q.into(),
            w_dkv: w_dkv.into(),
            w_kr: w_kr.into(),
            w_uk: w_uk.into(),
            w_uv: w_uv.into(),
            w_o: w_o.into(),
            num_heads,
            w_dq: None,
            q_norm: None,
            kv_norm: None,
            eps: 1e-6,
            rope: Rope::default(),
        }
    }

    /// Self-attention of `x` (B, T, C): (B, T, Cout).
    ///
    /// # Errors
    /// `ShapeMismatch`, `InvalidConfig`.
    pub fn forward(&self, x: &ArrayRef3<T>, options: &MlaOptions<'_>) -> Result<Array3<T>> {
        Ok(self.steps(x, options)?.output)
    }

    /// The call with its intermediates; same arguments and errors.
    ///
    /// # Errors
    /// `ShapeMismatch`, `InvalidConfig`.
    pub fn steps(&self, x: &ArrayRef3<T>, options: &MlaOptions<'_>) -> Result<MlaSteps<T>> {
        check_mla("mla", x.dim(), self, options)?;

        // 1. queries: each head has a part that knows its position and one that does not
        let (q_n, q_r) = self.queries(x); // (B, H, T, Dn), (B, H, T, Dr)

        // 2. latent: what keys and values of all heads come from
        let latent = self.latent(x); // (B, T, R)

        // 3. rotate: the rotary queries, and the one rotary key that all heads share
        let q_r = self.turned(&q_r); // (B, H, T, Dr)
        let k_r = self.rotary_key(x); // (B, 1, T, Dr)

        // 4. expand: each head's own keys and values
        let k_n = split_heads(linear(&latent, &self.w_uk, None), self.num_heads); // (B, H, T, Dn)
        let v = split_heads(linear(&latent, &self.w_uv, None), self.num_heads); // (B, H, T, Dv)
        let shared = k_r.broadcast(q_r.dim()).expect("one head for all"); // (B, H, T, Dr)
        let k = concatenate![Axis(3), k_n, shared]; // (B, H, T, Dn + Dr)
        let q = concatenate![Axis(3), q_n, q_r]; // (B, H, T, Dn + Dr)

        // 5. attention: every head on its own
        let heads = sdpa_steps(&q, &k, &v, &self.attention(options))?; // output (B, H, T, Dv)

        // 6. output projection: mixes the heads
        let output = linear(&merge_heads(&heads.output), &self.w_o, None); // (B, T, Cout)
        let rope_key = k_r.remove_axis(Axis(1)); // (B, T, Dr)
        Ok(MlaSteps { output, weights: heads.weights, lse: heads.lse, latent, rope_key })
    }

    /// The plain and the rotary part of each head's queries, not yet turned: (B, H, T, Dn), (B, H, T, Dr).
    pub(crate) fn queries(&self, x: &ArrayRef3<T>) -> (Array4<T>, Array4<T>) {
        let q = match &self.w_dq {
            None => linear(x, &self.w_q, None),
            Some(w_dq) => linear(&self.compressed(x, w_dq, &self.q_norm), &self.w_q, None),
        }; // (B, T, H·(Dn + Dr))
        let q = split_heads(q, self.num_heads); // (B, H, T, Dn + Dr)
        let plain = self.w_uk.nrows() / self.num_heads; // Dn
        (q.slice(s![.., .., .., ..plain]).to_owned(), q.slice(s![.., .., .., plain..]).to_owned())
    }

    /// c: (B, T, R).
    pub(crate) fn latent(&self, x: &ArrayRef3<T>) -> Array3<T> {
        self.compressed(x, &self.w_dkv, &self.kv_norm)
    }

    /// x through a projection to a smaller width, and a norm if there is one.
    fn compressed(
        &self,
        x: &ArrayRef3<T>,
        w: &CowArray<'a, T, Ix2>,
        norm: &Option<CowArray<'a, T, Ix1>>,
    ) -> Array3<T> {
        let small = linear(x, w, None); // (B, T, R)
        match norm {
            None => small,
            Some(weight) => rms(&small, Some(weight), self.eps),
        }
    }

    /// k_r, as keys of a single head: (B, 1, T, Dr).
    pub(crate) fn rotary_key(&self, x: &ArrayRef3<T>) -> Array4<T> {
        self.turned(&linear(x, &self.w_kr, None).insert_axis(Axis(1)))
    }

    /// Rotary parts (B, ·, T, Dr), turned by their positions.
    pub(crate) fn turned(&self, x: &ArrayRef4<T>) -> Array4<T> {
        let (batch, _, len, d) = x.dim();
        let positions = placed(batch, len, self.rope.offset, None); // (B, T)
        let (cos, sin) = turns(&self.rope, d, &positions); // (B, T, R/2) each
        rotate(x, &cos, &sin, self.rope.interleaved)
    }

    /// The options of the attention inside; the scale is that of the expanded heads.
    pub(crate) fn attention<'o>(&self, options: &MlaOptions<'o>) -> Sdpa<'o, T> {
        let size = self.w_q.nrows() / self.num_heads; // Dn + Dr
        let mask =
            Mask { causal: options.causal, kv_lengths: options.kv_lengths, ..Mask::default() };
        let scale = options.scale.unwrap_or(1.0 / (size as f64).sqrt());
        Sdpa { mask, scale: Some(scale), ..Sdpa::default() }
    }
}

#[cfg(test)]
mod tests {
    use ndarray::{Array2, array};

    use super::*;

    /// Two heads, Rq 3, R 3, Dn 2, Dr 2, Dv 1, C 4, Cout 5; every option is used.
    fn layer() -> MultiHeadLatentAttention<'static, f64> {
        let mut state = 7_u64;
        let mut weight = |rows, columns| {
            Array2::from_shape_simple_fn((rows, columns), || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
                (state >> 40) as f64 / f64::from(1 << 23) - 1.0
            })
        };
        let mut layer = MultiHeadLatentAttention::new(
            weight(8, 3),
            weight(3, 4),
            weight(2, 4),
            weight(4, 3),
            weight(2, 3),
            weight(5, 2),
            2,
        );
        layer.w_dq = Some(weight(3, 4).into());
        layer.q_norm = Some(array![1.0, 2.0, 0.5].into());
        layer.kv_norm = Some(array![0.5, 1.0, 3.0].into());
        layer
    }

    fn x() -> Array3<f64> {
        Array3::from_shape_fn((2, 3, 4), |(b, t, c)| ((5 * b + 3 * t + 7 * c) % 11) as f64 - 5.0)
    }

    #[test]
    fn absorbed_is_the_same() {
        let lengths = array![3, 2];
        for options in [
            MlaOptions::default(),
            MlaOptions { causal: true, kv_lengths: Some(&lengths), scale: Some(0.25) },
        ] {
            let (plain, absorbed) =
                (layer().steps(&x(), &options).unwrap(), layer().absorbed(&x(), &options).unwrap());
            for (a, b) in [
                (plain.output.into_dyn(), absorbed.output.into_dyn()),
                (plain.weights.into_dyn(), absorbed.weights.into_dyn()),
                (plain.lse.into_dyn(), absorbed.lse.into_dyn()),
                (plain.latent.into_dyn(), absorbed.latent.into_dyn()),
                (plain.rope_key.into_dyn(), absorbed.rope_key.into_dyn()),
            ] {
                assert_eq!(a.shape(), b.shape());
                assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-12));
            }
        }
    }

    #[test]
    fn one_token_gives_its_lifted_latent() {
        let (mut layer, x) = (layer(), array![[[1.0, 2.0, 3.0, 4.0]]]);
        layer.w_o = Array2::eye(2).into();
        let steps = layer.steps(&x, &MlaOptions::default()).unwrap();
        let lifted = linear(&steps.latent, &layer.w_uv, None);
        assert_eq!(steps.output, lifted); // the only weight is 1
        assert_eq!(steps.rope_key, linear(&x, &layer.w_kr, None)); // position 0 does not turn
    }

    #[test]
    fn scores_know_the_distance_only() {
        let steps = |offset| {
            let mut layer = layer();
            layer.rope.offset = offset;
            layer.steps(&x(), &MlaOptions::default()).unwrap()
        };
        let (here, there) = (steps(0), steps(1000));
        assert!(here.rope_key.iter().zip(&there.rope_key).any(|(a, b)| (a - b).abs() > 0.1));
        assert!(here.output.iter().zip(&there.output).all(|(a, b)| (a - b).abs() < 1e-9));
    }

    #[test]
    fn empty_sizes() {
        for (batch, len) in [(0, 3), (2, 0)] {
            let x = Array3::zeros((batch, len, 4));
            for steps in [
                layer().steps(&x, &MlaOptions::default()).unwrap(),
                layer().absorbed(&x, &MlaOptions::default()).unwrap(),
            ] {
                assert_eq!(steps.output.dim(), (batch, len, 5));
                assert_eq!(steps.weights.dim(), (batch, 2, len, len));
            }
        }
    }

    #[test]
    fn faults() {
        let code = |change: fn(&mut MultiHeadLatentAttention<'_, f64>)| {
            let mut layer = layer();
            change(&mut layer);
            layer.forward(&x(), &MlaOptions::default()).unwrap_err().code()
        };
        assert_eq!(code(|layer| layer.num_heads = 0), "invalid_config");
        assert_eq!(code(|layer| layer.num_heads = 3), "shape_mismatch");
        assert_eq!(code(|layer| layer.w_dq = None), "invalid_config"); // q_norm stays
        assert_eq!(code(|layer| layer.eps = -1.0), "invalid_config");
        assert_eq!(code(|layer| layer.w_kr = Array2::zeros((3, 4)).into()), "shape_mismatch");
        assert_eq!(code(|layer| layer.w_o = Array2::zeros((5, 3)).into()), "shape_mismatch");
        assert_eq!(code(|layer| layer.kv_norm = Some(array![1.0].into())), "shape_mismatch");
        assert_eq!(code(|layer| layer.rope.rotary_dim = Some(4)), "invalid_config");
    }
}
