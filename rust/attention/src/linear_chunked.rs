//! Linear attention chunk by chunk: pairs inside a chunk, the memory for all that came before it.
//!
//! ```text
//! numerator_i = Σ_{j <= i, in the chunk} f(q_i)·f(k_j) v_j + f(q_i)ᵀ S_before
//! ```
//!
//! What it changes, beside the [parallel rung](mod@crate::linear_attention): the table of pairs is
//! as small as a chunk; beside the [recurrent](mod@crate::linear_recurrent) one: most of the work
//! is products of matrices.
//!
//! Letters: B batch, Hq query heads, Hkv key/value heads, G = Hq / Hkv, Tq and Tk query and key
//! lengths, c length of a chunk, D head size, Dv head size of the values.
//!
//! Sources: Hua et al., "Transformer Quality in Linear Time", 2022, section 3.2; Yang et al.,
//! "Gated Linear Attention Transformers", 2024, section 2.2.

use std::ops::Range;

use ndarray::{Array4, ArrayRef4, Axis, s};

use crate::checks::{check_chunk, check_linear_attention};
use crate::errors::Result;
use crate::float::Float;
use crate::linear_attention::{LinearState, divide, feature};

/// [`linear_attention`](fn@crate::linear_attention()) in chunks of `chunk` >= 1 positions; same
/// arguments and errors otherwise.
///
/// # Errors
/// `ShapeMismatch`, `InvalidConfig`.
pub fn linear_chunked<T: Float>(
    q: &ArrayRef4<T>,
    k: &ArrayRef4<T>,
    v: &ArrayRef4<T>,
    causal: bool,
    state: Option<&LinearState<T>>,
    chunk: usize,
) -> Result<(Array4<T>, LinearState<T>)> {
    check_linear_attention("linear_chunked", q.dim(), k.dim(), v.dim(), causal, state)?;
    check_chunk("linear_chunked", chunk)?;
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
        for (keys, queries) in turns(causal, tq, tk, chunk) {
            // 2. chunk: keys and values of this turn, which its queries see up to their own place
            let key = k.slice(s![b, kv, keys.clone(), ..]); // (c, D)
            let value = v.slice(s![b, kv, keys.clone(), ..]); // (c, Dv)

            for h in kv * group..(kv + 1) * group {
                let query = q.slice(s![b, h, queries.clone(), ..]); // (c, D)
                let mut sum = output.slice_mut(s![b, h, queries.clone(), ..]); // (c, Dv)

                // 3. inside: the pairs of the chunk; later keys are not read
                let similar = query.dot(&key.t()); // (c, c)
                let mut total = query.dot(&norm); // (c)
                for ((i, j), &weight) in similar.indexed_iter().filter(|((i, j), _)| j <= i) {
                    sum.row_mut(i).scaled_add(weight, &value.row(j)); // (Dv)
                    total[i] += weight;
                }

                // 4. before: what the memory holds of earlier chunks
                sum += &query.dot(&state); // (c, Dv)

                // 5. normalise: by what a query weighs all keys together
                for (mut sum, &total) in sum.rows_mut().into_iter().zip(&total) {
                    divide(&mut sum, total); // (Dv)
                }
            }

            // 6. carry: the chunk into the memory
            state += &key.t().dot(&value); // (D, Dv)
            norm += &key.sum_axis(Axis(0)); // (D)
        }
    }
    Ok((output, memory))
}

/// Keys and queries of each turn: causal ones together, else all chunks of keys before those of queries.
fn turns(
    causal: bool,
    tq: usize,
    tk: usize,
    chunk: usize,
) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
    let cut = move |len: usize| {
        (0..len).step_by(chunk).map(move |start| start..len.min(start.saturating_add(chunk)))
    };
    let keys = cut(tk).map(move |keys| (keys.clone(), if causal { keys } else { 0..0 }));
    keys.chain(cut(if causal { 0 } else { tq }).map(|queries| (0..0, queries)))
}
