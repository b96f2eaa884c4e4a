//! Linear attention without a norm whose memory can forget (gates) and correct itself (delta rule).
//!
//! ```text
//! S   <- diag(e^decay_t) S                      gated
//! v_t <- beta_t (v_t - Sᵀ k_t)                  delta
//! S   <- S + k_t v_tᵀ
//! output_t = (scale · q_t)ᵀ S
//! ```
//!
//! Letters: B batch, Hq query heads, Hkv key/value heads, G = Hq / Hkv, T length, D head size, Dv
//! head size of the values.
//!
//! Sources: Schlag et al., "Linear Transformers Are Secretly Fast Weight Programmers", 2021,
//! section 4 (delta); Yang et al., "Gated Linear Attention Transformers", 2024, section 3 (gated);
//! Yang et al., "Gated Delta Networks", 2025, section 3 (both).

use std::str::FromStr;

use ndarray::{Array4, ArrayRef4, s};

use crate::checks::check_gated_linear;
use crate::errors::{AttentionError, Fault, Result};
use crate::float::Float;
use crate::linear_attention::{read, write};

/// What happens to the memory before a key is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Rule {
    /// Nothing.
    #[default]
    Linear,
    /// It fades.
    Gated,
    /// What it already says of the key is taken away from the value.
    Delta,
    /// It fades, and then the value is corrected.
    GatedDelta,
}

impl Rule {
    /// Whether the rule takes a decay.
    pub fn is_gated(self) -> bool {
        matches!(self, Self::Gated | Self::GatedDelta)
    }

    /// Whether the rule takes a beta.
    pub fn is_delta(self) -> bool {
        matches!(self, Self::Delta | Self::GatedDelta)
    }
}

impl FromStr for Rule {
    type Err = AttentionError;

    /// From "linear", "gated", "delta" or "gated_delta".
    fn from_str(name: &str) -> Result<Self> {
        match name {
            "linear" => Ok(Self::Linear),
            "gated" => Ok(Self::Gated),
            "delta" => Ok(Self::Delta),
            "gated_delta" => Ok(Self::GatedDelta),
            other => {
                let expected = "linear, gated, delta or gated_delta";
                let fault = Fault::new("gated_linear", "rule", expected, other);
                Err(AttentionError::InvalidConfig(fault))
            }
        }
    }
}

/// The options of one call; the default is the linear rule from an empty memory.
#[derive(Debug, Clone, Copy)]
pub struct GatedLinear<'a, T> {
    /// Which of the arrays below it takes.
    pub rule: Rule,
    /// (B, Hkv, D, Dv): the memory before the first token; `None` = zeros.
    pub state: Option<&'a ArrayRef4<T>>,
    /// (B, Hkv, T, D), or (B, Hkv, T, 1) for all channels alike: logarithm of what is kept.
    pub decay: Option<&'a ArrayRef4<T>>,
    /// (B, Hkv, T, 1), or (B, 1, T, 1) for all heads alike: how much of the correction is written.
    pub beta: Option<&'a ArrayRef4<T>>,
    /// `None` = 1/sqrt(D); an explicit 0 is 0.
    pub scale: Option<f64>,
}

impl<T> Default for GatedLinear<'_, T> {
    fn default() -> Self {
        Self { rule: Rule::Linear, state: None, decay: None, beta: None, scale: None }
    }
}

/// One token after the other: output (B, Hq, T, Dv) of `q` (B, Hq, T, D), `k` (B, Hkv, T, D) and `v`
/// (B, Hkv, T, Dv), and the memory (B, Hkv, D, Dv) after the last.
///
/// # Errors
/// `ShapeMismatch`; `InvalidConfig`, also for a decay or beta that the rule does not take, or lacks.
///
/// ```
/// use ndarray::{Array4, array};
/// use rosetta_attention::{GatedLinear, Rule, gated_linear};
/// // The same key twice: the delta rule replaces its value, where a sum would give 1 + 5.
/// let one = Array4::ones((1, 1, 2, 1));
/// let v = array![[[[1.0], [5.0]]]];
/// let delta = GatedLinear { rule: Rule::Delta, beta: Some(&one), ..GatedLinear::default() };
/// let (output, state) = gated_linear(&one, &one, &v, &delta)?;
/// assert_eq!((output, state), (v, array![[[[5.0]]]]));
/// # Ok::<(), rosetta_attention::AttentionError>(())
/// ```
pub fn gated_linear<T: Float>(
    q: &ArrayRef4<T>,
    k: &ArrayRef4<T>,
    v: &ArrayRef4<T>,
    options: &GatedLinear<'_, T>,
) -> Result<(Array4<T>, Array4<T>)> {
    check_gated_linear("gated_linear", q.dim(), k.dim(), v.dim(), options)?;
    let (batch, hq, len, d) = q.dim();
    let (_, hkv, _, dv) = v.dim();
    let group = hq / hkv.max(1); // G
    let scale = T::from_f64(options.scale.unwrap_or(1.0 / (d as f64).sqrt()));
    let decay = options.decay.map(|x| x.broadcast((batch, hkv, len, d)).expect("checked"));
    let beta = options.beta.map(|x| x.broadcast((batch, hkv, len, 1)).expect("checked"));
    let start = options.state.map(|state| state.to_owned());
    let mut memory = start.unwrap_or_else(|| Array4::zeros((batch, hkv, d, dv))); // (B, Hkv, D, Dv)
    let mut output = Array4::zeros((batch, hq, len, dv)); // (B, Hq, T, Dv)

    for (b, kv, t) in ndarray::indices((batch, hkv, len)) {
        let mut state = memory.slice_mut(s![b, kv, .., ..]); // (D, Dv)
        let key = k.slice(s![b, kv, t, ..]); // (D)
        let mut value = v.slice(s![b, kv, t, ..]).to_owned(); // (Dv)

        // 1. decay: each channel of the memory fades at its own rate
        if let Some(decay) = decay {
            for (mut row, decay) in state.rows_mut().into_iter().zip(decay.slice(s![b, kv, t, ..]))
            {
                row *= decay.exp(); // (Dv)
            }
        }

        // 2. correct: only what the memory does not yet say of this key is written
        if let Some(beta) = beta {
            value -= &read(key, &state); // (Dv)
            value *= beta[[b, kv, t, 0]]; // (Dv)
        }

        // 3. write: the value under its key
        write(&mut state, key, &value); // (D, Dv)

        // 4. read: what the memory holds for the queries of the group
        for h in kv * group..(kv + 1) * group {
            let query = q.slice(s![b, h, t, ..]).mapv(|q| scale * q); // (D)
            output.slice_mut(s![b, h, t, ..]).assign(&read(query.view(), &state)); // (Dv)
        }
    }
    Ok((output, memory))
}
