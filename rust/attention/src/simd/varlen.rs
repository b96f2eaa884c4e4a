//! The `simd` rung of `varlen`: each packed sequence by the vectorised kernels, where it lies.
//!
//! What it changes, beside the [readable rung](mod@crate::varlen): the kernels, and nothing of size Tq x Tk. Neither a
//! sequence nor the batch is padded or put together anew.
//!
//! Letters: S sequences, Nq and Nk rows of all queries and keys, Hq query heads, Hkv key/value heads, D head size, Dv
//! head size of the values.

use ndarray::{Array2, Array3, ArrayRef1, ArrayRef3, Axis, s};

use super::attend::Call;
use super::tier::Tier;
use crate::checks::check_varlen;
use crate::errors::Result;
use crate::float::Float;
use crate::masks::{Mask, Offset};
use crate::sdpa::Sdpa;
use crate::varlen::{Varlen, as_batch, bounds};

/// [`varlen`](fn@crate::varlen()) by the kernels of [`sdpa_simd`](super::sdpa_simd): output (Nq, Hq, Dv) and lse (Nq, Hq).
///
/// # Errors
/// `ShapeMismatch`, `InvalidConfig`; `Unsupported` for a tier that this machine lacks.
///
/// ```
/// use ndarray::{Array3, array};
/// use rosetta_attention::{Varlen, varlen_simd};
/// let (q, k) = (Array3::<f64>::zeros((2, 1, 1)), Array3::zeros((3, 1, 1)));
/// let v = array![[[9.0]], [[2.0]], [[4.0]]];
/// let (cu_q, cu_k) = (array![0, 1, 2], array![0, 1, 3]);
/// let (output, _) = varlen_simd(&q, &k, &v, &cu_q, &cu_k, &Varlen::default(), None)?;
/// assert_eq!(output, array![[[9.0]], [[3.0]]]);
/// # Ok::<(), rosetta_attention::AttentionError>(())
/// ```
pub fn varlen_simd<T: Float>(
    q: &ArrayRef3<T>,
    k: &ArrayRef3<T>,
    v: &ArrayRef3<T>,
    cu_seqlens_q: &ArrayRef1<i64>,
    cu_seqlens_k: &ArrayRef1<i64>,
    options: &Varlen<'_>,
    tier: Option<Tier>,
) -> Result<(Array3<T>, Array2<T>)> {
    check_varlen("varlen", (q.dim(), k.dim(), v.dim()), (cu_seqlens_q, cu_seqlens_k), options)?;
    let tier = Tier::choose(tier)?;
    let &Varlen { causal, q_offset, window, scale, softcap } = options;
    let (rows, heads, d) = q.dim();
    let mut output = Array3::zeros((rows, heads, v.dim().2)); // (Nq, Hq, Dv)
    let mut lse = Array2::zeros((rows, heads)); // (Nq, Hq)
    for sequence in 0..cu_seqlens_q.len() - 1 {
        // 1. slice: the rows of this sequence, heads before positions
        let (own, keys) = (bounds(cu_seqlens_q, sequence), bounds(cu_seqlens_k, sequence));
        let queries = as_batch(q, &own); // (1, Hq, Tq, D)
        let (k, v) = (as_batch(k, &keys), as_batch(v, &keys)); // (1, Hkv, Tk, D), (1, Hkv, Tk, Dv)

        // 2. attend: as if there were no other sequence
        let q_offset = q_offset.map(|offset| Offset::One(offset.of_row(sequence)));
        let mask = Mask { causal, window, q_offset, ..Mask::default() };
        let options = Sdpa { mask, scale, softcap, ..Sdpa::default() };
        let scale = options.scale_of(d);
        let call = Call { q: &queries, k: &k, v: &v, options: &options, scale, tier };
        let (own_output, own_lse) = T::attend(&call); // (1, Hq, Tq, Dv), (1, Hq, Tq)

        // 3. place: back where the queries came from
        let placed = own_output.index_axis(Axis(0), 0).permuted_axes([1, 0, 2]); // (Tq, Hq, Dv)
        output.slice_mut(s![own.clone(), .., ..]).assign(&placed);
        lse.slice_mut(s![own, ..]).assign(&own_lse.index_axis(Axis(0), 0).t());
    }
    Ok((output, lse))
}
