//! Linear attention token by token: the memory of a fixed size is read and written in turn.
//!
//! ```text
//! S_j = S_{j-1} + f(k_j) v_jᵀ,   z_j = z_{j-1} + f(k_j),   output_i = f(q_i)ᵀ S_i / f(q_i)ᵀ z_i
//! ```
//!
//! What it changes, beside the [parallel rung](mod@crate::linear_attention): no table of pairs is
//! made, and the cost of a token does not depend on how many came before it.
//!
//! Letters: B batch, Hq query heads, Hkv key/value heads, G = Hq / Hkv, Tq and Tk query and key
//! lengths, D head size, Dv head size of the values.
//!
//! Source: Katharopoulos et al., "Transformers are RNNs", 2020, section 3.4.

use ndarray::{Array4, ArrayRef4, s};

use crate::checks::check_linear_attention;
use crate::errors::Result;
use crate::float::Float;
use crate::linear_attention::{LinearState, divide, feature, read, write};
use crate::sdpa::dot;

/// [`linear_attention`](fn@crate::linear_attention()) by recurrence; same arguments and errors.
///
/// # Errors
/// `ShapeMismatch`.
pub fn linear_recurrent<T: Float>(
    q: &ArrayRef4<T>,
    k: &ArrayRef4<T>,
    v: &ArrayRef4<T>,
    causal: bool,
    state: Option<&LinearState<T>>,
) -> Result<(Array4<T>, LinearState<T>)> {
    check_linear_attention("linear_recurrent", q.dim(), k.dim(), v.dim(), causal, state)?;
    let (batch, hq, tq, _) = q.dim();
    let (_, hkv, tk, dv) = v.dim();
    let group = hq / hkv.max(1); // G
    let mut memory = state.cloned().unwrap_or_else(|| LinearState::empty(k, v));
    let mut output = Array4::zeros((batch, hq, tq, dv)); // (B, Hq, Tq, Dv)

    // 1. feature map: of queries and keys, positive
    let (q, k) = (q.mapv(feature), k.mapv(feature)); // (B, Hq, Tq, D), (B, Hkv, Tk, D)

    for (b, kv) in ndarray::indices((batch, hkv)) {
        let mut state = memory.state.slice_mut(s![b, kv, .., ..]); // (D, Dv)
        let mut norm = memory.norm.slice_mut(s![b, kv, ..]); // (D)
        for (key, query) in turns(causal, tq, tk) {
            // 2. write: a key and its value into the memory
            if let Some(j) = key {
                let key = k.slice(s![b, kv, j, ..]); // (D)
                write(&mut state, key, &v.slice(s![b, kv, j, ..])); // (D, Dv)
                norm += &key; // (D)
            }

            let Some(i) = query else { continue };
            for h in kv * group..(kv + 1) * group {
                // 3. read: what the memory holds for a query
                let query = q.slice(s![b, h, i, ..]); // (D)
                let mut sum = read(query, &state); // (Dv)

                // 4. normalise: by what the query weighs all keys together
                divide(&mut sum, dot(query, norm.view())); // (Dv)
                output.slice_mut(s![b, h, i, ..]).assign(&sum);
            }
        }
    }
    Ok((output, memory))
}

/// Which key is written and which query is read, turn by turn: a causal query is read as soon as its own key
/// is written, any other when all keys are.
fn turns(causal: bool, tq: usize, tk: usize) -> Vec<(Option<usize>, Option<usize>)> {
    if causal {
        (0..tk).map(|t| (Some(t), Some(t))).collect()
    } else {
        (0..tk).map(|j| (Some(j), None)).chain((0..tq).map(|i| (None, Some(i)))).collect()
    }
}
