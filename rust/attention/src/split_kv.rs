//! The `split` rung of `sdpa`: the keys in parts, each attended to on its own, the results merged.
//!
//! What it changes, beside [`flash`](mod@crate::flash): the parts do not wait for each other, so that a single
//! query over a long cache can keep many workers busy.
//!
//! Letters: B batch, Hq query heads, Tq query length, Dv head size of the values.
//!
//! Source: Dao et al., "Flash-Decoding for long-context inference", 2023.

use ndarray::{Array3, Array4, ArrayRef4, Axis};

use crate::checks::{check_sdpa, check_splits};
use crate::errors::Result;
use crate::flash::{Tiles, attend};
use crate::float::Float;
use crate::merge::merge;
use crate::sdpa::Sdpa;

/// [`sdpa`](fn@crate::sdpa()) without its intermediates: output (B, Hq, Tq, Dv) and lse (B, Hq, Tq).
/// `splits`: into how many consecutive parts the keys are cut, at least 1.
///
/// # Errors
/// `ShapeMismatch`, `InvalidConfig`.
///
/// ```
/// use ndarray::{Array4, array};
/// use rosetta_attention::{Sdpa, split_kv};
/// let (q, k) = (Array4::<f64>::zeros((1, 1, 1, 1)), Array4::zeros((1, 1, 4, 1)));
/// let v = array![[[[1.0], [2.0], [6.0], [3.0]]]];
/// let (output, _) = split_kv(&q, &k, &v, &Sdpa::default(), 3)?;
/// assert!((output[[0, 0, 0, 0]] - 3.0).abs() < 1e-15);
/// # Ok::<(), rosetta_attention::AttentionError>(())
/// ```
pub fn split_kv<T: Float>(
    q: &ArrayRef4<T>,
    k: &ArrayRef4<T>,
    v: &ArrayRef4<T>,
    options: &Sdpa<'_, T>,
    splits: usize,
) -> Result<(Array4<T>, Array3<T>)> {
    check_sdpa("split_kv", q.dim(), k.dim(), v.dim(), options)?;
    check_splits("split_kv", splits)?;
    let (batch, hq, tq, _) = q.dim();
    let (_, _, tk, dv) = v.dim();

    // 1. split: parts whose sizes differ by 1 at most; more parts than keys would be empty
    let count = splits.min(tk.max(1));
    let parts = (0..count).map(|part| part * tk / count..(part + 1) * tk / count);

    // 2. attend: to each part on its own, the sinks left out
    let sinkless = Sdpa { sinks: None, ..*options };
    let results = parts.map(|keys| attend(q, k, v, &sinkless, Tiles::default(), keys));

    // 3. merge: in any order; what has seen no key yet adds nothing
    let none = Array3::from_elem((batch, hq, tq), T::neg_infinity()); // (B, Hq, Tq)
    let mut whole = (Array4::zeros((batch, hq, tq, dv)), none);
    for (output, lse) in results {
        whole = merge(&whole.0, &whole.1, &output, &lse)?; // (B, Hq, Tq, Dv), (B, Hq, Tq)
    }

    // 4. sink: one more part, whose value is 0
    if let Some(sinks) = options.sinks {
        let sinks = sinks.view().insert_axis(Axis(1)); // (Hq, 1)
        let lse = sinks.broadcast((batch, hq, tq)).expect("checked"); // (B, Hq, Tq)
        whole = merge(&whole.0, &whole.1, &Array4::zeros((batch, hq, tq, dv)), &lse)?;
    }
    Ok(whole)
}
